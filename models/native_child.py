"""Inspecting a native version, in the throwaway process: opening it, probing it, its golden rows.

A library may abort on a damaged file; here that ends nobody but this process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.errors import LoadFailed, ModelsError
from models.memory import anonymous_bytes, trim
from models.probe import probe
from models.runtime.native import NativeServable, open_native
from models.servable import Array, Inspection, numpy_dtype
from models.signature import Signature, TensorSpec, parse_signature
from models.synthetic import make_inputs, styles
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest

# What the pusher's library and this one may differ by, relative to max(1, |pushed|).
_TOLERANCE: Final = 1e-5


def inspect_native(manifest: Manifest, objects_dir: Path) -> JsonObject:
    """Return the JSON form of the Inspection, or raise LoadFailed."""
    signature = parse_signature(manifest.signature)
    make_inputs(signature, styles(signature)[0], 1)  # what numpy sets up at its first use
    trim()
    before = anonymous_bytes()
    start = time.perf_counter()
    servable = open_native(objects_dir / digest_hex(manifest.graph), manifest.runtime, signature)
    load_s = time.perf_counter() - start
    probed = probe(servable.run, signature, None)
    _check_golden(servable, manifest)
    trim()
    return Inspection(
        signature=probed.signature,
        is_batchable=probed.is_batchable,
        batch_reason=probed.batch_reason,
        has_control_flow=False,
        run_s=probed.run_s,
        load_s=load_s,
        private_bytes=max(anonymous_bytes() - before, 0),
    ).to_json()


def _check_golden(servable: NativeServable, manifest: Manifest) -> None:
    """Raise LoadFailed where this release of the library answers otherwise than the pusher's."""
    golden = (manifest.parity or {}).get("golden")
    for number, row in enumerate(golden if isinstance(golden, list) else ()):
        try:
            is_off = _is_off(servable, row)
        except (ModelsError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise LoadFailed(f"golden row {number} cannot be computed: {error}") from None
        if is_off:
            from models.runtime.shared_library import installed_version

            library = str(manifest.runtime.get("library"))
            raise LoadFailed(
                f"golden row {number} answers otherwise here than where it was pushed: {library} "
                f"is {installed_version(library)} here, {manifest.runtime.get('version')} there"
            )


def _is_off(servable: NativeServable, row: Any) -> bool:
    inputs = _inputs(servable.signature, row["inputs"])
    if inputs is None:
        return False
    outputs = [spec for spec in servable.signature.outputs if spec.name in row["outputs"]]
    answers = servable.run(inputs, [spec.name for spec in outputs])
    return any(
        _differs(spec, answer[0], row["outputs"][spec.name])
        for spec, answer in zip(outputs, answers, strict=True)
    )


def _inputs(signature: Signature, row: Mapping[str, Sequence[Any]]) -> dict[str, Array] | None:
    """Return a golden row as inputs; None where a null hides whether it was NaN or infinite."""
    found = {}
    for spec in signature.inputs:
        cells = row[spec.name]
        if any(cell is None for cell in cells):
            return None
        found[spec.name] = np.array([cells], dtype=numpy_dtype(spec.datatype))
    return found


def _differs(spec: TensorSpec, answer: Any, pushed: Any) -> bool:
    if not spec.datatype.startswith("FP"):
        return bool(answer != pushed) and spec.name != "label"  # a tie may fall either way
    wanted = np.array(pushed, dtype=np.float64)
    known = np.isfinite(wanted)
    difference = np.abs(np.asarray(answer, dtype=np.float64) - wanted)
    return bool((difference[known] > _TOLERANCE * np.maximum(1.0, np.abs(wanted[known]))).any())
