"""Trying a version in a throwaway child process, so that a bad model harms nobody else."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from models.errors import LoadFailed, MemoryExceeded
from models.memory import resident_anonymous_bytes
from models.servable import Inspection, parse_inspection
from registry.errors import InvalidInput
from registry.manifest import JsonObject, Manifest

_MIB: Final = 1 << 20
# An interpreter with numpy, onnx and onnxruntime, before it opens anything.
_BASE_BYTES: Final = 64 * _MIB
_POLL_S: Final = 0.05
_MAX_ANSWER_BYTES: Final = 32 * _MIB
_MAX_STDERR_BYTES: Final = 64 * 1024
_MODULE: Final = "models.inspect_child"
_NO_ANSWER: Final = "the inspection process gave no proper answer"
_KEPT_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the child may use.

    ``memory_bytes``: private memory beside the mapped tensors and the libraries themselves.
    ``timeout_s``: seconds from start to answer. ``threads``: of each run, as in the workers.
    """

    memory_bytes: int
    timeout_s: float
    threads: int


def inspect_version(
    manifest: Manifest,
    objects_dir: Path,
    limits: Limits,
    cancelled: threading.Event | None = None,
    *,
    has_prepacking: bool = True,
) -> Inspection:
    """Open and try a version in a child process; raises LoadFailed with the reason.

    Blocks up to ``limits.timeout_s``; setting ``cancelled`` from another thread ends it earlier.
    The child dies with the thread that calls this.
    """
    request: JsonObject = {"task": "inspect", "has_prepacking": has_prepacking}
    found = ask_child(request, manifest, objects_dir, limits, cancelled)
    try:
        inspection = parse_inspection(found)
    except (ValueError, KeyError, TypeError, InvalidInput):
        raise LoadFailed(_NO_ANSWER) from None
    check_private_bytes(inspection, limits.memory_bytes)
    return inspection


def check_private_bytes(inspection: Inspection, memory_bytes: int) -> None:
    """Raise LoadFailed where a version takes more private memory than it may."""
    if inspection.private_bytes > memory_bytes:
        raise _needs_more(memory_bytes)


def ask_child(
    request: JsonObject,
    manifest: Manifest,
    objects_dir: Path,
    limits: Limits,
    cancelled: threading.Event | None = None,
    file_bytes: int = 0,
) -> JsonObject:
    """Return what the child found out for ``request``, a task of ``models.inspect_child``.

    ``file_bytes``: how large a file it may write. Raises LoadFailed.
    """
    with _Child(request, manifest, objects_dir, limits, file_bytes) as child:
        answer = child.answer(cancelled or threading.Event())
    try:
        document = json.loads(answer)
        if "reason" not in document:
            return dict(document["found"])
        is_memory, reason = bool(document["is_memory"]), str(document["reason"])
    except (ValueError, KeyError, TypeError):
        raise LoadFailed(_NO_ANSWER) from None
    raise _needs_more(limits.memory_bytes) if is_memory else LoadFailed(reason)


class _Child:
    """The running child; leaving the context ends it in any case."""

    def __init__(
        self,
        request: JsonObject,
        manifest: Manifest,
        objects_dir: Path,
        limits: Limits,
        file_bytes: int,
    ) -> None:
        self._limits = limits
        self._stderr = bytearray()
        request = {
            **request,
            "file_bytes": file_bytes,
            "manifest": manifest.to_json(),
            "objects_dir": str(objects_dir.resolve()),
            "threads": limits.threads,
            "memory_bytes": limits.memory_bytes,
            "cpu_s": int(limits.timeout_s * (limits.threads + 1)) + 1,
            "parent_pid": os.getpid(),
        }
        self._answer_fd, child_end = os.pipe()
        stdin = _memory_file(json.dumps(request).encode())
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(child_end)],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(child_end,),
                env=_environment(limits.threads),
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(self._answer_fd)
            raise
        finally:
            os.close(child_end)
            os.close(stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._answer_fd)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def answer(self, cancelled: threading.Event) -> bytes:
        """Return what the child wrote, or raise LoadFailed saying how it ended."""
        deadline = time.monotonic() + self._limits.timeout_s
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._answer_fd, selectors.EVENT_READ, answer)
            selector.register(self._stderr_fd, selectors.EVENT_READ, self._stderr)
            while self._answer_fd in selector.get_map():
                self._check(deadline, cancelled)
                for key, _ in selector.select(_POLL_S):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                    key.data.extend(chunk)
                del self._stderr[:-_MAX_STDERR_BYTES]
                if len(answer) > _MAX_ANSWER_BYTES:
                    raise LoadFailed("the inspection process answered too much")
        try:
            code = self._process.wait(timeout=max(deadline - time.monotonic(), _POLL_S))
        except subprocess.TimeoutExpired:
            raise self._too_slow() from None
        if code:
            raise self._died(code)
        return bytes(answer)

    @property
    def _stderr_fd(self) -> int:
        return -1 if self._process.stderr is None else self._process.stderr.fileno()

    def _check(self, deadline: float, cancelled: threading.Event) -> None:
        if cancelled.is_set():
            raise LoadFailed("the inspection was cancelled")
        if time.monotonic() > deadline:
            raise self._too_slow()
        used = resident_anonymous_bytes(self._process.pid)
        if used > self._limits.memory_bytes + _BASE_BYTES:
            raise _needs_more(self._limits.memory_bytes)

    def _too_slow(self) -> LoadFailed:
        return LoadFailed(f"its inspection took longer than {self._limits.timeout_s:g} s")

    def _died(self, code: int) -> LoadFailed:
        said = bytes(self._stderr).lower()
        if b"bad_alloc" in said or b"memoryerror" in said or b"cannot allocate" in said:
            return _needs_more(self._limits.memory_bytes)
        if code == -signal.SIGXCPU:
            return LoadFailed("its inspection used up its processor time")
        if code < 0:
            return LoadFailed(f"the inspection process was killed by {signal.Signals(-code).name}")
        return LoadFailed(f"the inspection process ended with exit code {code}")


def _needs_more(memory_bytes: int) -> MemoryExceeded:
    return MemoryExceeded(f"it needs more than {memory_bytes // _MIB} MiB of private memory")


def _memory_file(data: bytes) -> int:
    # Not a pipe: a child that dies early would leave the writer blocked or with a broken pipe.
    descriptor = os.memfd_create("inspect")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _environment(threads: int) -> dict[str, Any]:
    # Built from nothing: tokens stay with the parent, and no variable steers the runtime.
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return {
        **kept,
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
