"""Closed-loop load on one path: some connections, each sends again as soon as it has its answer.

Prints one JSON object: what was sent, what failed, latencies, and the versions in the order in
which they answered. Runs for ``--seconds`` or until SIGTERM or Ctrl-C, whichever is first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest.http_connection import Connection

REQUEST_TIMEOUT_S: Final = 30.0
_MAX_KEPT_ERRORS: Final = 5


@dataclass(slots=True)
class Tally:
    """What all connections saw. ``went_back``: answers by a version that was replaced before.

    ``failed`` counts every request without a 200: refused, broken, timed out or an error.
    """

    latencies_ns: list[int] = field(default_factory=list)
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    versions: list[str] = field(default_factory=list)
    by_version: Counter[str] = field(default_factory=Counter)
    went_back: int = 0

    def failure(self, reason: str) -> None:
        """Count a request that failed."""
        self.failed += 1
        if reason in self.errors or len(self.errors) < _MAX_KEPT_ERRORS:
            self.errors[reason] += 1

    def success(self, latency_ns: int, version: str) -> None:
        """Count an answer."""
        self.latencies_ns.append(latency_ns)
        if version not in self.by_version:
            self.versions.append(version)
        self.by_version[version] += 1

    def report(self, seconds: float, rows_a_request: int) -> dict[str, object]:
        """Return the totals in the form that is printed."""
        ordered = sorted(self.latencies_ns)
        return {
            "sent": len(ordered) + self.failed,
            "succeeded": len(ordered),
            "failed": self.failed,
            "errors": dict(self.errors),
            "seconds": round(seconds, 3),
            "requests_per_second": round(len(ordered) / seconds, 1),
            "rows_per_second": round(len(ordered) * rows_a_request / seconds, 1),
            "p50_ms": quantile_ms(ordered, 0.50),
            "p99_ms": quantile_ms(ordered, 0.99),
            "max_ms": quantile_ms(ordered, 1.0),
            "versions": self.versions,
            "by_version": dict(self.by_version),
            "went_back": self.went_back,
        }


def quantile_ms(ordered_ns: list[int], share: float) -> float | None:
    """Return the nearest-rank quantile of sorted nanoseconds, in milliseconds."""
    if not ordered_ns:
        return None
    index = min(len(ordered_ns) - 1, max(0, round(share * len(ordered_ns)) - 1))
    return round(ordered_ns[index] / 1e6, 3)


async def run(
    url: str, body: bytes, connections: int, seconds: float, stop: asyncio.Event,
    headers: Sequence[str] = (),
) -> tuple[Tally, float]:  # fmt: skip
    """Send until ``stop`` or ``seconds`` are over; returns the tally and the seconds it took."""
    tally = Tally()
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(_stop_after(seconds, stop), name="clock")
        for index in range(connections):
            group.create_task(_send(url, body, headers, tally, stop), name=f"connection-{index}")
    return tally, time.monotonic() - began


async def _stop_after(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        stop.set()


async def _send(
    url: str, body: bytes, headers: Sequence[str], tally: Tally, stop: asyncio.Event
) -> None:
    last_version, replaced = "", set[str]()
    while not stop.is_set():
        try:
            async with Connection(url, headers) as connection:
                while not stop.is_set():
                    began = time.monotonic_ns()
                    reply = await connection.post(body, REQUEST_TIMEOUT_S)
                    took = time.monotonic_ns() - began
                    if reply.status != 200:
                        tally.failure(
                            f"{reply.status}: {reply.body[:200].decode(errors='replace')}"
                        )
                        continue
                    version = reply.headers.get("x-ramrack-version", "?")
                    if version != last_version:
                        replaced.add(last_version)
                        last_version = version
                        tally.went_back += version in replaced
                    tally.success(took, version)
        except (OSError, TimeoutError) as error:
            tally.failure(f"{type(error).__name__}: {error}")
            # A server that is gone would otherwise be asked in a hot loop.
            await asyncio.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure as the arguments say and print one JSON object; 1 if any request failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="where to POST, such as http://HOST:PORT/v2/models/M/infer")
    parser.add_argument("body", type=Path, help="file with the request body")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=1, help="rows in the body, for rows/s")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent each time"
    )
    arguments = parser.parse_args(argv)
    tally, seconds = asyncio.run(_main(arguments))
    print(json.dumps(tally.report(seconds, arguments.rows)))
    return 1 if tally.failed else 0


async def _main(arguments: argparse.Namespace) -> tuple[Tally, float]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    body = await asyncio.to_thread(arguments.body.read_bytes)
    return await run(arguments.url, body, arguments.connections, arguments.seconds, stop,
                     arguments.header)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
