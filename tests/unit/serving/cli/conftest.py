"""A small server on loopback that speaks the admin and data JSON, so that the real client runs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from serving.cli import main

WHOLE = {"split": [{"version": 1, "weight": 100}], "shadow": []}
DIGEST = "sha256:" + "d" * 64


def version_document(model: str, version: int, state: str = "UNLOADED") -> dict[str, Any]:
    return {
        "model": model, "version": version, "state": state, "reason": "", "digest": DIGEST,
        "published": "2026-01-02T03:04:05Z", "created": "", "meta": {}, "source": {},
        "signature": {}, "runtime": {"name": "onnx"}, "parity": None, "aliases": [], "traffic": 0,
        "is_previous": False, "load_s": 0.25, "batching": None, "weights": None,
        "memory": {"disk_bytes": 2048, "shared_bytes": 0, "private_bytes_per_worker": 1024},
    }  # fmt: skip


class FakeServer:
    """State of a server with one model; ``answers`` overrides any call for one test."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, list[dict[str, Any]]] = {}
        self.calls: list[tuple[str, str, dict[str, list[str]], Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.url = ""
        self.lock = threading.Lock()
        self.was_polled = threading.Event()

    def add_version(self, model: str, state: str = "UNLOADED") -> dict[str, Any]:
        versions = self.versions.setdefault(model, [])
        versions.append(version_document(model, len(versions) + 1, state))
        return versions[-1]

    def find(self, model: str, version: str) -> dict[str, Any]:
        return self.versions[model][int(version) - 1]

    def model(self, name: str) -> dict[str, Any]:
        return {"name": name, "versions": self.versions[name], "aliases": {}, "route": None}

    def respond(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if queued := self.answers.get((method, path)):
                return queued.pop(0) if len(queued) > 1 else queued[0]
            for verb, pattern, handler in ROUTES:
                match = re.fullmatch(pattern, path)
                if verb == method and match:
                    return handler(self, body, *match.groups())
        return 404, {"error": f"no path {path}"}


def head_blob(server: FakeServer, _body: bytes, digest: str) -> tuple[int, dict[str, Any]]:
    return (200 if digest in server.objects else 404), {}


def put_blob(server: FakeServer, body: bytes, digest: str) -> tuple[int, dict[str, Any]]:
    if digest != "sha256:" + hashlib.sha256(body).hexdigest():
        return 400, {"error": "the bytes are not what the digest says"}
    server.objects[digest] = body
    return 201, {}


def register(server: FakeServer, body: bytes, model: str) -> tuple[int, dict[str, Any]]:
    manifest = json.loads(body)
    needed = {manifest["graph"], *(entry["digest"] for entry in manifest["tensors"])}
    if missing := sorted(needed - set(server.objects)):
        return 409, {"error": "objects are missing", "missing": missing}
    version = server.add_version(model)
    return 201, {"model": model, "version": version["version"], "digest": DIGEST, "created": True}


def operate(
    server: FakeServer, _body: bytes, model: str, version: str, kind: str
) -> tuple[int, dict[str, Any]]:
    server.find(model, version)["state"] = "READY" if kind == "load" else "UNLOADED"
    return 200, operation(kind, "succeeded")


def operation(kind: str, state: str, reason: str = "") -> dict[str, Any]:
    return {"id": "op1", "kind": kind, "model": "m", "version": 1, "state": state,
            "progress": 0.5, "stage": "warming up", "reason": reason}  # fmt: skip


def put_route(server: FakeServer, body: bytes, model: str) -> tuple[int, dict[str, Any]]:
    wish = json.loads(body)
    for version in server.versions[model]:
        version["traffic"] = 0
    for part in wish.get("split", ()):
        server.find(model, str(part["version"]))["traffic"] = part["weight"]
    return 200, {"model": model, "split": wish.get("split", []), "shadow": [],
                 "latest": wish.get("latest", False), "previous": WHOLE, "etag": "e"}  # fmt: skip


Handler = Callable[..., tuple[int, dict[str, Any]]]
ROUTES: list[tuple[str, str, Handler]] = [
    ("HEAD", "/admin/v1/blobs/(.+)", head_blob),
    ("PUT", "/admin/v1/blobs/(.+)", put_blob),
    ("POST", "/admin/v1/models/([^/]+)/versions", register),
    ("POST", r"/admin/v1/models/([^/]+)/versions/(\d+):(load|unload)", operate),
    ("GET", "/admin/v1/models",
     lambda s, _: (200, {"models": [s.model(name) for name in s.versions]})),
    ("GET", "/admin/v1/models/([^/]+)", lambda s, _, m: (200, s.model(m))),
    ("GET", r"/admin/v1/models/([^/]+)/versions/(\d+)", lambda s, _, m, v: (200, s.find(m, v))),
    ("PUT", "/admin/v1/models/([^/]+)/aliases/([^/]+)",
     lambda s, b, m, a: (200, {"model": m, "alias": a, "previous": None} | json.loads(b))),
    ("DELETE", "/admin/v1/models/([^/]+)/aliases/([^/]+)",
     lambda s, b, m, a: (200, {"model": m, "alias": a, "version": None, "previous": 1})),
    ("PUT", "/admin/v1/models/([^/]+)/route", put_route),
    ("GET", "/v2/health/live", lambda s, _: (200, {"live": True})),
    ("GET", "/admin/v1/workers",
     lambda s, _: (200, {"workers": [{"slot": 0, "pid": 7, "state": "READY", "reason": ""}]})),
    ("GET", "/admin/v1/memory", lambda s, _: (200, {
        "budget_bytes": 4096, "committed_bytes": 1024, "free_bytes": 3072, "versions": []})),
    ("GET", "/metrics", lambda s, _: (200, "")),
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A fake server on a free loopback port."""
    fake = FakeServer()

    class RequestHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet for head and body; two would wait for each other on a busy machine.
        wbufsize = -1

        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            query = parse_qs(parts.query)
            fake.calls.append((self.command, parts.path, query, body))
            if "/operations/" in parts.path:
                fake.was_polled.set()
            fake.headers.append({key.lower(): value for key, value in self.headers.items()})
            status, document = fake.respond(self.command, parts.path, query, body)
            text = document if isinstance(document, str) else json.dumps(document)
            content = b"" if self.command == "HEAD" else text.encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            held = fake.objects.get(parts.path.rpartition("/")[2], b"")
            length = len(held) if self.command == "HEAD" else len(content)
            self.send_header("content-length", str(length))
            self.send_header("x-ramrack-version", "7")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the base's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    fake.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    try:
        yield fake
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@pytest.fixture
def ramrack(server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    """Run a command against the fake server; returns exit code, stdout, stderr."""
    monkeypatch.setenv("RAMRACK_URL", server.url)
    monkeypatch.setenv("RAMRACK_ADMIN_URL", server.url)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run
