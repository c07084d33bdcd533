"""The throwaway process in which a version is tried: started, asked, watched, ended from here."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from models.child_memory import CRASHES, ChildMemory
from models.errors import LoadFailed, MemoryExceeded
from registry.manifest import JsonObject, Manifest

_MIB: Final = 1 << 20
# An interpreter with numpy, onnx and onnxruntime, before it opens anything.
_BASE_BYTES: Final = 64 * _MIB
_POLL_S: Final = 0.05
_MAX_ANSWER_BYTES: Final = 32 * _MIB
_MAX_STDERR_BYTES: Final = 64 * 1024
_MODULE: Final = "models.inspect_child"
NO_ANSWER: Final = "the inspection process gave no proper answer"
_KEPT_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the child may use.

    ``memory_bytes``: private memory beside the mapped tensors and the libraries themselves.
    ``timeout_s``: seconds from question to answer. ``threads``: of each run, as in the workers.
    """

    memory_bytes: int
    timeout_s: float
    threads: int


class InspectionChild:
    """One version's child: answers one question after the other; leaving the context ends it.

    It starts with the first question, for starting takes longer than most answers, and anew with
    the next one after it died. It is for the thread that asks and dies with it.
    """

    def __init__(
        self,
        manifest: Manifest,
        objects_dir: Path,
        cancelled: threading.Event | None = None,
        file_bytes: int = 0,
    ) -> None:
        """``file_bytes``: how large a file it may ever write."""
        self._about: JsonObject = {
            "manifest": manifest.to_json(),
            "objects_dir": str(objects_dir.resolve()),
        }
        self._file_bytes = file_bytes
        self._tensor_bytes = manifest.weight_bytes
        self._cancelled = cancelled or threading.Event()
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def ask(self, request: JsonObject, limits: Limits) -> JsonObject:
        """Return what the child found out for ``request``, a task of ``models.inspect_child``.

        Raises LoadFailed, and after a death also saying how it died.
        """
        if self._process is None:
            self._process = _Process(limits, self._file_bytes, self._tensor_bytes)
        try:
            about = {"memory_bytes": limits.memory_bytes, "threads": limits.threads}
            answer = self._process.ask({**self._about, **about, **request}, limits, self._cancelled)
        except BaseException:
            self._end()
            raise
        try:
            document = json.loads(answer)
            if "reason" not in document:
                return dict(document["found"])
            is_memory, reason = bool(document["is_memory"]), str(document["reason"])
        except (ValueError, KeyError, TypeError):
            self._end()
            raise LoadFailed(NO_ANSWER) from None
        raise needs_more(limits.memory_bytes) if is_memory else LoadFailed(reason)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


class _Process:
    """The running child. Questions lie in a file of memory that it shares; a byte says read it."""

    def __init__(self, limits: Limits, file_bytes: int, tensor_bytes: int) -> None:
        self._stderr = bytearray()
        # Not a pipe for the questions: a child that dies or hangs would leave the writer blocked.
        self._questions_fd = os.memfd_create("inspect")
        self._answer_fd, child_answers = os.pipe()
        child_bell, self._bell_fd = os.pipe()
        theirs = (child_answers, self._questions_fd)
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(child_answers), str(self._questions_fd),
                 str(os.getpid()), str(file_bytes)],
                stdin=child_bell,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=theirs,
                env=child_environment(limits.threads),
                cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            for descriptor in (self._answer_fd, self._bell_fd, self._questions_fd):
                os.close(descriptor)
            raise
        finally:
            os.close(child_answers)
            os.close(child_bell)
        self._memory = ChildMemory(self._process.pid, tensor_bytes + file_bytes)

    def end(self) -> None:
        # The child leads a group of its own: what it may have started ends with it.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._answer_fd, self._bell_fd, self._questions_fd):
            os.close(descriptor)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def ask(self, request: JsonObject, limits: Limits, cancelled: threading.Event) -> bytes:
        """Return the line that the child wrote, or raise LoadFailed saying how it ended."""
        # Of processor time each question gets its own.
        cpu_s = int(limits.timeout_s * (limits.threads + 1)) + 1
        data = json.dumps({**request, "cpu_s": cpu_s}).encode()
        os.ftruncate(self._questions_fd, len(data))
        os.pwrite(self._questions_fd, data, 0)
        try:
            os.write(self._bell_fd, b"\n")
        except BrokenPipeError:
            raise self._died(limits) from None
        return self._answer(limits, cancelled)

    def _answer(self, limits: Limits, cancelled: threading.Event) -> bytes:
        deadline = time.monotonic() + limits.timeout_s
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._answer_fd, selectors.EVENT_READ, answer)
            selector.register(self._stderr_fd, selectors.EVENT_READ, self._stderr)
            while not answer.endswith(b"\n"):
                self._check(limits, deadline, cancelled)
                for key, _ in selector.select(_POLL_S):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                    key.data.extend(chunk)
                del self._stderr[:-_MAX_STDERR_BYTES]
                if len(answer) > _MAX_ANSWER_BYTES:
                    raise LoadFailed("the inspection process answered too much")
                if self._answer_fd not in selector.get_map():
                    raise self._died(limits, deadline)
        return bytes(answer)

    @property
    def _stderr_fd(self) -> int:
        return -1 if self._process.stderr is None else self._process.stderr.fileno()

    def _check(self, limits: Limits, deadline: float, cancelled: threading.Event) -> None:
        if cancelled.is_set():
            raise LoadFailed("the inspection was cancelled")
        if time.monotonic() > deadline:
            raise _too_slow(limits)
        if self._memory.look() > limits.memory_bytes + _BASE_BYTES:
            raise needs_more(limits.memory_bytes)

    def _died(self, limits: Limits, deadline: float = 0.0) -> LoadFailed:
        """Return how it ended, from its exit code and what it said last."""
        ended = self._ended(max(deadline - time.monotonic(), 1.0))
        if ended is None:
            return _too_slow(limits)
        code, most_resident_bytes = ended
        if self._process.stderr is not None:
            self._stderr += _rest_of(self._stderr_fd)
        said = bytes(self._stderr).lower()
        if b"bad_alloc" in said or b"memoryerror" in said or b"cannot allocate" in said:
            return needs_more(limits.memory_bytes)
        if code == -signal.SIGXCPU:
            return LoadFailed("its inspection used up its processor time")
        if -code in CRASHES and self._memory.is_near_limit(
            limits.memory_bytes, most_resident_bytes
        ):
            return _ran_out(limits.memory_bytes, signal.Signals(-code))
        if code < 0:
            return LoadFailed(f"the inspection process was killed by {signal.Signals(-code).name}")
        if not code:
            return LoadFailed(NO_ANSWER)
        return LoadFailed(f"the inspection process ended with exit code {code}")

    def _ended(self, timeout_s: float) -> tuple[int, int] | None:
        """Return its exit code, and the most bytes it had resident; None if it goes on."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Not Popen.wait, which forgets what the kernel says of its memory.
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                return self._process.returncode, usage.ru_maxrss * 1024
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S / 10)


def needs_more(memory_bytes: int) -> MemoryExceeded:
    """Return the error of a version that takes more private memory than it may."""
    return MemoryExceeded(f"it needs more than {memory_bytes // _MIB} MiB of private memory")


def _ran_out(memory_bytes: int, crash: signal.Signals) -> MemoryExceeded:
    return MemoryExceeded(
        f"it ran out of its {memory_bytes // _MIB} MiB of private memory and crashed ({crash.name})"
    )


def _too_slow(limits: Limits) -> LoadFailed:
    return LoadFailed(f"its inspection took longer than {limits.timeout_s:g} s")


def _rest_of(descriptor: int) -> bytes:
    """Return what is in a pipe, without waiting for more."""
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, _MAX_STDERR_BYTES)
    except BlockingIOError:
        return b""


def child_environment(threads: int) -> dict[str, Any]:
    """Return the child's whole environment."""
    # Built from nothing: tokens stay with the parent, and no variable steers the runtime.
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return {
        **kept,
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
