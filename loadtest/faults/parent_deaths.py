"""F2: the parent is killed while requests come and versions are uploaded."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Final

import httpx

from loadtest.faults.lab import PATIENCE_S, Fault, Lab, judge_recovery, judge_store
from loadtest.faults.outcome import Outcome
from loadtest.faults.packages import Packages
from loadtest.faults.server import FaultServer, is_alive
from loadtest.faults.steady import CLOSED, REFUSED, SteadyLoad, has_failed
from loadtest.lab.processes import LabFailed

_MOST_S: Final = 1.0
_LOADED_EVERY: Final = 5


@dataclass(slots=True)
class Acknowledged:
    """What the server said was done, whichever of its processes said it."""

    objects: dict[str, None] = field(default_factory=dict)
    versions: dict[int, str] = field(default_factory=dict)
    loaded: set[int] = field(default_factory=set)


def kill_parent(lab: Lab, outcome: Outcome) -> None:
    """Kill, wait until its workers are gone, start again, and look whether all is there."""
    choice = random.Random(3)
    said = Acknowledged()
    with lab.own_server(versions=(1,)) as server:
        server.publish_to_stay(lab.packages.spare(0))
        for turn in range(outcome.count):
            workers = server.worker_pids()
            with SteadyLoad(server.port, lab.rate, seed=turn) as load:
                load.wait_for(20)
                with Uploads(server, lab.packages, turn, said):
                    time.sleep(choice.random() * _MOST_S)
                    killed_ns = time.monotonic_ns()
                    server.kill()
                server.wait_until(
                    lambda pids=workers: not any(map(is_alive, pids)),  # type: ignore[misc]
                    PATIENCE_S, "the workers of a killed parent are gone",
                )  # fmt: skip
            _judge_load(outcome, load, killed_ns)
            began = time.monotonic()
            server.start()
            judge_recovery(lab, outcome, time.monotonic() - began)
            _judge_said(server, outcome, said)
        judge_store(server, outcome, said.objects)


class Uploads:
    """Publishes versions inside its block, and loads some; takes down what is acknowledged."""

    def __init__(
        self, server: FaultServer, packages: Packages, turn: int, said: Acknowledged
    ) -> None:
        self._server = server
        self._packages = packages
        self._turn = turn
        self._said = said
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads")
        self._failure: Exception | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if self._failure is not None:
            raise LabFailed(f"an upload was refused: {self._failure}")

    def _run(self) -> None:
        number = self._turn * 7
        try:
            while not self._stop.is_set():
                self._one(number)
                number += 1
        except httpx.TransportError:
            return
        except Exception as error:  # noqa: BLE001 - told by the thread that waits for this one
            self._failure = error

    def _one(self, number: int) -> None:
        package = self._packages.spare(number)
        for digest, path in package.objects.items():
            answer = self._server.call(
                "PUT", f"/admin/v1/blobs/{digest}", content=path.read_bytes()
            )
            if not answer.is_success:
                raise LabFailed(f"{answer.status_code} {answer.text[:200]}")
            self._said.objects[digest] = None
        document = self._server.must("POST", "/models/spare/versions", package.manifest)
        version = int(document["version"])
        self._said.versions[version] = document["digest"]
        if number % _LOADED_EVERY == 0:
            self._server.load("spare", version)
            self._said.loaded.add(version)


def _judge_load(outcome: Outcome, load: SteadyLoad, killed_ns: int) -> None:
    """Judge C and D: before the kill nothing fails, and after it nothing but in good order."""
    failures = [each for each in load.samples if has_failed(each)]
    outcome.requests += len(load.samples)
    outcome.failed += len(failures)
    odd = [
        each for each in failures
        if each.done_ns < killed_ns or each.reason not in (CLOSED, REFUSED)
    ]  # fmt: skip
    outcome.judge("C", not odd, f"{len(odd)} failed otherwise: {odd[0].reason if odd else ''}")
    cut = [each for each in failures if each.reason == CLOSED]
    outcome.figures["cut off"] = outcome.figures.get("cut off", 0) + len(cut)
    strangers = sum(not each.is_own for each in load.samples)
    outcome.judge("D", not strangers, f"{strangers} answers were not to their request")


def _judge_said(server: FaultServer, outcome: Outcome, said: Acknowledged) -> None:
    """Judge A: every version with its digest, and in memory what was."""
    found = server.versions("spare")
    lost = [v for v, digest in said.versions.items() if found.get(v, {}).get("digest") != digest]
    outcome.judge("A", not lost, f"versions {lost[:5]} are lost or changed")
    away = [v for v in said.loaded if found.get(v, {}).get("state") != "READY"]
    outcome.judge("A", not away, f"versions {away[:5]} were loaded and are not")
    state = server.versions("echo")[1]["state"]
    outcome.judge("A", state == "READY", f"echo/1 is {state}")


FAULTS: Final = (Fault("F2", "kill -9 the parent under load and upload", 50, kill_parent),)
