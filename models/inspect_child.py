"""The throwaway process that first opens a version: whatever that breaks, it breaks here.

Run as ``python -m models.inspect_child ANSWER_FD QUESTIONS_FD PARENT_PID FILE_BYTES`` by
``models.child``. A byte on stdin says that a question lies in the file of questions; the answer is
one line of JSON. It ends with stdin.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models import confinement, priority
from models.errors import LoadFailed
from models.reading import read_file
from models.syscall_filter import stay_alone
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest, parse_manifest

if TYPE_CHECKING:
    import onnx

_OPEN_FILES: Final = 256
# Workers add less: what was never served yet goes first.
_OOM_SCORE: Final = 1000
# What libraries that one task did not need yet may still take, beside all that a version may.
_LIBRARY_BYTES: Final = 256 << 20
# A parsed graph takes a little more than its bytes.
_PARSED_FACTOR: Final = 2


def main() -> int:
    """Answer each question with ``found`` or ``reason``."""
    answer_fd, questions_fd, parent_pid, file_bytes = map(int, sys.argv[1:])
    # First, for it may make the kernel forget whose death ends this process.
    confinement.leave_network()
    confinement.gain_nothing()
    confinement.die_with(parent_pid)
    _confine(file_bytes)
    stay_alone()
    while sys.stdin.buffer.read(1):
        question = os.pread(questions_fd, os.fstat(questions_fd).st_size, 0)
        answer = json.dumps(_answer(json.loads(question))) + "\n"
        # As a whole: the parent reads on while this writes.
        with open(answer_fd, "wb", closefd=False) as pipe:
            pipe.write(answer.encode())
    # Destructors of a strange session may crash or take long, and all is said.
    os._exit(0)


def _answer(request: dict[str, Any]) -> JsonObject:
    task = str(request["task"])
    _limit_cpu(int(request["cpu_s"]))
    most = _most_file_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if task == "pack" else 0, most))
    try:
        return {"found": _TASKS[task](request)}
    except LoadFailed as error:
        is_memory = "not enough memory" in str(error)
        return {"reason": str(error), "is_memory": is_memory}
    except MemoryError:
        return {"reason": "", "is_memory": True}


def _describe(request: dict[str, Any]) -> JsonObject:
    from models.graph_check import check_graph
    from models.graph_shape import shape_of

    manifest = parse_manifest(request["manifest"])
    _limit_memory(request, 0)
    model = _parsed(request, manifest)
    check_graph(model, manifest)
    return {"shape": shape_of(model)}


def _inspect(request: dict[str, Any]) -> JsonObject:
    # Imported late: the limits of _confine come first.
    from models.graph_check import (
        check_graph,
        has_control_flow,
        reason_not_to_batch,
    )
    from models.runtime.loader import runtime_name

    manifest = parse_manifest(request["manifest"])
    runtime = runtime_name(manifest.runtime["name"])
    if runtime == "native":
        return _inspect_native(request, manifest)
    if runtime != "onnx":
        from models.loaded_child import prepare

        prepare(manifest, int(request["threads"]))  # a library's own memory is not the version's
    _limit_memory(request, _mapped_bytes(manifest) + int(request.get("packed_bytes", 0)))
    model = _parsed(request, manifest)
    check_graph(model, manifest)
    reason, branches = reason_not_to_batch(model), has_control_flow(model)
    if runtime != "onnx":
        from models.loaded_child import inspect_loaded

        return inspect_loaded(request, manifest, model)
    del model
    return _measure(request, manifest, reason, branches)


def _parsed(request: dict[str, Any], manifest: Manifest) -> onnx.ModelProto:
    """Return the graph; MemoryError where it may have been memory that ended the parser.

    It says that a graph is damaged when it gets no memory for it.
    """
    from models.graph_check import parse_graph
    from models.memory import private_writable_bytes

    data = _graph_bytes(request, manifest)
    try:
        return parse_graph(data)
    except LoadFailed:
        room_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0] - private_writable_bytes(
            os.getpid()
        )
        if room_bytes < _PARSED_FACTOR * len(data):
            raise MemoryError from None
        raise


def _graph_bytes(request: dict[str, Any], manifest: Manifest) -> bytearray:
    try:
        return read_file(Path(request["objects_dir"]) / digest_hex(manifest.graph))
    except FileNotFoundError:
        raise LoadFailed("its graph object is not in the store") from None


def _inspect_native(request: dict[str, Any], manifest: Manifest) -> JsonObject:
    from models.native_child import inspect_native
    from models.runtime.native import prepare

    prepare(manifest.runtime)  # the library's own memory is not the version's
    _limit_memory(request, 0)
    return inspect_native(manifest, Path(request["objects_dir"]))


def _measure(
    request: dict[str, Any], manifest: Manifest, reason: str | None, has_control_flow: bool
) -> JsonObject:
    from models.compare_child import check_locations, difference_to_mapped
    from models.golden import drift
    from models.memory import anonymous_bytes, trim
    from models.probe import probe
    from models.runtime import onnx as runtime
    from models.servable import Inspection
    from models.signature import parse_signature
    from models.synthetic import make_inputs, styles

    threads, objects_dir = int(request["threads"]), Path(request["objects_dir"])
    # What was packed for it already, or else the version itself.
    packed = str(request.get("packed_graph", ""))
    graph = objects_dir / digest_hex(packed or manifest.graph)
    has_prepacking = bool(request.get("has_prepacking", True))
    if packed:
        check_locations(graph, frozenset(request["packed_objects"]))
    signature = parse_signature(manifest.signature)
    runtime.prime(threads)
    make_inputs(signature, styles(signature)[0], 1)  # what numpy sets up at its first use
    trim()
    before = anonymous_bytes()
    start = time.perf_counter()
    session = runtime.open_session(
        graph, threads, is_packed=bool(packed), has_prepacking=has_prepacking
    )
    load_s = time.perf_counter() - start
    runtime.check_session(session, signature)
    servable = runtime.OnnxServable(session, signature)
    probed = probe(servable.run, signature, reason)
    drifted = drift(servable.run, signature, manifest.parity)
    trim()
    found = Inspection(
        signature=probed.signature,
        is_batchable=probed.is_batchable,
        batch_reason=probed.batch_reason,
        has_control_flow=has_control_flow,
        run_s=probed.run_s,
        load_s=load_s,
        private_bytes=max(anonymous_bytes() - before, 0),
        has_prepacking=has_prepacking,
        drift=drifted,
    ).to_json()
    if packed:
        plain = objects_dir / digest_hex(manifest.graph)
        found["difference"] = difference_to_mapped(servable.run, signature, plain, threads)
    return found


def _pack(request: dict[str, Any]) -> JsonObject:
    from models.pack_child import compact, pack
    from registry.packed import parse_packed_tensor

    manifest, graph_path = parse_manifest(request["manifest"]), Path(request["graph_path"])
    objects_dir, threads = Path(request["objects_dir"]), int(request["threads"])
    # Beside the tensors it maps what it writes.
    _limit_memory(request, _mapped_bytes(manifest) + _most_file_bytes())
    if request["is_compact"]:
        return compact(manifest, objects_dir, threads=threads, graph_path=graph_path)
    return pack(
        manifest, objects_dir,
        threads=threads, graph_path=graph_path, data_path=Path(request["data_path"]),
        known=[parse_packed_tensor(item) for item in request["known"]],
    )  # fmt: skip


def _compare(request: dict[str, Any]) -> JsonObject:
    from models.compare_child import compare

    manifest = parse_manifest(request["manifest"])
    _limit_memory(request, 2 * _mapped_bytes(manifest) + int(request["packed_bytes"]))
    return compare(
        manifest,
        Path(request["objects_dir"]),
        threads=int(request["threads"]),
        packed_graph=str(request["packed_graph"]),
        packed_objects=frozenset(request["packed_objects"]),
    )


# By the name that ``models.inspect`` and ``models.pack`` ask for.
_TASKS: Final[Mapping[str, Callable[[dict[str, Any]], JsonObject]]] = {
    "describe": _describe,
    "inspect": _inspect,
    "pack": _pack,
    "compare": _compare,
}


def _confine(file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    priority.step_back_process()
    priority.die_before_parent(_OOM_SCORE)


def _limit_cpu(cpu_s: int) -> None:
    """Let the process take ``cpu_s`` seconds in all; only the first question may say how many."""
    if resource.getrlimit(resource.RLIMIT_CPU)[1] == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _limit_memory(request: dict[str, Any], mapped_bytes: int) -> None:
    """Let the process map so much for this task, beside what it may take and took already.

    The first task also sets what no later one can go beyond.
    """
    from models.memory import private_writable_bytes

    taken_bytes = private_writable_bytes(os.getpid())
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most == resource.RLIM_INFINITY:
        manifest = parse_manifest(request["manifest"])
        most = taken_bytes + int(request["memory_bytes"]) + 2 * _mapped_bytes(manifest)
        most += _most_file_bytes() + _LIBRARY_BYTES
    limit = min(taken_bytes + int(request["memory_bytes"]) + mapped_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _most_file_bytes() -> int:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[1]


def _mapped_bytes(manifest: Manifest) -> int:
    # The runtime maps tensors private and writable, which the kernel counts as data although no
    # page is ever copied. The parent watches the pages that are.
    return sum(entry.size_bytes + resource.getpagesize() for entry in manifest.tensors)


if __name__ == "__main__":
    sys.exit(main())
