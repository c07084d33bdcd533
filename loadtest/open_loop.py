r"""Open-loop load on one path: requests start when they are meant to, answered or not.

Users do not wait for each other, so neither does this: a schedule fixed beforehand says when each
request starts, and its latency counts from that moment. A server that stalls is then seen as every
user in that time saw it; a closed loop would send less and report only the one request that waited.

Example: 500 requests a second for 10 seconds, as independent users come:

    python -m loadtest.open_loop http://127.0.0.1:8080/v1/models/fraud:predict request.json \
        --rate 500 --seconds 10 --arrivals poisson

Prints one JSON object. The most telling fields: "p50_ms" and "p99_ms" of the answers with a 2xx
status; "failed" with "errors" and "by_status", for what was refused, broken or timed out;
"intended_rate" beside "achieved_rate" and "answered_rate"; "client_cpu", the share of a core that
this program took (near 1 it is too busy to be believed); and "valid": whether at least 98 % of the
requests were started within 1 ms of when they were meant to. Numbers of a run that is not valid say
more about this program's machine than about the server. A token is taken from RAMRACK_TOKEN.

Exit code: 0 all answered; 1 a request failed; 2 wrong usage; 3 the run is not valid.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from loadtest.exchange import NO_ANSWER, Exchange, Exchanges
from loadtest.histogram import Latencies
from loadtest.plots import write_page
from loadtest.samples import write_samples
from loadtest.schedule import ARRIVALS, intended_starts_ns
from loadtest.target import Target, token_headers

ON_TIME_NS: Final = 1_000_000
ON_TIME_SHARE: Final = 0.98
_LEAD_NS: Final = 50_000_000
_MAX_KEPT_ERRORS: Final = 10
_MAX_WAIT_S: Final = 0.05
# Sleeping is exact to about this; what is nearer is waited for by looking again and again.
_SPIN_NS: Final = 80_000


@dataclass(slots=True)
class Recording:
    """Everything that one run saw. ``late_ns``: by how much each start missed its moment."""

    rate: float
    exchanges: list[Exchange] = field(default_factory=list)
    late_ns: array[int] = field(default_factory=lambda: array("q"))
    waited: int = 0
    most_open: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def failed(self) -> int:
        """Requests without a 2xx answer."""
        return sum(not _succeeded(each) for each in self.exchanges)

    @property
    def on_time_share(self) -> float:
        """Share of the starts that were within 1 ms of when they were meant to be."""
        if not self.late_ns:
            return 0.0
        return sum(late <= ON_TIME_NS for late in self.late_ns) / len(self.late_ns)

    @property
    def is_valid(self) -> bool:
        """Whether the requests were started when they were meant to."""
        return self.on_time_share >= ON_TIME_SHARE

    def report(self, window_s: float = 0.0) -> dict[str, object]:
        """Return what is printed; ``window_s`` above 0 adds the same by windows of that length."""
        succeeded = [each for each in self.exchanges if _succeeded(each)]
        latencies = Latencies(each.latency_ns for each in succeeded)
        summary = latencies.summary()
        span_s = _span_s(self.exchanges)
        report: dict[str, object] = {
            "valid": self.is_valid,
            "sent": len(self.exchanges),
            "succeeded": summary.pop("count"),
            "failed": len(self.exchanges) - len(succeeded),
            "errors": _bounded(Counter(each.reason for each in self.exchanges if each.reason)),
            "by_status": _by_status(self.exchanges),
            **summary,
            "intended_rate": self.rate,
            "achieved_rate": round(len(self.exchanges) / span_s, 1),
            "answered_rate": round(len(succeeded) / span_s, 1),
            "on_time_share": round(self.on_time_share, 4),
            "late_p99_ms": Latencies(self.late_ns).quantile_ms(99.0),
            "waited_for_connection": self.waited,
            "most_connections": self.most_open,
            "seconds": round(self.seconds, 3),
            "client_cpu": round(self.cpu_s / self.seconds, 3) if self.seconds else 0.0,
            "histogram": latencies.buckets(),
        }
        if window_s > 0:
            report["windows"] = list(_windows(self.exchanges, window_s))
        return report


def run(
    target: Target, starts_ns: Iterator[int], rate: float, *,
    connections: int = 16, most_connections: int = 1024, timeout_s: float = 10.0,
    watch: str = "", stops: Callable[[], int] = lambda: 0,
) -> Recording:  # fmt: skip
    """Send as scheduled and return the recording, once every request has ended.

    ``connections`` are opened first; where all are busy more are, up to ``most_connections``, and
    from then on requests wait here, which counts as their latency. ``stops`` above 0 ends the
    schedule; above 1 it ends what is under way, too.
    """
    recording = Recording(rate)
    cpu_began_s = time.process_time()
    with Exchanges(
        target, recording.exchanges.append,
        most=most_connections, timeout_s=timeout_s, watch=watch,
    ) as exchanges, _no_collection():  # fmt: skip
        exchanges.open(connections)
        began_ns = time.monotonic_ns() + _LEAD_NS
        for start_ns in starts_ns:
            intended_ns = began_ns + start_ns
            now_ns = time.monotonic_ns()
            while now_ns < intended_ns and not stops():
                left_ns = intended_ns - now_ns - _SPIN_NS
                exchanges.turn(min(_MAX_WAIT_S, left_ns / 1e9))
                now_ns = time.monotonic_ns()
            if stops():
                break
            recording.late_ns.append(now_ns - intended_ns)
            exchanges.start(intended_ns)
            # Answers are read between starts even where the starts are behind.
            if now_ns - intended_ns > _SPIN_NS:
                exchanges.turn(0)
        # Whatever is under way ends by its timeout at the latest.
        while exchanges.under_way and stops() < 2:
            exchanges.turn(_MAX_WAIT_S)
        exchanges.give_up("stopped")
        recording.waited, recording.most_open = exchanges.waited, exchanges.most_open
    recording.seconds = (time.monotonic_ns() - began_ns) / 1e9
    recording.cpu_s = time.process_time() - cpu_began_s
    return recording


@contextmanager
def _no_collection() -> Iterator[None]:
    """No pause of the garbage collector inside: it would make starts late."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _succeeded(exchange: Exchange) -> bool:
    return 200 <= exchange.status < 300


def _span_s(exchanges: Sequence[Exchange]) -> float:
    """Return the seconds from the first intended start to the last end; never 0."""
    if not exchanges:
        return 1e-9
    first = min(each.intended_ns for each in exchanges)
    return max(1, max(each.done_ns for each in exchanges) - first) / 1e9


def _by_status(exchanges: Sequence[Exchange]) -> dict[str, object]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for each in exchanges:
        groups[each.status].append(each.latency_ns)
    return {
        "none" if status == NO_ANSWER else str(status): Latencies(groups[status]).summary()
        for status in sorted(groups)
    }


def _bounded(reasons: Counter[str]) -> dict[str, int]:
    return dict(reasons.most_common(_MAX_KEPT_ERRORS))


def _windows(exchanges: Sequence[Exchange], window_s: float) -> Iterator[dict[str, object]]:
    """Yield a summary of each window of intended starts, in order."""
    groups: defaultdict[int, list[Exchange]] = defaultdict(list)
    first = min((each.intended_ns for each in exchanges), default=0)
    for each in exchanges:
        groups[int((each.intended_ns - first) / (window_s * 1e9))].append(each)
    for index in sorted(groups):
        succeeded = [each.latency_ns for each in groups[index] if _succeeded(each)]
        yield {
            "from_s": round(index * window_s, 3),
            "failed": len(groups[index]) - len(succeeded),
            **Latencies(succeeded).summary(),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments say, print one JSON object, return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        for path in (options.hgrm, options.hlog, options.html, options.samples):
            if path is not None and not path.absolute().parent.is_dir():
                raise ValueError(f"{path}: there is no folder {path.parent}")
        headers = [*options.header, *token_headers(os.environ)]
        target = Target.of(options.url, options.body.read_bytes(), headers)
        starts_ns = intended_starts_ns(
            options.rate, options.seconds, options.arrivals, options.seed
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with _stopping_on_signals() as stopped:
        recording = run(
            target, starts_ns, options.rate,
            connections=options.connections, most_connections=options.most_connections,
            timeout_s=options.timeout_s, watch=options.watch, stops=lambda: len(stopped),
        )  # fmt: skip
    print(json.dumps(recording.report(options.window_s)))
    if options.samples is not None:
        write_samples(options.samples, recording.exchanges)
    write_files(recording, options.url, hgrm=options.hgrm, hlog=options.hlog, page=options.html)
    return judged(recording)


def write_files(
    recording: Recording, title: str, *,
    hgrm: Path | None = None, hlog: Path | None = None, page: Path | None = None,
) -> None:  # fmt: skip
    """Write what was asked for: a distribution, a histogram log, a page with drawings."""
    answered = sorted(
        (each.intended_ns, each.latency_ns) for each in recording.exchanges if _succeeded(each)
    )
    latencies = Latencies(latency_ns for _, latency_ns in answered)
    if hgrm is not None:
        latencies.write_distribution(hgrm)
    if hlog is not None:
        latencies.write_log(hlog, recording.seconds)
    if page is not None:
        first = min((each.intended_ns for each in recording.exchanges), default=0)
        dots = [((at - first) / 1e9, latency / 1e6) for at, latency in answered]
        write_page(page, title, recording.report(), dots, latencies)


def judged(recording: Recording) -> int:
    """Return the exit code of a run, and say on stderr why it is not 0."""
    if not recording.is_valid:
        sys.stderr.write(
            f"not valid: only {recording.on_time_share:.1%} of the requests were started within "
            f"1 ms of when they were meant to; ask for less, or give this program a core\n"
        )
        return 3
    if recording.failed:
        sys.stderr.write(f"{recording.failed} of {len(recording.exchanges)} requests failed\n")
        return 1
    return 0


@contextmanager
def _stopping_on_signals() -> Iterator[list[int]]:
    """Give the signals that came, and leave their handlers as they were."""
    stopped: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.open_loop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="where to POST, such as http://HOST:PORT/v1/models/M:predict")
    add("body", metavar="BODY_FILE", type=Path, help="file with the request body")
    add("--rate", type=float, required=True, metavar="N", help="requests a second")
    add("--seconds", type=float, default=10.0, metavar="S", help="how long to send (default 10)")
    add("--arrivals", choices=ARRIVALS, default="poisson",
        help="constant: evenly; poisson: as independent users come (default)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of the poisson arrivals (default 0)")
    add("--connections", type=_at_least_1, default=16, metavar="N",
        help="opened before the first request (default 16)")  # fmt: skip
    add("--most-connections", type=_at_least_1, default=1024, metavar="N",
        help="opened in all while others are busy; then requests wait (default 1024)")  # fmt: skip
    add("--timeout-s", type=float, default=10.0, metavar="S",
        help="a request without an answer by then has failed (default 10)")  # fmt: skip
    add("--header", action="append", default=[], metavar="'NAME: VALUE'",
        help="sent with each request; may be repeated")  # fmt: skip
    add("--window-s", type=float, default=0.0, metavar="S",
        help="report each window of this length as well")  # fmt: skip
    add("--hgrm", type=Path, metavar="FILE", help="write the distribution for HdrHistogram plots")
    add("--hlog", type=Path, metavar="FILE", help="write the histogram as an HdrHistogram log")
    add("--html", type=Path, metavar="FILE", help="write a page with drawings of the run")
    add("--samples", type=Path, metavar="FILE", help="write a line for each request")
    add("--watch", default="", metavar="NAME", help="answer header to put into the samples")
    return parser


def _at_least_1(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number from 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
