"""Inspecting a version through the loader that the workers use, in the throwaway process.

For versions that are more than a graph of ONNX Runtime: texts with what cuts them, OpenVINO.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from models.computed import computed_manifest, engine_name
from models.errors import LoadFailed
from models.golden import drift
from models.graph_check import has_control_flow, reason_not_to_batch
from models.graph_signature import graph_signature
from models.memory import anonymous_bytes, trim
from models.probe import probe
from models.runtime import onnx as runtime
from models.runtime.loader import RuntimeLoader
from models.servable import Inspection, LoadSpec
from models.signature import Signature, parse_signature
from models.synthetic import make_inputs, styles
from models.terms_form import RUNTIME_NAME as TERMS
from models.terms_form import parse_terms_form
from models.text_form import RUNTIME_NAME as TEXT
from models.text_form import parse_text_form
from registry.ident import shown
from registry.manifest import JsonObject, Manifest


def prepare(manifest: Manifest, threads: int) -> None:
    """Import what a version needs, or raise LoadFailed saying how to install it."""
    if manifest.runtime["name"] == TERMS:
        parse_terms_form(manifest)
    if manifest.runtime["name"] == TEXT:
        from models.runtime import tokens

        parse_text_form(manifest)
        tokens.prepare()
    if engine_name(manifest) == "openvino":
        from models.runtime import openvino

        openvino.prepare()
    else:
        runtime.prime(threads)


def inspect_loaded(
    request: Mapping[str, Any], manifest: Manifest, model: onnx.ModelProto
) -> JsonObject:
    """Return the JSON form of the Inspection, or raise LoadFailed.

    ``model``: its graph, checked against the manifest.
    """
    _check_declared(model, parse_signature(computed_manifest(manifest).signature))
    reason, branches = reason_not_to_batch(model), has_control_flow(model)
    threads, signature = int(request["threads"]), parse_signature(manifest.signature)
    has_prepacking = bool(request.get("has_prepacking", True))
    make_inputs(signature, styles(signature)[0], 1)  # what numpy sets up at its first use
    declared = Inspection(signature, False, "", branches, 0, 0, 0, has_prepacking=has_prepacking)
    spec = LoadSpec(manifest.model, 0, manifest, Path(request["objects_dir"]), threads, declared)
    loader = RuntimeLoader(threads)
    trim()
    before, start = anonymous_bytes(), time.perf_counter()
    servable = loader.load(spec)
    load_s = time.perf_counter() - start
    probed = probe(servable.run, signature, reason)
    drifted = drift(servable.run, signature, manifest.parity)
    trim()
    return Inspection(
        signature=probed.signature,
        is_batchable=probed.is_batchable,
        batch_reason=probed.batch_reason,
        has_control_flow=branches,
        run_s=probed.run_s,
        load_s=load_s,
        private_bytes=max(anonymous_bytes() - before, 0),
        has_prepacking=has_prepacking,
        drift=drifted,
    ).to_json()


def _check_declared(model: onnx.ModelProto, signature: Signature) -> None:
    """Raise LoadFailed unless the graph takes and gives what the signature says."""
    declared = graph_signature(model, LoadFailed)
    for kind, mine, theirs in (
        ("inputs", signature.inputs, declared.inputs),
        ("outputs", signature.outputs, declared.outputs),
    ):
        said = [(spec.name, spec.datatype) for spec in mine]
        found = [(spec.name, spec.datatype) for spec in theirs]
        if said != found:
            raise LoadFailed(
                f"signature.{kind}: {shown(said)} differs from the graph's {shown(found)}"
            )
