"""The throwaway process that first opens a version: whatever that breaks, it breaks here.

Run as ``python -m models.inspect_child ANSWER_FD`` by ``models.inspect``, which says on stdin what
to look at and reads one JSON document from the descriptor.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from models import priority
from models.errors import LoadFailed
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest, parse_manifest

_PR_SET_PDEATHSIG: Final = 1
_OPEN_FILES: Final = 256
# Workers add less: what was never served yet goes first.
_OOM_SCORE: Final = 600


def main() -> int:
    """Do the task that stdin names and answer with ``found`` or ``reason``."""
    request = json.load(sys.stdin)
    answer_fd = int(sys.argv[1])
    _die_with(int(request["parent_pid"]))
    _confine(cpu_s=int(request["cpu_s"]), file_bytes=int(request["file_bytes"]))
    try:
        answer: JsonObject = {"found": _TASKS[request["task"]](request)}
    except LoadFailed as error:
        is_memory = "not enough memory" in str(error)
        answer = {"reason": str(error), "is_memory": is_memory}
    except MemoryError:
        answer = {"reason": "", "is_memory": True}
    with os.fdopen(answer_fd, "w") as pipe:
        json.dump(answer, pipe)
    # Destructors of a strange session may crash or take long, and all is said.
    os._exit(0)


def _inspect(request: dict[str, Any]) -> JsonObject:
    # Imported late: the limits of _confine come first.
    from models.graph_check import (
        check_graph,
        has_control_flow,
        parse_graph,
        reason_not_to_batch,
    )
    from models.runtime.loader import runtime_name

    manifest = parse_manifest(request["manifest"])
    objects_dir = Path(request["objects_dir"])
    runtime = runtime_name(manifest.runtime["name"])
    if runtime == "native":
        return _inspect_native(request, manifest)
    if runtime != "onnx":
        from models.loaded_child import prepare

        prepare(manifest, int(request["threads"]))  # a library's own memory is not the version's
    graph = objects_dir / digest_hex(manifest.graph)
    _limit_memory(int(request["memory_bytes"]) + _mapped_bytes(manifest))
    try:
        model = parse_graph(graph.read_bytes())
    except FileNotFoundError:
        raise LoadFailed("its graph object is not in the store") from None
    check_graph(model, manifest)
    reason, branches = reason_not_to_batch(model), has_control_flow(model)
    if runtime != "onnx":
        from models.loaded_child import inspect_loaded

        return inspect_loaded(request, manifest, model)
    del model
    return _measure(request, manifest, graph, reason, branches)


def _inspect_native(request: dict[str, Any], manifest: Manifest) -> JsonObject:
    from models.native_child import inspect_native
    from models.runtime.native import prepare

    prepare(manifest.runtime)  # the library's own memory is not the version's
    _limit_memory(int(request["memory_bytes"]))
    return inspect_native(manifest, Path(request["objects_dir"]))


def _measure(
    request: dict[str, Any],
    manifest: Manifest,
    graph: Path,
    reason: str | None,
    has_control_flow: bool,
) -> JsonObject:
    from models.golden import drift
    from models.memory import anonymous_bytes, trim
    from models.probe import probe
    from models.runtime import onnx as runtime
    from models.servable import Inspection
    from models.signature import parse_signature
    from models.synthetic import make_inputs, styles

    threads = int(request["threads"])
    signature = parse_signature(manifest.signature)
    runtime.prime(threads)
    make_inputs(signature, styles(signature)[0], 1)  # what numpy sets up at its first use
    trim()
    before = anonymous_bytes()
    start = time.perf_counter()
    session = runtime.open_session(graph, threads, has_prepacking=bool(request["has_prepacking"]))
    load_s = time.perf_counter() - start
    runtime.check_session(session, signature)
    servable = runtime.OnnxServable(session, signature)
    probed = probe(servable.run, signature, reason)
    drifted = drift(servable.run, signature, manifest.parity)
    trim()
    return Inspection(
        signature=probed.signature,
        is_batchable=probed.is_batchable,
        batch_reason=probed.batch_reason,
        has_control_flow=has_control_flow,
        run_s=probed.run_s,
        load_s=load_s,
        private_bytes=max(anonymous_bytes() - before, 0),
        has_prepacking=bool(request["has_prepacking"]),
        drift=drifted,
    ).to_json()


def _pack(request: dict[str, Any]) -> JsonObject:
    from models.pack_child import compact, pack

    manifest = parse_manifest(request["manifest"])
    # Beside the tensors it maps what it writes.
    _limit_memory(
        int(request["memory_bytes"]) + _mapped_bytes(manifest) + int(request["file_bytes"])
    )
    write = compact if request["is_compact"] else pack
    return write(
        manifest,
        Path(request["objects_dir"]),
        threads=int(request["threads"]),
        graph_path=Path(request["graph_path"]),
        data_path=Path(request["data_path"]),
    )


def _compare(request: dict[str, Any]) -> JsonObject:
    from models.compare_child import compare

    manifest = parse_manifest(request["manifest"])
    _limit_memory(
        int(request["memory_bytes"]) + 2 * _mapped_bytes(manifest) + int(request["packed_bytes"])
    )
    return compare(
        manifest,
        Path(request["objects_dir"]),
        threads=int(request["threads"]),
        packed_graph=str(request["packed_graph"]),
        packed_objects=frozenset(request["packed_objects"]),
    )


# By the name that ``models.inspect`` and ``models.pack`` ask for.
_TASKS: Final[Mapping[str, Callable[[dict[str, Any]], JsonObject]]] = {
    "inspect": _inspect,
    "pack": _pack,
    "compare": _compare,
}


def _die_with(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # it died before the call above


def _confine(cpu_s: int, file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    priority.step_back_process()
    priority.die_before_parent(_OOM_SCORE)


def _limit_memory(more_bytes: int) -> None:
    """Let the process take ``more_bytes`` beside what its libraries took already."""
    from models.memory import private_writable_bytes

    limit = private_writable_bytes(os.getpid()) + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _mapped_bytes(manifest: Manifest) -> int:
    # The runtime maps tensors private and writable, which the kernel counts as data although no
    # page is ever copied. The parent watches the pages that are.
    return sum(entry.size_bytes + resource.getpagesize() for entry in manifest.tensors)


if __name__ == "__main__":
    sys.exit(main())
