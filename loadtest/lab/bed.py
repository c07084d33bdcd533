"""The test bed: cores, a folder, models, our server and its contenders, all up at the same time.

All serve the same graphs from the same core and are measured in turn, so that a change in the
machine's speed meets each of them; who is not measured is idle.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from loadtest.lab.bodies import Tensor, as_json
from loadtest.lab.claims import Findings, spread
from loadtest.lab.generators import Load, Measured, closed_loop, open_loop
from loadtest.lab.machine import two_cores
from loadtest.lab.processes import LabFailed, Launch, free_port, serving
from loadtest.lab.ramrack import Ramrack, ramrack

ROOT: Final = Path(__file__).resolve().parent.parent.parent
_PEERS: Final = ROOT / "loadtest" / "peers"
# Where the generator takes more of its core than this, it may be what was measured.
_BUSY_CLIENT: Final = 0.9
# One late start of fewer would be more than the share that may be late.
_LEAST_STARTS: Final = 200
_OPEN_LOOPS: Final = 5


@dataclass(slots=True)
class Bed:
    """What a scenario needs. ``urls``, ``pids``: of each contender by name."""

    findings: Findings
    work: Path
    server_cores: Collection[int]
    client_cores: Collection[int]
    rounds: int
    seconds: float
    table_mib: int
    index: dict[str, dict[str, Any]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    server: Ramrack | None = None

    @property
    def ours(self) -> Ramrack:
        """Our server; raises LabFailed before it was started."""
        if self.server is None:
            raise LabFailed("our server was not started")
        return self.server

    def body(self, name: str, data: bytes) -> Path:
        """Keep a body as a file for the generators."""
        path = self.work / f"{name}.body"
        path.write_bytes(data)
        return path

    def load(self, contender: str, model: str, body: Path, *headers: str) -> Load:
        """Return the load of ``body`` on one contender."""
        return Load(f"{self.urls[contender]}/v2/models/{model}/infer", body, headers)

    def closed(self, load: Load, connections: int, seconds: float | None = None) -> Measured:
        """Measure one closed loop."""
        owner = next((n for n, url in self.urls.items() if load.url.startswith(url + "/")), "")
        return closed_loop(
            load, connections, seconds or self.seconds, self.client_cores, self.work,
            self.pids.get(owner),
        )  # fmt: skip

    def open(self, load: Load, rate: float, what: str) -> dict[str, Any]:
        """Measure one open loop, anew where the generator was late; a few times at most.

        Raises LabFailed where nothing was answered.
        """
        seconds = max(2.0, self.seconds, _LEAST_STARTS / rate)
        for _ in range(_OPEN_LOOPS):
            seen = open_loop(load, rate, seconds, self.client_cores)
            if seen["p99_ms"] is None:
                raise LabFailed(f"{what}: nothing was answered: {seen['errors']}")
            if seen["valid"]:
                return seen
        self.findings.late(f"{what}: the generator was late")
        return seen

    def in_turn(
        self, title: str, measures: Mapping[str, Callable[[], Measured]]
    ) -> dict[str, list[Measured]]:
        """Measure each once a round, the first one another each time, and print the table."""
        seen: dict[str, list[Measured]] = {name: [] for name in measures}
        names = list(measures)
        for number in range(self.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seen[name].append(measures[name]())
        self.findings.say(f"{title}, {self.rounds} rounds of {self.seconds:g} s:")
        for name, results in seen.items():
            self._show(title, name, results)
        return seen

    def _show(self, title: str, name: str, results: Sequence[Measured]) -> None:
        cpu = max(result.client_cpu for result in results)
        failed = sum(result.failed for result in results)
        self.findings.say(
            f"  {name:<22} req/s {spread([r.rate for r in results])}, "
            f"p50 {spread([r.p50_ms for r in results])} ms, "
            f"p99 {spread([r.p99_ms for r in results])} ms, "
            f"server {spread([r.server_cpu for r in results])} of a core, "
            f"client {cpu:.0%} ({results[0].generator})" + (f", {failed} FAILED" if failed else "")
        )
        if cpu > _BUSY_CLIENT:
            self.findings.doubt(f"{title}, {name}: the generator took {cpu:.0%} of its core")
        if failed:
            self.findings.doubt(f"{title}, {name}: {failed} requests failed")
        self.findings.measured[f"{title}: {name}"] = [
            {"rate": r.rate, "p50_ms": r.p50_ms, "p99_ms": r.p99_ms, "failed": r.failed,
             "client_cpu": r.client_cpu, "server_cpu": r.server_cpu, "generator": r.generator}
            for r in results
        ]  # fmt: skip

    def compare_answers(self, model: str, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        """Raise LabFailed unless all contenders answer the same numbers to the same body."""
        body = as_json(tensors)
        expected = self._numbers("ramrack", model, body)
        for name in names:
            numbers = self._numbers(name, model, body)
            if numbers.keys() != expected.keys() or any(
                abs(one - other) > 1e-4 * max(1.0, abs(other))
                for output, values in expected.items()
                for one, other in zip(numbers[output], values, strict=True)
            ):
                raise LabFailed(f"{name} answers {model} with other numbers than ramrack")

    def answer(self, contender: str, model: str, body: bytes) -> bytes:
        """Return what a contender answers; raises LabFailed where that is no 200."""
        answer = httpx.post(
            f"{self.urls[contender]}/v2/models/{model}/infer", content=body, trust_env=False,
            timeout=60, headers={"content-type": "application/json"},
        )  # fmt: skip
        if answer.status_code != 200:
            raise LabFailed(f"{contender}: {answer.status_code} {answer.text[:300]}")
        return answer.content

    def get(self, contender: str, path: str) -> dict[str, Any]:
        """Return the JSON that a contender answers to a GET; raises LabFailed for no 200."""
        answer = httpx.get(f"{self.urls[contender]}{path}", trust_env=False, timeout=60)
        if answer.status_code != 200:
            raise LabFailed(f"{contender}: {answer.status_code} {answer.text[:300]}")
        found: dict[str, Any] = answer.json()
        return found

    def _numbers(self, contender: str, model: str, body: bytes) -> dict[str, list[float]]:
        outputs = json.loads(self.answer(contender, model, body))["outputs"]
        return {output["name"]: output["data"] for output in outputs}


@contextmanager
def bed(
    findings: Findings, *, rounds: int, seconds: float, table_mib: int
) -> Iterator[Bed]:  # fmt: skip
    """Return an empty bed in a folder that is removed afterwards."""
    parent = ROOT / ".ramrack" / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    server_cores, client_cores = two_cores()
    if server_cores == client_cores:
        findings.doubt("one usable core only: server and generator share it")
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Bed(
            findings, Path(folder), server_cores, client_cores,
            rounds=rounds, seconds=seconds, table_mib=table_mib,
        )  # fmt: skip


def make_models(bed: Bed, names: Sequence[str], *options: str) -> None:
    """Build the models into the bed."""
    only = [part for name in names for part in ("--only", name)]
    bed.findings.say(f"building models: {', '.join(names)}")
    done = subprocess.run(
        [sys.executable, "-m", "models.zoo.bench", str(bed.work / "models"), *only, *options],
        cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabFailed(f"building the models failed: {done.stderr.strip()[-500:]}")
    bed.index = json.loads((bed.work / "models" / "bench.json").read_text("utf-8"))


def start_ours(bed: Bed, stack: ExitStack, models: Mapping[str, str]) -> None:
    """Start our server with its defaults on the one core, and load ``models``: file by name."""
    bed.findings.say("starting ramrack serve --workers 1, loading " + ", ".join(models))
    bed.server = stack.enter_context(ramrack(bed.server_cores, bed.work, "--workers", "1"))
    bed.urls["ramrack"], bed.pids["ramrack"] = bed.server.url, bed.server.pid
    for name, path in models.items():
        bed.server.push(name, path, "--load")


def start_contender(bed: Bed, stack: ExitStack, name: str, script: str, *options: str) -> None:
    """Start one of the small servers in loadtest/peers on the server's core."""
    port = free_port()
    launch = Launch(
        [sys.executable, str(_PEERS / script), "--port", str(port), *options],
        port, bed.server_cores, bed.work / f"{name.replace(' ', '-')}.log", probe="/nothing",
    )  # fmt: skip
    bed.findings.say(f"starting {name}")
    bed.pids[name] = stack.enter_context(serving(launch)).pid
    bed.urls[name] = f"http://127.0.0.1:{port}"


def warm(bed: Bed, loads: Sequence[Load]) -> None:
    """Send each load for a moment, so that nobody's first requests are measured."""
    for load in loads:
        with contextlib.suppress(LabFailed):
            bed.closed(load, 4, 1.0)
