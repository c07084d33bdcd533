"""One spawned worker as the parent holds it: the process, its end, and our end of the wire."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from models import priority
from serving.web.handover import ConnectionQueue
from serving.workers.wire import Wire

# Safe path (-P): a folder named like one of ours in the working directory must not be imported.
WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "serving.workers.worker")
_OUR_ROOT: Final = str(Path(__file__).resolve().parents[2])
# Read once when the libraries are loaded, so they have to be right before the interpreter starts:
# the threads of a run are the session's, and pools of BLAS and OpenMP beside them only contend.
# A bound on arenas keeps the heap of a threaded process from growing by one for each thread; with
# so many the thread that loads has one of its own (see load_thread).
ENVIRONMENT: Final[Mapping[str, str]] = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "8",
}
# A worker comes back with all it held; without the parent there is nothing to come back to. The
# parent keeps every weight in RAM, which the kernel counts as its own: up to all of the memory, a
# score of 1000.
OOM_SCORE: Final = 900
# Lets a model file choose its own session options, a thread count of thousands among them.
REMOVED: Final = ("ORT_LOAD_CONFIG_FROM_MODEL",)


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: ours, with thread pools bounded and no admin secret."""
    kept = {k: v for k, v in environ.items() if k not in REMOVED and not k.endswith("_TOKEN")}
    path = os.pathsep.join(filter(None, (_OUR_ROOT, environ.get("PYTHONPATH"))))
    return {**kept, **ENVIRONMENT, "PYTHONPATH": path}


def describe_exit(code: int) -> str:
    """Return what an exit code says, for a person."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class WorkerProcess:
    """A running worker. Its end is noticed through a pidfd, without threads or SIGCHLD."""

    def __init__(self, process: subprocess.Popen[bytes], wire: Wire) -> None:
        self._process = process
        self.wire = wire
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._reap)

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        listener: socket.socket,
        metrics_fd: int,
        queue: ConnectionQueue,
    ) -> WorkerProcess:
        """Start a worker on a listener. Raises OSError when the command cannot be run."""
        ours, theirs = socket.socketpair()
        try:
            fds = (listener.fileno(), theirs.fileno(), metrics_fd, *queue.fds)
            # Blocks for a millisecond: it returns when the child has begun.
            process = subprocess.Popen(  # noqa: ASYNC220
                [*command, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=worker_environment(os.environ),
                # A Ctrl-C reaches all of a terminal's group, also a worker that still imports
                # and cannot ignore it yet. The parent alone decides how its workers end.
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        # Not by the worker itself, which imports for half a second first: after a death for want
        # of memory it is the only one, and the kernel would find the parent.
        priority.die_before_parent(OOM_SCORE, process.pid)
        try:
            wire = await Wire.open(ours)
        except BaseException:
            # A stop in between: nobody else knows of the process yet.
            process.kill()
            process.wait()
            raise
        return cls(process, wire)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def exited(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        return await asyncio.shield(self._exit)

    def kill(self) -> None:
        """End it at once; also a stopped or stuck process."""
        self._process.kill()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exit.set_result(self._process.wait())
