"""Inspecting a native version, in the throwaway process: opening it, probing it, its golden rows.

A library may abort on a damaged file; here that ends nobody but this process.
"""

from __future__ import annotations

import time
from pathlib import Path

from models.golden import drift
from models.memory import anonymous_bytes, trim
from models.probe import probe
from models.runtime.native import NativeServable, open_native
from models.runtime.shared_library import installed_version
from models.servable import Inspection
from models.signature import parse_signature
from models.synthetic import make_inputs, styles
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest


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
    drifted = _drift(servable, manifest)
    trim()
    return Inspection(
        signature=probed.signature,
        is_batchable=probed.is_batchable,
        batch_reason=probed.batch_reason,
        has_control_flow=False,
        run_s=probed.run_s,
        load_s=load_s,
        private_bytes=max(anonymous_bytes() - before, 0),
        drift=drifted,
    ).to_json()


def _drift(servable: NativeServable, manifest: Manifest) -> str:
    """Return how this release of the library answers otherwise than the pusher's, "" where not."""
    found = drift(servable.run, servable.signature, manifest.parity)
    if not found:
        return ""
    library = str(manifest.runtime.get("library"))
    here, there = installed_version(library), manifest.runtime.get("version")
    return found if here == there else f"{found}; {library} is {here} here, was {there}"
