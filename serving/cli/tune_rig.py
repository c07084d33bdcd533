"""Servers of ``ramrack tune`` itself: their own store and ports, ended whatever happens.

No server that was there before is asked for anything but, with ``--apply``, the last step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.package import Package
from registry.errors import InvalidInput
from serving.cli.interrupt import INTERRUPT
from serving.cli.load_run import Load, run_load
from serving.cli.tune_search import Found, OutOfTime, Probe, highest_rate
from serving.cli.tune_space import DEFAULTS, Candidate
from serving.client.admin import AdminClient
from serving.client.errors import ClientError
from serving.client.push import push_package

if TYPE_CHECKING:
    from loadtest.wire.forms import Request

_START_S: Final = 120.0
_WARM_S: Final = 0.4
# A p99 of up to this many targets is looked at twice.
_NEAR: Final = 3
_BUSY_CLIENT: Final = 0.85
# A rate that is far too high must not cost more time than this many targets a request.
_TIMEOUT_TARGETS: Final = 10
# The server ends with us even where we are killed: the kernel tells it, and it stops in order.
_GUARD: Final = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "sys.exit(1) if os.getppid() != int(sys.argv[1]) else os.execv(sys.argv[2], sys.argv[2:])\n"
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly one candidate is measured."""

    seconds: float
    factor: float
    most_probes: int


@dataclass(slots=True)
class Rig:
    """Measures candidates one after the other on one copy of the version.

    ``make_request``: gives a request for the server at a URL. ``prepare`` comes before the rest.
    """

    work: Path
    package: Package
    target_ms: float
    make_request: Callable[[str], Request]
    seed: int = 0
    _request: Request | None = None
    _is_pushed: bool = False
    # What the last start of a server took: nothing is begun that could not be measured.
    _start_s: float = 0.0

    def prepare(self) -> float:
        """Load the version for the first time, which packs it for this machine; returns seconds.

        Raises what says that it cannot be served here, or that no request can be made.
        """
        began_s = time.monotonic()
        with self._serving(DEFAULTS) as url:
            self._request = self.make_request(url)
        return time.monotonic() - began_s

    def measure(
        self, candidate: Candidate, start: float, effort: Effort, budget_s: float, until_s: float
    ) -> Found:  # fmt: skip
        """Return the highest rate of a server with these settings.

        ``start``: the rate to begin with; 0: guessed from how long one request takes.
        ``budget_s``: seconds for it once its server is up. ``until_s``: the monotonic clock, after
        which no probe begins. Raises OutOfTime where none could.
        """
        began_s = time.monotonic()
        if began_s + self._start_s + effort.seconds >= until_s:
            raise OutOfTime
        with self._serving(candidate) as url:
            up_s = time.monotonic()
            self._start_s = up_s - began_s
            until_s = min(until_s, up_s + budget_s)
            warm = self._run(url, start / 2 if start else 20.0, _WARM_S)
            if not start:
                start = 300.0 / max(0.05, float(str(warm["p50_ms"] or self.target_ms)))

            def probe(rate: float) -> Probe:
                if time.monotonic() + effort.seconds > until_s:
                    raise OutOfTime
                # Enough requests that a p99 is more than the slowest of a few.
                seconds = max(effort.seconds, min(4 * effort.seconds, 50 / rate))
                seen = self._probe(self._run(url, rate, seconds))
                is_near = seen.p99_ms is not None and seen.p99_ms <= _NEAR * self.target_ms
                if not seen.is_within and is_near and time.monotonic() + seconds <= until_s:
                    # One bad moment of the machine is not what the server can do.
                    seen = self._probe(self._run(url, rate, seconds))
                return seen

            return highest_rate(probe, start, factor=effort.factor, most_probes=effort.most_probes)

    def _run(self, url: str, rate: float, seconds: float) -> dict[str, object]:
        request = self._request
        if request is None:
            raise InvalidInput("the rig was not prepared")
        self.seed += 1
        load = Load(
            url + request.path, request.body, request.headers, rate, seconds, seed=self.seed,
            timeout_s=max(0.5, self.target_ms * _TIMEOUT_TARGETS / 1000),
        )  # fmt: skip
        report, is_stopped = run_load(load)
        if is_stopped:
            raise KeyboardInterrupt
        return report

    def _probe(self, report: dict[str, object]) -> Probe:
        p99 = report["p99_ms"]
        is_within = report["failed"] == 0 and isinstance(p99, int | float) and p99 <= self.target_ms
        is_busy = float(str(report["client_cpu"])) > _BUSY_CLIENT and not report["valid"]
        return Probe(
            is_within, float(p99) if isinstance(p99, int | float) else None,
            is_limited=is_busy and not is_within,
        )  # fmt: skip

    @contextmanager
    def _serving(self, candidate: Candidate) -> Iterator[str]:
        """Run a server with these settings, the version loaded; give its data plane's address."""
        from loadtest.lab.processes import stop

        config = self.work / "ramrack.toml"
        config.write_text(
            "".join(f"{name} = {value:g}\n" for name, value in candidate.server_settings().items()),
            encoding="utf-8",
        )
        log = self.work / "server.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", _GUARD, str(os.getpid()), sys.executable, "-m",
                 "serving.cli", "serve", "--config", str(config),
                 "--store", str(self.work / "store"), "--port", "0", "--admin-port", "0",
                 "--log-format", "json"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self.work,
                env={k: v for k, v in os.environ.items() if not k.startswith("RAMRACK_")},
                # Ctrl-C is ours alone: we end it in order.
                start_new_session=True,
            )  # fmt: skip
        try:
            url, admin_url = _addresses(process, log)
            with AdminClient.connect(admin_url, before_request=INTERRUPT.check) as client:
                self._prepare(client, candidate)
            yield url
        finally:
            stop(process)

    def _prepare(self, client: AdminClient, candidate: Candidate) -> None:
        _wait_until_ready(client)
        name = self.package.manifest.model
        if not self._is_pushed:
            pushed = push_package(client, self.package)
            client.load(name, pushed.version, timeout_s=_START_S * 5)
            self._is_pushed = True
        client.set_settings(name, {"batching": None if candidate.batching else False})


@contextmanager
def rig(
    parent: Path | None, package: Package, target_ms: float, make_request: Callable[[str], Request]
) -> Iterator[Rig]:  # fmt: skip
    """Give a Rig whose folder is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ramrack-tune-", dir=parent) as folder:
        yield Rig(Path(folder), package, target_ms, make_request)


def _addresses(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """Return where the server listens, once it says so in its log."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        lines = log.read_text("utf-8", errors="replace").splitlines()
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("message") == "listening":
                return record["url"], record["admin_url"]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise InvalidInput(f"a server to try did not start: {_end_of(log)}")


def _wait_until_ready(client: AdminClient) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            client.http.call("GET", "/v2/health/ready")
            if all(worker["state"] == "serving" for worker in client.workers()):
                return
        except ClientError as error:
            if error.status not in (None, 503):
                raise
        time.sleep(0.05)
    raise InvalidInput(f"a server to try was not ready within {_START_S:g} s")


def _end_of(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-2:])[-400:] if lines else "it said nothing"
