"""All workers made to die at one moment: how it is done, what it may cost, how long it lasts."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from loadtest.faults.echo import Sample
from loadtest.faults.lab import PATIENCE_S
from loadtest.faults.server import FaultServer, is_alive
from loadtest.faults.steady import TIMEOUT_S, is_clean
from loadtest.faults.worker_deaths import connections_of

_CONNECTIONS: Final = 16
_HEAD_BYTES: Final = 64
# A client notices a closed connection a little after the process is seen to be gone.
_NOTICED_NS: Final = 500_000_000


@dataclass(frozen=True, slots=True)
class Blackout:
    """From the request that ends every worker until all are gone. ``answers``: what it got."""

    began_ns: int
    ended_ns: int
    answers: Sequence[bytes]

    def explains(self, failure: Sample) -> bool:
        """Whether a failure is of a request that was in flight meanwhile."""
        until_ns = self.ended_ns + _NOTICED_NS
        is_then = failure.sent_ns <= until_ns and failure.done_ns >= self.began_ns
        return is_then and is_clean(failure)

    def first_answer_s(self, samples: Sequence[Sample]) -> float | None:
        """Return how long it took to the first good answer of a worker that came after it."""
        answered = [
            each.done_ns for each in samples if each.status == 200 and each.sent_ns > self.ended_ns
        ]
        return (min(answered) - self.began_ns) / 1e9 if answered else None


def black_out(server: FaultServer, request: bytes, prepare: Callable[[], object]) -> Blackout:
    """Send ``request``, which ends whoever computes it, to every worker at once, and await that.

    ``prepare`` makes it deadly, once each worker has connections. Raises LabFailed where a worker
    lives on.
    """
    pids = server.worker_pids()
    with _connected(server, pids) as clients:
        prepare()
        began_ns = time.monotonic_ns()
        # The first worker that dies has the others told; theirs are on the way by then.
        for client in clients:
            client.sendall(request)
        server.wait_until(
            lambda: not any(map(is_alive, pids)), PATIENCE_S, "every worker was ended"
        )
        return Blackout(began_ns, time.monotonic_ns(), [_received(client) for client in clients])


@contextmanager
def _connected(server: FaultServer, pids: Sequence[int]) -> Iterator[list[socket.socket]]:
    """Yield connections of which each worker has accepted some."""
    address = ("127.0.0.1", server.port)
    with contextlib.ExitStack() as stack:
        clients: list[socket.socket] = []

        def is_one_each() -> bool:
            more = socket.create_connection(address, TIMEOUT_S)
            clients.append(stack.enter_context(more))
            mine = {client.getsockname()[1] for client in clients}
            is_enough = len(clients) >= _CONNECTIONS
            return is_enough and all(mine & connections_of(pid) for pid in pids)

        server.wait_until(is_one_each, PATIENCE_S, "each worker has a connection")
        yield clients


def _received(client: socket.socket) -> bytes:
    """Return the start of what came; nothing where the connection was closed."""
    try:
        return client.recv(_HEAD_BYTES)
    except OSError:
        return b""
