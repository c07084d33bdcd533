"""A server that may be killed and started again: same store, same addresses, another process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from loadtest.faults.packages import Package
from loadtest.lab.processes import LabFailed, free_port, log_end
from loadtest.lab.ramrack import RAMRACK

SERVE: Final = (str(RAMRACK), "serve")
WORKERS: Final = 2
MAX_RUN_S: Final = 2.0
QUEUE_ROWS: Final = 256
STOP_TIMEOUT_S: Final = 30.0
_START_TIMEOUT_S: Final = 120.0
_CALL_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.02
_ALL: Final = 1_000_000


class FaultServer:
    """Starts and ends one server after another over one store; at most one lives at a time."""

    def __init__(
        self, work: Path, command: Sequence[str] = SERVE, store: Path | None = None
    ) -> None:
        self.store = store or work / "store"
        self.log = work / "ramrack.log"
        self.port, self._admin_port = free_port(), free_port()
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        # Reading the machine's certificates for each call would cost more than the call.
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{self._admin_port}", trust_env=False,
            timeout=_CALL_TIMEOUT_S, limits=httpx.Limits(max_keepalive_connections=0),
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id of the parent."""
        return self._running().pid

    def start(self) -> None:
        """Start, and wait until it is ready and every worker serves."""
        settings: dict[str, object] = {
            "store": self.store, "port": self.port, "admin_port": self._admin_port,
            "workers": WORKERS, "max_run_s": MAX_RUN_S, "queue_rows": QUEUE_ROWS,
            "stop_timeout_s": STOP_TIMEOUT_S, "log_format": "json",
        }  # fmt: skip
        passed = {key: value for key, value in os.environ.items() if not key.startswith("RAMRACK_")}
        passed |= {f"RAMRACK_{key.upper()}": str(value) for key, value in settings.items()}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self._command), env=passed, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # Ctrl-C reaches the whole foreground group; the bench itself ends its server.
                start_new_session=True,
            )  # fmt: skip
        self.wait_until(self.is_whole, _START_TIMEOUT_S, "the server serves")

    def kill(self) -> None:
        """End the parent at once; what becomes of its workers is theirs."""
        process = self._running()
        process.kill()
        process.wait()

    def terminate(self) -> None:
        """Ask for a stop and return at once."""
        self._running().terminate()

    def exit_code(self, timeout_s: float) -> int | None:
        """Wait for the end; None where it did not come."""
        try:
            return self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End it in order, and by force if it does not; one that is gone already is fine."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            if self.exit_code(STOP_TIMEOUT_S + 15) is None:
                self._process.kill()
        self._process.wait()

    def is_whole(self) -> bool:
        """Whether the server says that it is ready, and all of its workers serve."""
        ready = self.call("GET", "/v2/health/ready").status_code == 200
        return ready and all(worker["state"] == "serving" for worker in self.workers())

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Look until ``condition`` holds; return after how many seconds. Raises LabFailed."""
        began = time.monotonic()
        while True:
            try:
                if condition():
                    return time.monotonic() - began
            except httpx.TransportError:
                if self._running().poll() is not None:
                    raise LabFailed(f"the server is gone: {log_end(self.log)}") from None
            if time.monotonic() - began > timeout_s:
                raise LabFailed(f"not within {timeout_s:g} s: {what}; {log_end(self.log)}")
            time.sleep(_LOOK_S)

    def call(self, method: str, path: str, body: object = None, **options: Any) -> httpx.Response:
        """Send one request to the admin plane, on a connection of its own."""
        return self._client.request(method, path, json=body, **options)

    def must(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Do the same below ``/admin/v1``; return the answer, raise LabFailed if it is not 2xx."""
        return good(self.call(method, f"/admin/v1{path}", body))

    def workers(self) -> list[dict[str, Any]]:
        """Return what the admin plane says of each worker slot."""
        found: list[dict[str, Any]] = self.must("GET", "/workers")["workers"]
        return found

    def worker_pids(self) -> list[int]:
        """Return the pids of the workers that live."""
        return [worker["pid"] for worker in self.workers() if worker["pid"] is not None]

    def publish(self, package: Package) -> dict[str, Any]:
        """Upload and register one version; return what the server answered."""
        for digest, path in package.objects.items():
            good(self.call("PUT", f"/admin/v1/blobs/{digest}", content=path.read_bytes()))
        return self.must("POST", f"/models/{package.model}/versions", package.manifest)

    def publish_to_stay(self, package: Package) -> int:
        """Publish the first version of a model and let no later one replace an old one."""
        version = int(self.publish(package)["version"])
        self.must("PUT", f"/models/{package.model}/settings", {"retain": _ALL})
        return version

    def serve(self, package: Package) -> int:
        """Publish and load one version; return its number."""
        version = int(self.publish(package)["version"])
        self.load(package.model, version)
        return version

    def load(self, model: str, version: int) -> None:
        """Load a version and wait for it."""
        self.must("POST", f"/models/{model}/versions/{version}:load?wait=90")

    def route(self, model: str, version: int) -> None:
        """Send what names no version to this one."""
        self.must("PUT", f"/models/{model}/route", {"split": [{"version": version, "weight": 100}]})

    def versions(self, model: str) -> dict[int, dict[str, Any]]:
        """Return all versions of a model by their number; none where there is no model."""
        answer = self.call("GET", f"/admin/v1/models/{model}")
        found = {} if answer.status_code == 404 else good(answer)
        return {int(each["version"]): each for each in found.get("versions", ())}

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that carry these labels."""
        wanted = {f'{key}="{text}"' for key, text in labels.items()}
        total = 0.0
        for line in self.call("GET", "/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            given, _, rest = series.partition("{")
            if given == name and wanted <= set(rest.rstrip("}").split(",")):
                total += float(value)
        return total

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LabFailed("the server was never started")
        return self._process


@contextmanager
def fault_server(
    work: Path, command: Sequence[str] = SERVE, store: Path | None = None
) -> Iterator[FaultServer]:
    """Return a server that serves; whatever lives of it at the end is ended."""
    server = FaultServer(work, command, store)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def good(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON of a 2xx answer; raises LabFailed with the text of any other."""
    if not answer.is_success:
        request = answer.request
        raise LabFailed(
            f"{request.method} {request.url.path}: {answer.status_code} {answer.text[:300]}"
        )
    found: dict[str, Any] = answer.json() if answer.content else {}
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def ended_of(pids: Sequence[int], count: int, timeout_s: float) -> list[int]:
    """Return those that ended, as soon as they are ``count`` or the time is over.

    A process that was killed runs on until the kernel has taken it apart, for as long as it holds
    memory to give back.
    """
    end = time.monotonic() + timeout_s
    while True:
        ended = [pid for pid in pids if not is_alive(pid)]
        if len(ended) >= count or time.monotonic() > end:
            return ended
        time.sleep(_LOOK_S)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
