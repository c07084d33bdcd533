"""Other forms of a package that compute the same in another way: smaller weights, OpenVINO.

They are made from the package itself, so each also works for what a converter made, and for the
encoder of a text version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx

from models.computed import computed_manifest, engine_name
from models.convert.onnx_file import About, package_onnx
from models.convert.quantize import Mode, Quantized, quantize
from models.errors import ConversionRefused, InputRefused, RunFailed
from models.graph_check import reason_not_to_batch
from models.package import Package
from models.parity import Inputs
from models.runtime.loader import OPENVINO_ADVICE
from models.servable import Array, Servable
from models.signature import parse_signature
from models.synthetic import MAX_ROWS, first_inputs, make_inputs
from models.terms_form import RUNTIME_NAME as TERMS
from models.text_form import (
    EMBEDDING,
    INPUT_NAME,
    RUNTIME_NAME,
    parse_text_form,
)
from registry.ident import digest_hex
from registry.manifest import JsonObject, TensorEntry

if TYPE_CHECKING:
    from models.convert.sample import Sample

NOT_SMALLER = (
    "a model that counts the terms of texts reads a few of its weights for each text, and is not "
    "made smaller: push it as it is, or train it with fewer terms (max_features, min_df)"
)


def unpacked(package: Package, folder: Path) -> Path:
    """Write the objects of a package into ``folder`` and return its graph, ready to be opened."""
    for item in package.objects:
        path = folder / digest_hex(item.digest)
        if not path.exists():
            with path.open("wb") as file:
                for chunk in item.chunks():
                    file.write(chunk)
    return folder / digest_hex(package.manifest.graph)


def smaller(package: Package, mode: Mode, graph: Path, folder: Path) -> tuple[Package, Quantized]:
    """Return the package with smaller weights, and what that took.

    ``graph``: as ``unpacked`` gave it. ``folder`` must stay until the package was sent. Raises
    ConversionRefused where there is nothing to make smaller.
    """
    if package.manifest.runtime["name"] == TERMS:
        raise ConversionRefused(f"--quantize {mode}: {NOT_SMALLER}")
    if engine_name(package.manifest) != "onnx":
        raise ConversionRefused(f"--quantize {mode}: only a graph has weights to make smaller")
    small = quantize(graph, mode, folder)
    base = package.manifest
    source: JsonObject = {**base.source, "quantize": {
        "mode": mode, "weights": small.weights,
        "before_bytes": small.before_bytes, "after_bytes": small.after_bytes,
    }}  # fmt: skip
    signature = parse_signature(computed_manifest(base).signature)
    inner = package_onnx(base.model, small.path, About(signature, None, source, base.meta))
    if base.runtime["name"] != RUNTIME_NAME:
        return inner, small
    form = parse_text_form(base)
    tokenizer = next(item for item in package.objects if item.digest == form.tokenizer)
    read = onnx.load(small.path, load_external_data=False)
    form = replace(
        form,
        engine=inner.manifest.runtime,
        are_rows_together=reason_not_to_batch(read) is None,
    )
    manifest = replace(
        inner.manifest,
        tensors=(*inner.manifest.tensors, TensorEntry(tokenizer.digest, tokenizer.size_bytes)),
        signature=base.signature,
        runtime=form.to_json(),
    )
    return Package(manifest, (*inner.objects, tokenizer)), small


def with_openvino(package: Package, precision: Literal["f32", "bf16", "int8"]) -> Package:
    """Return the same text model for OpenVINO to compute, without a record.

    ``precision``: "int8" is for a package with weights of 8 bits. Raises ConversionRefused where it
    is no text model.
    """
    base = package.manifest
    if base.runtime["name"] != RUNTIME_NAME:
        raise ConversionRefused(OPENVINO_ADVICE)
    engine: JsonObject = {"name": "openvino", "precision": precision}
    runtime: JsonObject = {**base.runtime, "engine": engine}
    return Package(replace(base, runtime=runtime, parity=None), package.objects)


def rows_for(servable: Servable, sample: Sample | None) -> Inputs:
    """Return the rows of a sample, or made-up ones that the servable accepts."""
    if [spec.name for spec in servable.signature.inputs] == [INPUT_NAME]:
        from models.convert.text import texts_of

        return {INPUT_NAME: texts_of(sample)}
    if sample is not None:
        return sample.inputs(servable.signature)
    try:
        style, _ = first_inputs(servable.run, servable.signature, MAX_ROWS)
    except (InputRefused, RunFailed) as error:
        raise ConversionRefused(
            f"no made-up row is accepted by the model ({error}): give real ones with --sample FILE"
        ) from error
    return make_inputs(servable.signature, style, MAX_ROWS)


def least_cosine(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> float | None:
    """Return the smallest cosine between two embeddings of a row; None where there are none.

    An embedding is an output of that name, ``(rows, width)``.
    """
    least: float | None = None
    for name, array in wanted.items():
        if name != EMBEDDING or array.ndim != 2:
            continue
        left, right = got[name].astype(np.float64), array.astype(np.float64)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines = (left * right).sum(axis=1) / np.maximum(lengths, 1e-30)
        found = float(np.where(np.isfinite(cosines), cosines, -1.0).min(initial=1.0))
        least = found if least is None else min(least, found)
    return least
