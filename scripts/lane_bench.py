"""What a request costs from its packet to its answer, without sockets: scripts/lane_bench.py.

One process, one thread: the real connection, lane and data plane, over a transport that throws
answers away. First behind a data plane that answers at once, which leaves the lane alone; then with
LightGBM (300 trees, 30 columns). Last, what counting, limits and the log are of it, each timed by
itself. Figures are microseconds of processor time a request, the best of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from plane_bench import bodies_of, build_plane, load_model

from serving.data.body import BodyReader
from serving.data.call import Answer, InferCall
from serving.data.data_plane import DataPlane
from serving.data.lane import InferLane
from serving.data.served import ServedVersion
from serving.logs import configure_logs
from serving.settings import Settings
from serving.web.access_log import AccessLog
from serving.web.known_heads import KNOWN_HEADS
from serving.web.server import HttpServer

ROUNDS = 9
CONNECTIONS = (64, 16, 1)
REQUESTS = 3200
LINE = ("r" * 32, "127.0.0.1", "POST", "/v2/models/fraud/infer", 200, 0.001)


class Discard:
    """A transport that counts the answers it throws away."""

    def __init__(self) -> None:
        self.answers = 0

    def write(self, data: bytes) -> None:
        """Count the answers in one write."""
        self.answers += data.count(b"HTTP/1.1 200")

    def get_extra_info(self, name: str) -> Any:
        """Name both ends."""
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    def get_write_buffer_size(self) -> int:
        """Say that everything was taken."""
        return 0

    def is_closing(self) -> bool:
        """Stay open."""
        return False

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""

    def close(self) -> None:
        """Nothing is held here."""


class Instant:
    """A data plane that answers at once."""

    def __init__(self, version: ServedVersion) -> None:
        self._version = version

    def begin(self, _: InferCall, done: Callable[[Answer], None]) -> Instant:
        """Answer with an empty object."""
        done(Answer(200, list, b"{}", self._version.json_prefix))
        return self

    def cancel(self) -> None:
        """Nothing is under way."""


def packets_of(bodies: Sequence[bytes], *, is_known: bool) -> list[bytes]:
    """Return requests; with an id of its own a head is never known and is parsed each time."""
    packets = []
    # More than a server remembers of heads, each once.
    turns = 1 if is_known else 1 + 2 * KNOWN_HEADS // len(bodies)
    for number, body in enumerate(list(bodies) * turns):
        head = (
            "POST /v2/models/fraud/infer HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        more = "" if is_known else f"X-Request-Id: {number}\r\n"
        packets.append((head + more + "\r\n").encode() + body)
    return packets


async def closed_loop(server: HttpServer, packets: Sequence[bytes], connections: int) -> float:
    """Give each connection a packet in one pass, and again once all answered."""
    transports = [Discard() for _ in range(connections)]
    # As the server makes one at a connection's first byte.
    options = {"config": server.config, "server_state": server.server_state, "app_state": {}}
    protocols = [server.protocol_class(**options) for _ in transports]
    for protocol, transport in zip(protocols, transports, strict=True):
        protocol.connection_made(transport)  # type: ignore[arg-type]  # what it needs of one
    turns, wanted = REQUESTS // connections, 0
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        number = 0
        for _ in range(turns):
            wanted += 1
            for protocol in protocols:
                protocol.data_received(packets[number % len(packets)])
                number += 1
            while transports[-1].answers < wanted:  # noqa: ASYNC110  the pass is what is measured
                await asyncio.sleep(0)
        found.append((time.process_time() - start) / (turns * connections) * 1e6)
        if {transport.answers for transport in transports} != {wanted}:
            raise RuntimeError("a request was not answered")
    for protocol in protocols:
        protocol.connection_lost(None)
    return min(found)


def server_of(plane: Any, settings: Settings) -> HttpServer:
    """Return a server as a worker has it, without its application."""
    server = HttpServer(None, settings, lane=InferLane(plane, settings, BodyReader(settings)))
    server.server_state.default_headers = [(b"date", b"Tue, 01 Jan 2030 00:00:00 GMT")]
    return server


def best(work: Callable[[], object], count: int = 20_000) -> float:
    """Return microseconds a call, the best of rounds."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            work()
        found.append((time.process_time() - start) / count * 1e6)
    return min(found)


def checks_us(plane: DataPlane, version: ServedVersion, settings: Settings) -> dict[str, float]:
    """Return what counting, limits and log take of a request that shares its run with 63."""
    counters, bodies = version.counters, BodyReader(settings)
    totals = [100_000] * 64

    def counted() -> None:
        for _ in totals:
            counters.request_started()
        counters.run_started()
        counters.run_ended()
        counters.batch_done(64, 300_000, 1000, 1000, 300_000, 0, 0)
        counters.requests_answered(64, totals, totals, (1000, 300_000, 1000))

    gate, limits, clock = version.gate, version.batcher.limits, plane.clock
    queued_rows = queued_requests = 1

    def bounded() -> None:
        # What lane, data plane, request and batcher do of it: all bodies, the permits of worker and
        # model, the rows that wait, the deadline.
        bodies.hold(370)
        if plane.in_flight >= settings.max_in_flight or gate.limit is not None:
            raise RuntimeError("no permit")
        gate.in_flight += 1
        if clock() >= 2**63 or (queued_requests and queued_rows + 1 > limits.queue_rows):
            raise RuntimeError("late or full")
        gate.in_flight -= 1
        bodies.release(370)

    every, some = (
        AccessLog.of(replace(settings, access_log=which)) for which in ("all", "sampled")
    )
    if every is None or some is None:
        raise RuntimeError("no log")
    configure_logs(settings, io.StringIO())
    return {
        "counting": best(counted, 500) / 64,
        "limits": best(bounded),
        "log, access_log = sampled": best(lambda: some.write(*LINE)),
        "log, access_log = all": best(lambda: every.write(*LINE), 2000),
    }


async def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="list the functions, too")
    options = parser.parse_args()
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="lane-bench-") as folder:
        servable = load_model(Path(folder))
        plane, version = build_plane(servable, may_inline=True)
        bodies = bodies_of(servable, 1)[:300]
        size = max(map(len, bodies))
        # Of one length, as the numbers of one client mostly are: the heads are equal then.
        bodies = [body + b" " * (size - len(body)) for body in bodies]
        whole = 0.0
        for name, behind in (("lane alone", Instant(version)), ("with the model", plane)):
            for is_known in (True, False):
                packets = packets_of(bodies, is_known=is_known)
                server = server_of(behind, settings)
                found = {n: await closed_loop(server, packets, n) for n in CONNECTIONS}
                text = "  ".join(f"{n} connections {us:.2f}" for n, us in found.items())
                print(f"{name}, heads {'known' if is_known else 'parsed'}: {text}")
                whole = found[64] if is_known else whole
        for name, us in checks_us(plane, version, settings).items():
            print(f"{name}: {us:.2f} us, {us / whole:.1%} of {whole:.2f}")
        if options.profile:
            packets = packets_of(bodies, is_known=True)
            with cProfile.Profile() as profile:
                await closed_loop(server_of(plane, settings), packets, 64)
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    uvloop.run(main())
