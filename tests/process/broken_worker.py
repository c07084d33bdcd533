"""A real worker that breaks the promise which a file names, for as long as it is named there.

``swap``: each run gives the answers of the run before. ``leak``: each run keeps 4 MiB for good.
``forget``: connections are dropped at a stop instead of being answered.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.servable import Array, LoadSpec, Servable
from serving.web.server import HttpServer
from serving.workers import worker

BROKEN = Path(os.environ["TEST_BROKEN_PROMISE"])
REAL_DRAIN = HttpServer.drain
LEAK_BYTES = 4 << 20


def is_broken(kind: str) -> bool:
    return BROKEN.exists() and BROKEN.read_text() == kind


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
        self.signature = real.signature

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        arrays = self._real.run(inputs, outputs)
        if is_broken("leak"):
            self._kept.append(bytearray(b"x" * LEAK_BYTES))
        if is_broken("swap"):
            last, self._last = self._last, arrays
            # Of another size it would be noticed at once.
            if last is not None and [a.shape for a in last] == [a.shape for a in arrays]:
                return last
        return arrays


async def drain(server: HttpServer, timeout_s: float, *, is_lasting: bool = False) -> bool:
    if not is_broken("forget"):
        return await REAL_DRAIN(server, timeout_s, is_lasting=is_lasting)
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    return True


if __name__ == "__main__":
    HttpServer.drain = drain  # type: ignore[method-assign]
    sys.exit(worker.main(loader_factory=BrokenLoader))
