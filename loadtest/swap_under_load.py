"""What comes and goes beside it must not be felt: a small model's p99 while others load and unload.

First: a table of 2 GB, 0.5 GB of dense weights and a forest of 3 million nodes are loaded and
unloaded while a small model gets a steady 200 requests a second; its p99 in each phase is held
against the p99 before. Each round publishes a new version, so that each load is a first one.

Then: the small model's traffic moves between two versions a thousand times. No request may fail,
and once a change was answered no request sent after it may get the version before.

The server is `ramrack serve` with its defaults, on all usable cores but the one of the generator.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.exchange import Exchange
from loadtest.histogram import Latencies
from loadtest.lab.bed import Bed, bed, make_models
from loadtest.lab.bodies import as_json, table_rows
from loadtest.lab.claims import Findings, Target, number
from loadtest.lab.generators import Load, open_loop_command
from loadtest.lab.machine import machine_lines
from loadtest.lab.processes import LabFailed, on_cores
from loadtest.lab.ramrack import Ramrack, ramrack
from loadtest.open_loop import ON_TIME_NS, ON_TIME_SHARE
from loadtest.samples import read_samples

HEAVY: Final = {
    "recommender": "a table of {} MiB",
    "dense": "{} MiB of MatMul weights",
    "forest": "a forest of {} nodes",
}
_SIZES: Final = {"recommender": 2048, "dense": 512, "forest": 3_000_000}
_LEAST: Final = {"recommender": 1, "dense": 16, "forest": 2**14}
_MOST_S: Final = 3600.0
# A phase goes on for this long after its end, for what is cleaned up behind it.
_SETTLE_S: Final = 0.5
_WAIT_S: Final = 900
_SMALL: Final = "fraud"


@dataclass(frozen=True, slots=True)
class Phase:
    """A span of time, in ns of the monotonic clock."""

    name: str
    began_ns: int
    ended_ns: int

    def latencies(self, samples: Sequence[Exchange]) -> Latencies:
        """Return the latencies of the requests that were meant to start in it."""
        return Latencies(
            each.latency_ns for each in samples if self.began_ns <= each.intended_ns < self.ended_ns
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the route to ``version``, from the call to its answer."""

    version: str
    began_ns: int
    ended_ns: int


def went_back(samples: Sequence[Exchange], first: str, changes: Sequence[Change]) -> int:
    """Count answers by a version that no route named between their request and their answer.

    ``first`` is routed before the first change; ``changes`` are in order and do not overlap.
    """
    count = 0
    done = 0
    for each in sorted(samples, key=lambda sample: sample.sent_ns):
        while done < len(changes) and changes[done].ended_ns <= each.sent_ns:
            done += 1
        allowed = {changes[done - 1].version if done else first}
        for change in changes[done:]:
            if change.began_ns > each.done_ns:
                break
            allowed.add(change.version)
        count += each.status == 200 and each.watched not in allowed
    return count


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 if a target was missed."""
    options = _parser().parse_args(argv)
    findings = Findings("swap")
    for line in machine_lines():
        findings.say(line)
    rounds, swaps, scale = options.rounds, options.swaps, options.scale
    if options.quick:
        rounds, swaps, scale = 1, min(swaps, 50), scale / 32
    sizes = {name: max(_LEAST[name], round(size * scale)) for name, size in _SIZES.items()}
    heavy = options.only or list(HEAVY)
    with bed(findings, rounds=rounds, seconds=options.seconds,
             table_mib=sizes["recommender"]) as here:  # fmt: skip
        here.server_cores = os.sched_getaffinity(0) - set(here.client_cores) or here.client_cores
        make_models(here, (_SMALL, *heavy), "--recommender-mib", str(sizes["recommender"]),
                    "--dense-mib", str(sizes["dense"]),
                    "--forest-nodes", str(sizes["forest"]))  # fmt: skip
        findings.say("starting ramrack serve")
        with ramrack(here.server_cores, here.work) as server:
            load = _small(here, server)
            for name in heavy:
                _beside(here, server, load, name, HEAVY[name].format(sizes[name]), options.rate)
            if swaps:
                _swap(here, server, load, swaps, options.rate)
    return findings.finish(options.json)


def _small(here: Bed, server: Ramrack) -> Load:
    """Publish both versions of the small model, loaded, the first one routed."""
    for path in here.index[_SMALL]["push"]:
        server.push(_SMALL, path, "--load")
    sample = Path(here.index[_SMALL]["sample"])
    body = here.body(_SMALL, as_json(table_rows(sample, 1)))
    return Load(f"{server.url}/v2/models/{_SMALL}/infer", body)


def _beside(
    here: Bed, server: Ramrack, load: Load, name: str, what: str, rate: float
) -> None:  # fmt: skip
    """Load and unload one heavy model beside the small one, round by round."""
    findings = here.findings
    findings.say(f"\n== {what}")
    findings.is_late = False
    ratios: dict[str, list[float]] = {"load": [], "unload": []}
    notes = dict.fromkeys(ratios, "")
    failed = 0
    for number_of_round in range(here.rounds):
        path = here.index[name]["push"][0]
        version = server.push(name, path, "--meta", f"round={number_of_round}")
        samples, phases = _phases(here, server, load, name, version, rate)
        failed += sum(each.status != 200 for each in samples)
        before = phases[0].latencies(samples)
        for phase in phases:
            seen = phase.latencies(samples)
            findings.say(
                f"  round {number_of_round + 1}, {phase.name:<7} "
                f"{(phase.ended_ns - phase.began_ns) / 1e9:6.2f} s, {len(seen):>5} requests, "
                f"p50 {seen.quantile_ms(50)} ms, p99 {seen.quantile_ms(99)} ms, "
                f"max {seen.quantile_ms(100)} ms"
            )
            if phase.name in ratios:
                ratios[phase.name].append(_p99(seen) / _p99(before))
                notes[phase.name] = f"last p99 {_p99(seen)} ms, before {_p99(before)} ms"
    for kind, values in ratios.items():
        findings.claim(f"small model's p99 during the {kind} of {what}, against before",
                       Target("<=", 1.5), values, notes[kind])  # fmt: skip
    findings.claim(f"failed requests beside {what}", Target("<=", 0, ""), [failed])


def _phases(
    here: Bed, server: Ramrack, load: Load, name: str, version: int, rate: float
) -> tuple[list[Exchange], list[Phase]]:
    phases: list[Phase] = []

    def phase(title: str, act: Callable[[], object]) -> None:
        began_ns = time.monotonic_ns()
        act()
        phases.append(Phase(title, began_ns, time.monotonic_ns()))

    def settled(act: Callable[[], object]) -> None:
        act()
        time.sleep(_SETTLE_S)

    at = f"/models/{name}/versions/{version}"
    with _steady(here, load, rate) as samples:
        phase("before", lambda: time.sleep(here.seconds))
        phase("load", lambda: settled(lambda: server.must("POST", f"{at}:load?wait={_WAIT_S}")))
        phase("loaded", lambda: time.sleep(here.seconds / 2))
        server.must("DELETE", f"/models/{name}/route")
        phase("unload", lambda: settled(lambda: server.must("POST", f"{at}:unload?wait={_WAIT_S}")))
    return samples, phases


def _swap(here: Bed, server: Ramrack, load: Load, swaps: int, rate: float) -> None:
    """Move the route to and fro while requests come."""
    findings = here.findings
    findings.say(f"\n== {swaps} swaps at {rate:g} requests a second")
    findings.is_late = False
    changes: list[Change] = []
    with _steady(here, load, rate) as samples:
        before_ns = time.monotonic_ns()
        time.sleep(here.seconds)
        for count in range(swaps):
            version = 2 - count % 2
            began_ns = time.monotonic_ns()
            server.must(
                "PUT", f"/models/{_SMALL}/route", {"split": [{"version": version, "weight": 100}]}
            )
            changes.append(Change(str(version), began_ns, time.monotonic_ns()))
        ended_ns = time.monotonic_ns()
        time.sleep(1.0)
    took = Latencies(each.ended_ns - each.began_ns for each in changes)
    before = Phase("before", before_ns, changes[0].began_ns).latencies(samples)
    during = Phase("swaps", changes[0].began_ns, ended_ns).latencies(samples)
    findings.say(
        f"  a change takes p50 {took.quantile_ms(50)} ms, p99 {took.quantile_ms(99)} ms; "
        f"requests: p99 {during.quantile_ms(99)} ms, before {before.quantile_ms(99)} ms"
    )
    failed = [each for each in samples if each.status != 200]
    none = Target("<=", 0, "")
    sent = f"of {len(samples)} requests"
    findings.claim(f"requests that failed in {swaps} swaps", none, [len(failed)], sent)
    back = went_back(samples, "1", changes)
    findings.claim("answers by a version that was replaced before", none, [back], sent)


@contextmanager
def _steady(here: Bed, load: Load, rate: float) -> Iterator[list[Exchange]]:
    """Send ``rate`` requests a second inside; the list is filled when the block has ended."""
    path = here.work / "steady.tsv"
    samples: list[Exchange] = []
    command = open_loop_command(
        load, rate, _MOST_S, "--samples", str(path), "--watch", "x-ramrack-version"
    )
    with on_cores(here.client_cores):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    try:
        # The first requests of a process are not like the others.
        time.sleep(1.0)
        yield samples
        process.terminate()
        _, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        with contextlib.suppress(ValueError):
            process.communicate()
    if not path.is_file():
        raise LabFailed(f"the generator failed: {errors.strip()[-300:]}")
    samples.extend(read_samples(path))
    path.unlink()
    late = sum(each.sent_ns - each.intended_ns > ON_TIME_NS for each in samples)
    if late > (1 - ON_TIME_SHARE) * len(samples):
        here.findings.late(
            f"the generator was late for {late / len(samples):.1%} of its requests, "
            f"target {number(100 * (1 - ON_TIME_SHARE))} %"
        )


def _p99(latencies: Latencies) -> float:
    found = latencies.quantile_ms(99)
    if found is None:
        raise LabFailed("a phase had no request: use a higher --rate")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench swap", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="one round, 1/32 of the sizes, 50 swaps: a look")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rounds", type=int, default=3, metavar="N", help="loads and unloads of each (default 3)")
    add("--seconds", type=float, default=5.0, metavar="S", help="measured before (default 5)")
    add("--scale", type=float, default=1.0, metavar="X", help="size of the heavy models")
    add("--rate", type=float, default=200.0, metavar="N", help="requests a second (default 200)")
    add("--swaps", type=int, default=1000, metavar="N", help="changes of the route (default 1000)")
    add("--only", action="append", choices=list(HEAVY), help="only this one; may be repeated")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
