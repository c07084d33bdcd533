"""Choosing a runtime: the graph where it answers as the library does, else the library itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import onnx

from models.convert.graph import Conversion, NativeModel, most_exact
from models.convert.trees import Precision
from models.errors import ConversionRefused, LoadFailed, ModelsError
from models.package import BytesObject, Package
from models.parity import Answer, Inputs, Parity, ParityRefused, compare
from models.runtime.native import open_native
from models.signature import Signature
from registry.manifest import JsonObject, Manifest


@dataclass(frozen=True, slots=True)
class NativeSide:
    """A model as its library serves it. ``answer`` is the library's own, on ``rows``."""

    model: NativeModel
    rows: Inputs
    answer: Answer


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model before its runtime is chosen.

    ``build`` makes the graph, or raises ConversionRefused where there is none for such a model;
    ``answer`` is what the library says on ``rows``, which are inputs of ``signature``.
    """

    signature: Signature
    build: Callable[[Precision], onnx.ModelProto]
    answer: Answer
    rows: Inputs
    framework: str
    libraries: JsonObject
    native: NativeSide | None


def choose(candidate: Candidate, runtime: str, tolerance: float) -> Conversion:
    """Return the graph with its proof; where it fails that, the native model with the reason.

    ``runtime`` "onnx" or "native" leaves no choice. Raises ConversionRefused.
    """
    why: JsonObject = {}
    if runtime != "native":
        try:
            model, parity, precision = most_exact(
                candidate.build, candidate.answer, candidate.rows, tolerance
            )
        except ConversionRefused as error:
            if runtime == "onnx" or candidate.native is None:
                raise
            why = _why_not(error)
        else:
            return Conversion(
                model, candidate.signature, parity, precision,
                candidate.framework, candidate.libraries,
            )  # fmt: skip
    if candidate.native is None:
        raise ConversionRefused(f"{candidate.framework}: this model cannot be served natively")
    return _native(candidate, candidate.native, tolerance, why)


def _why_not(error: ConversionRefused) -> JsonObject:
    if not isinstance(error, ParityRefused):
        return {"reason": f"onnx: {error}; serving natively"}
    parity = error.parity
    return {
        "reason": f"onnx: {parity.rows_differing:,} of {parity.rows:,} rows differ; "
        "serving natively",
        "onnx": {
            "rows": parity.rows,
            "rows_differing": parity.rows_differing,
            "max_difference": parity.max_difference,
            "label_disagreements": parity.label_disagreements,
        },
    }


def _native(
    candidate: Candidate, native: NativeSide, tolerance: float, why: JsonObject
) -> Conversion:
    """Prove the code that the server will run against the library, on the same rows."""
    parity = _served_parity(native, tolerance)
    parity.require()
    return Conversion(
        native.model, native.model.signature, parity, "native",
        candidate.framework, candidate.libraries, why,
    )  # fmt: skip


def _served_parity(native: NativeSide, tolerance: float) -> Parity:
    model = native.model
    names = [spec.name for spec in model.signature.outputs]
    with tempfile.TemporaryDirectory(prefix="ramrack-") as folder:
        path = Path(folder) / "model"
        path.write_bytes(model.data)
        try:
            servable = open_native(path, model.runtime, model.signature)
        except LoadFailed as error:
            raise ConversionRefused(str(error)) from error

    def answer(inputs: Inputs) -> Inputs:
        return dict(zip(names, servable.run(inputs), strict=True))

    try:
        return compare(answer, native.answer, native.rows, tolerance)
    except ModelsError as error:
        raise ConversionRefused(str(error)) from error
    finally:
        servable.close()


def package_native(
    name: str, model: NativeModel, parity: JsonObject, source: JsonObject, meta: JsonObject
) -> Package:
    """Return the package of a native model: its file is the version's graph object."""
    file = BytesObject.of(model.data)
    manifest = Manifest(
        model=name,
        graph=file.digest,
        tensors=(),
        signature=model.signature.to_json(),
        runtime=model.runtime,
        parity=parity,
        source=source,
        meta=meta,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return Package(manifest, (file,))
