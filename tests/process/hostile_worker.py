"""A real worker whose loader does harm for models of certain names; see ``HostileLoader``."""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from models.errors import LoadFailed
from models.servable import Array, LoadSpec, Servable
from serving.workers.worker import main, runtime_loader


class HostileLoader:
    """Loads as the real one does, but for models with one of these names.

    ``kills-on-load`` and ``exits-on-load`` end the process while loading, ``crashes-on-run`` while
    running; ``never-ends`` has runs that do not end when told to; ``fails-in-a-worker`` passes the
    inspection and fails here.
    """

    def __init__(self, threads: int) -> None:
        self._real = runtime_loader(threads)

    def load(self, spec: LoadSpec) -> Servable:
        if spec.model == "kills-on-load":
            os.kill(os.getpid(), signal.SIGKILL)
        if spec.model == "exits-on-load":
            os._exit(9)
        if spec.model == "fails-in-a-worker":
            raise LoadFailed("it does not like workers")
        servable = self._real.load(spec)
        if spec.model in ("crashes-on-run", "never-ends"):
            return HostileServable(servable, spec.model)
        return servable


class HostileServable:
    """A servable that does harm when it is run."""

    def __init__(self, real: Servable, kind: str) -> None:
        self._real = real
        self._kind = kind
        self.signature = real.signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        if self._kind == "crashes-on-run":
            os.kill(os.getpid(), signal.SIGSEGV)
        threading.Event().wait()
        raise AssertionError("not reached")

    def terminate(self) -> None:
        self._real.terminate()

    def close(self) -> None:
        self._real.close()


if __name__ == "__main__":
    sys.exit(main(loader_factory=HostileLoader))
