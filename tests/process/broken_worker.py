"""A real worker that breaks the promise which a file names, for as long as it is named there.

``swap``: each run gives the answers of the run before. ``leak``: each run keeps 4 MiB for good.
``forget``: connections are dropped at a stop instead of being answered. ``undrained``: versions are
unloaded without a wait for those that hold them. ``litter``, which breaks no promise: each run
frees 20 MiB below pieces that stay. With ``slow`` beside it, or alone, each run takes its time.
Several stand in the file with spaces between them.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.errors import RunTerminated
from models.servable import Array, LoadSpec, Servable
from registry.serving_map import ServingMap
from serving.data.batcher import Batcher
from serving.web.server import HttpServer
from serving.workers import worker

BROKEN = Path(os.environ["TEST_BROKEN_PROMISE"])
REAL_DRAIN = HttpServer.drain
REAL_DRAINED = ServingMap.drained
REAL_CLOSE = Batcher.close
LEAK_BYTES = 4 << 20
SLOW_S = 0.5
PIECES = 320
PIECE_BYTES = 64 << 10
STAYING_BYTES = 1500


def is_broken(kind: str) -> bool:
    return BROKEN.exists() and kind in BROKEN.read_text().split()


class BrokenLoader:
    """Loads as the real one does; what it gives answers wrongly or leaks, when told to."""

    def __init__(self, threads: int) -> None:
        self._real = worker.runtime_loader(threads)

    def load(self, spec: LoadSpec) -> Servable:
        return BrokenServable(self._real.load(spec))


class BrokenServable:
    def __init__(self, real: Servable) -> None:
        self._real = real
        self._last: list[Array] | None = None
        self._kept: list[bytearray] = []
        self._terminated = threading.Event()
        self.signature = real.signature

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def terminate(self) -> None:
        self._terminated.set()
        self._real.terminate()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        if is_broken("slow") and self._terminated.wait(SLOW_S):
            raise RunTerminated("ended")
        arrays = self._real.run(inputs, outputs)
        if is_broken("leak"):
            self._kept.append(bytearray(b"x" * LEAK_BYTES))
        if is_broken("litter"):
            litter()
        if is_broken("swap"):
            last, self._last = self._last, arrays
            # Of another size it would be noticed at once.
            if last is not None and [a.shape for a in last] == [a.shape for a in arrays]:
                return last
        return arrays


def litter() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    pieces = []
    for _ in range(PIECES):
        pieces.append(libc.malloc(PIECE_BYTES))
        libc.malloc(STAYING_BYTES)
        ctypes.memset(pieces[-1], 1, PIECE_BYTES)
    for piece in pieces:
        libc.free(piece)


async def drain(server: HttpServer, timeout_s: float, *, is_lasting: bool = False) -> bool:
    if not is_broken("forget"):
        return await REAL_DRAIN(server, timeout_s, is_lasting=is_lasting)
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    return True


async def drained(serving_map: ServingMap[Any], model: str, version: int) -> None:
    if not is_broken("undrained"):
        await REAL_DRAINED(serving_map, model, version)


async def close(batcher: Batcher, timeout_s: float) -> None:
    await REAL_CLOSE(batcher, 0.0 if is_broken("undrained") else timeout_s)


if __name__ == "__main__":
    ServingMap.drained = drained  # type: ignore[method-assign]
    Batcher.close = close  # type: ignore[method-assign]
    HttpServer.drain = drain  # type: ignore[method-assign]
    sys.exit(worker.main(loader_factory=BrokenLoader))
