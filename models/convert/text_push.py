"""A push of a text folder: converted, held to its own numbers, and packed."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.convert.extras import need
from models.convert.opened import answer_of, opened
from models.convert.text import TextModel, measured, package_text, read_text, texts_of
from models.convert.variants import least_cosine, rows_for, smaller, unpacked, with_openvino
from models.difference import DEFAULT_TOLERANCE
from models.errors import ConversionRefused
from models.package import Package
from models.parity import Parity, compare
from registry.manifest import JsonObject

if TYPE_CHECKING:
    from models.convert import ConvertOptions
    from models.convert.loss import Request
    from models.convert.sample import Sample

_CHUNK_ROWS = 8
_TITLES = {"transformers": "the weights, computed in double precision", "onnx": "the ONNX file"}


def convert_text(
    name: str, path: Path, options: ConvertOptions, request: Request | None, sample: Sample | None
) -> Package:
    """Return the package of a text folder with its proof, or raise ConversionRefused."""
    if options.runtime == "native":
        raise ConversionRefused("a text model has no runtime but onnx and openvino")
    model = read_text(path)
    package = package_text(name, model)
    exact = DEFAULT_TOLERANCE
    if options.tolerance is not None and request is None and options.runtime != "openvino":
        exact = options.tolerance
    parity = measured(model, package, texts_of(sample), exact)
    parity.require()
    package = _recorded(package, path, model, parity, sample, options)
    if options.runtime == "openvino":
        return computed_by_openvino(package, options.tolerance, sample)
    if request is not None:
        return smaller_weights(package, request, sample)
    return package


def smaller_weights(package: Package, request: Request, sample: Sample | None) -> Package:
    """Return the package with smaller weights, what is lost measured on the sample."""
    from models.convert.loss import TOLERANCES, refuse_loss

    with tempfile.TemporaryDirectory(prefix="ramrack-") as folder:
        graph = unpacked(package, Path(folder))
        small, _ = smaller(package, request.mode, graph, request.folder)
    tolerance = TOLERANCES[request.mode] if request.tolerance is None else request.tolerance
    parity, cosine = compared(small, package, sample, tolerance)
    refuse_loss(parity, request.mode, sample)
    return with_record(small, parity, sample, cosine)


def computed_by_openvino(
    package: Package, tolerance: float | None, sample: Sample | None
) -> Package:
    """Return the package for OpenVINO: in bfloat16 where the processor and the tolerance allow."""
    from models.runtime.openvino import has_bf16

    need("openvino")
    allowed = DEFAULT_TOLERANCE if tolerance is None else tolerance
    if has_bf16():
        fast = with_openvino(package, "bf16")
        parity, cosine = compared(fast, package, sample, allowed)
        if parity.is_within:
            return with_record(fast, parity, sample, cosine)
    exact = with_openvino(package, "f32")
    parity, cosine = compared(exact, package, sample, allowed)
    parity.require()
    return with_record(exact, parity, sample, cosine)


def compared(
    package: Package, base: Package, sample: Sample | None, tolerance: float
) -> tuple[Parity, float | None]:
    """Return how far a package answers from its base, and the least cosine of embeddings."""
    with opened(base) as servable:
        rows = rows_for(servable, sample)
        wanted = answer_of(servable, _CHUNK_ROWS)(rows)
    with opened(package) as servable:
        got = answer_of(servable, _CHUNK_ROWS)(rows)
    parity = compare(lambda _: got, lambda _: wanted, rows, tolerance)
    return parity, least_cosine(got, wanted)


def with_record(
    package: Package, parity: Parity, sample: Sample | None, cosine: float | None
) -> Package:
    """Return the package with the record of a comparison with the original."""
    record = parity.to_json()
    record["against"] = "the original"
    record["sample"] = sample.file if sample is not None else None
    if cosine is not None:
        record["least_cosine"] = cosine
    return Package(replace(package.manifest, parity=record), package.objects)


def _recorded(
    package: Package,
    path: Path,
    model: TextModel,
    parity: Parity,
    sample: Sample | None,
    options: ConvertOptions,
) -> Package:
    record = parity.to_json()
    record["against"] = _TITLES[model.framework]
    record["sample"] = sample.file if sample is not None else None
    source: JsonObject = {
        "framework": model.framework,
        "file": path.name,
        "weights": model.folder.weights.name,
        "file_digest": _digest(model.folder.weights),
    }
    manifest = replace(package.manifest, parity=record, source=source, meta=options.meta)
    return Package(manifest, package.objects)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
