"""A real server for tests: started on free ports with a store of its own, stopped by its pid."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import onnx

from models.convert.onnx_file import package_onnx

ROOT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 45.0


class RunningServer:
    """A started server. ``logs``: every JSON line of its stderr so far; ``text``: all others.

    ``headers``: what each request to the admin plane carries, such as a token.
    """

    def __init__(self, process: subprocess.Popen[str], store: Path) -> None:
        self.process = process
        self.store = store
        self.logs: list[dict[str, Any]] = []
        self.text: list[str] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="server log")
        self._reader.start()
        self.url = ""
        self.admin_url = ""
        self.headers: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """Process id of the parent."""
        return self.process.pid

    def worker_pids(self) -> list[int]:
        """Return the pids of the live workers, in the order of their slots."""
        workers = self.admin("GET", "/admin/v1/workers").json()["workers"]
        return [w["pid"] for w in workers if w["pid"] is not None]

    def workers(self) -> list[dict[str, Any]]:
        """Return what the admin plane says of the workers."""
        found: list[dict[str, Any]] = self.admin("GET", "/admin/v1/workers").json()["workers"]
        return found

    def admin(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request to the admin plane, on a connection of its own."""
        headers = {**self.headers, **options.pop("headers", {})}
        return _request(method, self.admin_url + path, timeout=90, headers=headers, **options)

    def data(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request to the data plane, on a connection of its own."""
        return _request(method, self.url + path, timeout=30, **options)

    def push(self, name: str, model: onnx.ModelProto, *, is_loading: bool = True) -> int:
        """Publish an ONNX graph under a name, load it, and return its version."""
        package = package_onnx(name, model)
        for item in package.objects:
            body = b"".join(item.chunks())
            self.expect(self.admin("PUT", f"/admin/v1/blobs/{item.digest}", content=body))
        answer = self.admin(
            "POST", f"/admin/v1/models/{name}/versions", json=package.manifest.to_json()
        )
        version: int = self.expect(answer)["version"]
        if is_loading:
            self.expect(self.load(name, version))
        return version

    def load(self, name: str, version: int, wait_s: float = 60) -> httpx.Response:
        """Load a version and return the answer that the end of the load gave."""
        path = f"/admin/v1/models/{name}/versions/{version}:load"
        return self.admin("POST", path, params={"wait": wait_s})

    def infer(self, name: str, rows: list[list[float]], **options: Any) -> httpx.Response:
        """Ask a graph of one FP32 input ``x`` on the data plane."""
        return self.data("POST", f"/v2/models/{name}/infer", json=infer_body(rows), **options)

    @staticmethod
    def expect(answer: httpx.Response) -> dict[str, Any]:
        """Return the JSON of a good answer; raise AssertionError with the text of any other."""
        assert answer.status_code < 300, f"{answer.status_code}: {answer.text}"
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def wait_for_log(self, message: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Return the next log record with ``message``; raise AssertionError if it does not come."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                record = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                record = None
            if record is None:
                raise AssertionError(f"no log {message!r}:\n{self.stderr()}")
            if record.get("message") == message:
                return record

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server says ready and every worker serves."""
        wait_until(
            lambda: (
                self.admin("GET", "/v2/health/ready").status_code == 200
                and all(w["state"] == "serving" for w in self.workers())
            ),
            timeout_s,
            "the server is ready",
        )

    def stderr(self) -> str:
        """Return all that the server has written to stderr."""
        return "\n".join([*self.text, *(json.dumps(record) for record in self.logs)])

    def signal(self, number: int) -> None:
        """Send a signal to the parent."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end of the parent; return its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def stop(self) -> int:
        """Stop in order, as a service manager does; return the exit code."""
        if self.process.returncode is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait()
            raise AssertionError(f"the server did not stop:\n{self.stderr()}") from None

    def _read(self) -> None:
        assert self.process.stderr is not None
        # The pipe ends when the last process that holds it ends: parent and workers.
        for line in self.process.stderr:
            try:
                record = json.loads(line)
            except ValueError:
                self.text.append(line.rstrip())
                continue
            self.logs.append(record)
            self._lines.put(record)
        self._lines.put(None)


@contextlib.contextmanager
def running_server(
    folder: Path,
    *,
    workers: int = 1,
    settings: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    module: str = "serving",
    is_waiting: bool = True,
) -> Iterator[RunningServer]:
    """Start the real server with its store in ``folder`` and free ports; stop it at the end.

    ``settings``: names of settings and their values. ``environ``: more variables.
    ``module``: what ``python -m`` runs.
    ``is_waiting``: return only when the server and all workers are ready.
    """
    server = start_server(
        folder, workers=workers, settings=settings, environ=environ, module=module
    )
    try:
        where = server.wait_for_log("listening")
        server.url, server.admin_url = where["url"], where["admin_url"]
        if is_waiting:
            server.wait_until_ready()
        yield server
    finally:
        server.stop()


def start_server(
    folder: Path,
    *,
    workers: int = 1,
    settings: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    module: str = "serving",
) -> RunningServer:
    """Start the server and return at once; the caller stops it."""
    values = {
        "store": folder / "store",
        "port": 0,
        "admin_port": 0,
        "workers": workers,
        "log_format": "json",
        **(settings or {}),
    }
    passed = {k: v for k, v in os.environ.items() if not k.startswith("RAMRACK_")}
    passed |= environ or {}
    passed |= {f"RAMRACK_{key.upper()}": str(value) for key, value in values.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=passed,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell starts a command: a Ctrl-C goes to this whole group and to nobody else.
        process_group=0,
    )
    return RunningServer(process, Path(str(values["store"])))


def _request(method: str, url: str, **options: Any) -> httpx.Response:
    # Reading the machine's certificates costs 50 ms a call, and nothing here speaks TLS.
    return httpx.request(method, url, trust_env=False, verify=False, **options)


def infer_body(rows: list[list[float]]) -> dict[str, Any]:
    """Return the V2 request of one FP32 input ``x``."""
    data = [value for row in rows for value in row]
    shape = [len(rows), len(rows[0])]
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]}


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Ask again until ``condition`` holds; the one place of the tests that waits for a process."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {timeout_s:g} s: {what}")
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's own children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def process_exists(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
