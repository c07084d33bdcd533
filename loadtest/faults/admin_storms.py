"""F14 and F20: many callers change the same things at once."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import httpx

from loadtest.faults.lab import Fault, Lab, judge_store, watched
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer, good

_CALLERS: Final = 8
_STATES: Final = {"load": "READY", "unload": "UNLOADED"}
# What a caller is told whose change another caller undid.
_ALLOWED: Final = frozenset({200, 409})


@dataclass(frozen=True, slots=True)
class Call:
    """One load or unload, and how it was answered."""

    kind: str
    status: int
    began_ns: int
    ended_ns: int
    text: str


def storm(lab: Lab, outcome: Outcome) -> None:
    """Load and unload one version from eight callers, and hold the end to the last answer."""
    with lab.serving() as server:
        _serve_storm(lab, server)
        version = 2
        path = f"/admin/v1/models/storm/versions/{version}"

        def caller(number: int) -> list[Call]:
            choice = random.Random(number)
            return [_call(server, path, choice.choice(list(_STATES))) for _ in range(calls)]

        calls = max(1, outcome.count // _CALLERS)

        def first() -> None:
            with ThreadPoolExecutor(_CALLERS) as callers:
                kinds = [*_STATES] * (_CALLERS // 2)
                list(callers.map(lambda kind: _call(server, path, kind), kinds))

        with watched(lab, server, outcome, first=first) as watch:
            with ThreadPoolExecutor(_CALLERS) as callers:
                made = [call for some in callers.map(caller, range(_CALLERS)) for call in some]
            _judge_end(server, outcome, made, path)
            good(server.call("POST", f"{path}:load?wait=60"))
            watch.load.wait_for(10)
        codes = Counter(call.status for call in made)
        outcome.figures["409"] = codes[409]
        odd = [call for call in made if call.status not in _ALLOWED]
        outcome.judge(
            "B", not odd, f"{len(odd)} of {len(made)} calls: {odd[0].status} {odd[0].text}"
            if odd else "",
        )  # fmt: skip
        judge_store(server, outcome)


def _serve_storm(lab: Lab, server: FaultServer) -> None:
    """Have a model whose second version nothing holds."""
    if not server.versions("storm"):
        for number in (1, 2):
            server.serve(lab.packages.read(f"storm-{number}"))


def _call(server: FaultServer, path: str, kind: str) -> Call:
    began_ns = time.monotonic_ns()
    answer = server.call("POST", f"{path}:{kind}?wait=60")
    return Call(kind, answer.status_code, began_ns, time.monotonic_ns(), answer.text[:200])


def _judge_end(server: FaultServer, outcome: Outcome, made: list[Call], path: str) -> None:
    """Judge A: the version is as the last call said that was answered well.

    Calls that overlap with the last one may have been done after it: then any of them may be it.
    """
    done = [call for call in made if call.status == 200]
    last = max(done, key=lambda call: call.ended_ns, default=None)
    if last is None:
        outcome.judge("A", is_held=False, why="no call was answered well")
        return
    may_be = {_STATES[call.kind] for call in done if call.ended_ns >= last.began_ns}
    state = good(server.call("GET", path))["state"]
    outcome.judge("A", state in may_be, f"the version is {state}, the last call said {may_be}")


def collect(lab: Lab, outcome: Outcome) -> None:
    """Let gc run against an upload, a load and a delete; what was acknowledged must be whole."""
    with lab.serving() as server:
        _serve_storm(lab, server)
        server.publish_to_stay(lab.packages.spare(0))
        said: dict[str, None] = {}
        refused = 0

        def race(turn: int) -> tuple[httpx.Response, int | None]:
            with ThreadPoolExecutor(3) as threads:
                gc = threads.submit(server.call, "POST", "/admin/v1/gc", {})
                publishing = threads.submit(_publish, server, lab, turn)
                threads.submit(_reload, server, turn).result()
                return gc.result(), publishing.result()

        with watched(lab, server, outcome, first=lambda: race(0)):
            for turn in range(outcome.count):
                package = lab.packages.spare(turn)
                gc, version = race(turn)
                outcome.judge("B", gc.status_code == 200, f"gc: {gc.status_code} {gc.text[:200]}")
                if version is None:
                    refused += 1
                    continue
                lost = [d for d in package.objects if _is_lost(server, d)]
                outcome.judge("A", not lost, f"gc took {len(lost)} objects of a version in use")
                if turn % 2:
                    # The next gc has something to take while its objects come again.
                    server.must("DELETE", f"/models/spare/versions/{version}")
                else:
                    said |= dict.fromkeys(package.objects)
        outcome.figures["refused"] = refused
        outcome.judge("B", refused < max(1, outcome.count // 2), f"{refused} uploads were refused")
        judge_store(server, outcome, said)
        _clear(server)


def _publish(server: FaultServer, lab: Lab, turn: int) -> int | None:
    """Return the version, or None where gc took an object before a version named it."""
    package = lab.packages.spare(turn)
    for digest, path in package.objects.items():
        good(server.call("PUT", f"/admin/v1/blobs/{digest}", content=path.read_bytes()))
    answer: httpx.Response = server.call(
        "POST", f"/admin/v1/models/{package.model}/versions", package.manifest
    )
    if 400 <= answer.status_code < 500:
        return None
    return int(good(answer)["version"])


def _reload(server: FaultServer, turn: int) -> None:
    """Take a version out and in again; every tenth time, for that takes longest."""
    if turn % 10 == 0:
        server.must("POST", "/models/storm/versions/2:unload?wait=60")
        server.load("storm", 2)


def _is_lost(server: FaultServer, digest: str) -> bool:
    return server.call("HEAD", f"/admin/v1/blobs/{digest}").status_code != 200


def _clear(server: FaultServer) -> None:
    for version in server.versions("spare"):
        server.must("DELETE", f"/models/spare/versions/{version}")
    server.must("POST", "/gc")


FAULTS: Final = (
    Fault("F14", "one version loaded and unloaded by 8 callers", 8 * 256, storm),
    Fault("F20", "gc against upload against load", 500, collect),
)
