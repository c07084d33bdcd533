"""F6-cut: an object is cut short in its own file, and every worker reads what is gone at once.

A read of a mapped page beyond the end of its file ends the process (SIGBUS): nobody is left, and
whoever comes next must not map the same again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from loadtest.faults.blackout import Blackout, black_out
from loadtest.faults.damage import mend
from loadtest.faults.echo import Sample
from loadtest.faults.lab import (
    PATIENCE_S,
    RECOVERED_S,
    Fault,
    Lab,
    judge_recovery,
    judge_store,
    settled,
    watched,
)
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer, good
from loadtest.faults.worker_deaths import judge_collateral

_TABLE, _DENSE = "cut-table", "cut-dense"
_DAMAGED: Final = "what was packed is damaged"
_TIMEOUT_S: Final = 30.0
_PAGE_BYTES: Final = 4096
_ROW_BYTES: Final = 64
# Other kernels add in another order; of weights that are not the right ones it is the value itself.
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class _Victim:
    """A loaded version, and the object to cut. ``body``: a request that reads the object's end.

    ``is_packed``: the server made the object of what was published. ``answer``: what is right.
    """

    model: str
    version: int
    path: Path
    body: dict[str, Any]
    is_packed: bool
    answer: Sequence[float] = ()

    @property
    def at(self) -> str:
        return f"/models/{self.model}/versions/{self.version}"

    @property
    def request(self) -> bytes:
        body = json.dumps(self.body).encode()
        head = f"POST /v2{self.at}/infer HTTP/1.1\r\nhost: loopback\r\ncontent-length: {len(body)}"
        return head.encode("ascii") + b"\r\n\r\n" + body


def cut_in_place(lab: Lab, outcome: Outcome) -> None:
    """Cut an object under all workers ``count`` times: in turn one as published, one as packed."""
    dice = random.Random(61)
    blackouts = []
    with lab.own_server() as server:
        victims = _victims(lab, server, outcome)
        with watched(lab, server, outcome, is_planned=False) as watch:
            for turn in range(outcome.count):
                victim = victims[turn % len(victims)]
                whole = victim.path.read_bytes()
                blackouts.append(_cut(lab, server, outcome, victim, dice))
                _judge_version(lab, server, outcome, victim)
                _load_again(server, victim, whole)
                outcome.judge(
                    "A", _asked(server, victim) == victim.answer,
                    f"{victim.model} does not answer as it did before it was cut",
                )  # fmt: skip
            # Their first requests warm the new workers up as those before them were.
            watch.load.wait_for(lab.warm_requests)
        judge_collateral(outcome, watch.load.samples, blackouts)
        _judge_first_answers(lab, outcome, watch.load.samples, blackouts)
        judge_store(server, outcome)


def _victims(lab: Lab, server: FaultServer, outcome: Outcome) -> list[_Victim]:
    """Load a table, which is mapped as it was published, and weights that are packed first.

    Leaves out the latter, with a note, where the server finds that packing does not pay here.
    """
    folder = server.store / "objects"
    found = []
    for model in (_TABLE, _DENSE):
        package = lab.packages.read(model)
        version = int(server.publish(package)["version"])
        before = set(folder.iterdir())
        _load(server, model, version)
        is_packed = model == _DENSE
        published = {folder / each.partition(":")[2] for each in package.objects}
        objects = set(folder.iterdir()) - before if is_packed else published
        if not objects:
            outcome.notes.append(
                f"nothing was packed: {server.versions(model)[version]['weights']}"
            )
            continue
        path = max(objects, key=lambda each: each.stat().st_size)
        body = _all_layers(package.manifest) if is_packed else _last_row(path)
        victim = _Victim(model, version, path, body, is_packed)
        found.append(replace(victim, answer=_asked(server, victim)))
    return found


def _all_layers(manifest: dict[str, Any]) -> dict[str, Any]:
    width = int(manifest["signature"]["inputs"][0]["shape"][1])
    data = [index % 7 / 7 for index in range(width)]
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, width], "data": data}]}


def _last_row(table: Path) -> dict[str, Any]:
    last = table.stat().st_size // _ROW_BYTES - 1
    return {"inputs": [{"name": "index", "datatype": "INT64", "shape": [1], "data": [last]}]}


def _cut(
    lab: Lab, server: FaultServer, outcome: Outcome, victim: _Victim, dice: random.Random
) -> Blackout:
    """Cut the object, have all workers read its end, and wait until others serve."""
    before = set(server.worker_pids())
    # What was packed may end with bytes that no run reads.
    most_bytes = victim.path.stat().st_size // 2 if victim.is_packed else victim.path.stat().st_size
    size_bytes = dice.randrange(most_bytes - _PAGE_BYTES)

    def cut() -> None:
        victim.path.chmod(0o600)
        os.truncate(victim.path, size_bytes)

    blackout = black_out(server, victim.request, cut)
    answered = [each for each in blackout.answers if each.startswith(b"HTTP/1.1 200")]
    outcome.judge(
        "D", not answered, f"{len(answered)} answers of {victim.model} are of bytes that were gone"
    )
    server.wait_until(
        lambda: server.is_whole() and not before & set(server.worker_pids()),
        PATIENCE_S, "all workers are back",
    )  # fmt: skip
    judge_recovery(lab, outcome, (time.monotonic_ns() - blackout.began_ns) / 1e9)
    return blackout


def _judge_version(lab: Lab, server: FaultServer, outcome: Outcome, victim: _Victim) -> None:
    """Judge A: FAILED by its digest if it was published; else it answers without the cache.

    At the respawn, not by the look for evicted pages that comes every half minute.
    """
    patience_s = RECOVERED_S if lab.is_timed else PATIENCE_S

    def seen() -> dict[str, Any]:
        return server.versions(victim.model)[victim.version]

    if not victim.is_packed:
        failed = settled(server, lambda: seen()["state"] == "FAILED", patience_s)
        outcome.judge(
            "A", failed and victim.path.name in seen()["reason"],
            f"the version whose object was cut is {seen()['state']}: {seen()['reason']}",
        )  # fmt: skip
        return
    is_left = settled(server, lambda: seen()["weights"]["reason"].startswith(_DAMAGED), patience_s)
    outcome.judge("A", is_left, "a version still goes by what was packed of it and is cut")
    is_right = settled(server, lambda: _is_near(_asked(server, victim), victim.answer), PATIENCE_S)
    outcome.judge("A", is_right, f"{victim.model} does not answer right without what was packed")


def _load_again(server: FaultServer, victim: _Victim, whole: bytes) -> None:
    """Have the right bytes back: as a push uploads them, or packed again by the next load."""
    if victim.is_packed:
        server.must("POST", f"{victim.at}:unload?wait=60")
    else:
        mend(server, victim.path, whole)
    _load(server, victim.model, victim.version)


def _load(server: FaultServer, model: str, version: int) -> None:
    """Load without the route that a load makes of none: what is routed cannot be unloaded."""
    server.load(model, version)
    if server.must("GET", f"/models/{model}")["route"] is not None:
        server.must("DELETE", f"/models/{model}/route")


def _judge_first_answers(
    lab: Lab, outcome: Outcome, samples: Sequence[Sample], blackouts: Sequence[Blackout]
) -> None:
    """Judge H on when the other version answered again, from the request that ended the workers."""
    for blackout in blackouts:
        seconds = blackout.first_answer_s(samples)
        outcome.judge("H", seconds is not None, "no request was answered after all workers died")
        if lab.is_timed and seconds is not None:
            longest = max(seconds, outcome.figures.get("first answer s", 0.0))
            outcome.figures["first answer s"] = longest
            outcome.judge("H", seconds <= RECOVERED_S, f"the first answer took {seconds:.1f} s")


def _asked(server: FaultServer, victim: _Victim) -> list[float]:
    url = f"http://127.0.0.1:{server.port}/v2{victim.at}/infer"
    answer = httpx.post(url, json=victim.body, timeout=_TIMEOUT_S, trust_env=False)
    numbers: list[float] = good(answer)["outputs"][0]["data"]
    return numbers


def _is_near(found: Sequence[float], right: Sequence[float]) -> bool:
    return all(abs(a - b) <= _TOLERANCE for a, b in zip(found, right, strict=True))


FAULTS: Final = (Fault("F6-cut", "objects cut in place, read by every worker", 20, cut_in_place),)
