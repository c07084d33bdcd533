"""The files of deploy/ before the tools that read them; a tool that is not there is skipped.

scripts/test-deploy fetches what is missing and runs all of this.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from onnx import TensorProto

from serving.cli.service_units import Service, units
from tests.contract.ports import free_port
from tests.deploy.files import DEPLOY, ROOT
from tests.graphs import identity
from tests.process.server import infer_body, running_server, wait_until

FETCHED = ROOT / ".ramrack/tools"
# 0 is a service that may do nothing; a unit without any bounds has 96.
MOST_EXPOSED = 20


def tool(name: str) -> str:
    """Return the path of a tool, or skip the test."""
    for folder in ("usr/bin", "usr/sbin", "check/bin"):
        if (FETCHED / folder / name).is_file():
            return str(FETCHED / folder / name)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: scripts/test-deploy fetches it")
    return found


def ran(*command: str, cwd: Path = ROOT) -> str:
    """Run a tool, and return what it said; fail with that where it is not content."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# Prometheus


def test_promtool_takes_rules_and_configuration() -> None:
    """Both parse, and every query in them is one."""
    promtool = tool("promtool")
    for name in ("prometheus.yml", "compose.yml"):
        ran(promtool, "check", "config", "--syntax-only", name, cwd=DEPLOY / "prometheus")
    ran(promtool, "check", "rules", "rules.yml", cwd=DEPLOY / "prometheus")


@pytest.mark.slow
def test_alerts_fire_when_they_shall_and_only_then() -> None:
    """The unit tests of the rules."""
    ran(tool("promtool"), "test", "rules", "tests.yml", cwd=DEPLOY / "prometheus")


@pytest.mark.slow
@pytest.mark.process
def test_promtool_has_nothing_to_say_of_the_page(tmp_path: Path) -> None:
    """Prometheus' own parser and its rules for names, on the page of a real server."""
    promtool = tool("promtool")
    with running_server(tmp_path) as server:
        server.push("m", identity(TensorProto.FLOAT, ("N", 4)))
        assert server.infer("m", [[1.0, 2.0, 3.0, 4.0]]).status_code == 200
        page = server.admin("GET", "/metrics").text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


# systemd


def test_systemd_takes_the_units_and_finds_them_closed(tmp_path: Path) -> None:
    """No unknown line, and little that the service could do to the machine."""
    analyze = tool("systemd-analyze")
    for name, text in units(Service(program=sys.executable)).items():
        (tmp_path / name).write_text(text)
    said = ran(analyze, "verify", "--man=no", str(tmp_path / "ramrack.service"))
    assert "ramrack" not in said
    ran(analyze, "security", "--offline=yes", f"--threshold={MOST_EXPOSED}",
        str(tmp_path / "ramrack.service"))  # fmt: skip


# Schemas


def test_compose_is_of_its_schema() -> None:
    """The published schema of compose files."""
    ran(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec",
        str(DEPLOY / "compose.yaml"))  # fmt: skip


@pytest.mark.slow
def test_kubernetes_takes_its_files() -> None:
    """The published schemas of Kubernetes, no field unknown."""
    ran(tool("kubernetes-validate"), "--strict", str(DEPLOY / "kubernetes/ramrack.yaml"))


# nginx


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[str]:
    """Run nginx with the file of deploy/, on a free port and before another server."""
    program, openssl = tool("nginx"), tool("openssl")
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    ran(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
        "-subj", "/CN=localhost", "-keyout", key, "-out", cert)  # fmt: skip
    port = free_port()
    text = (DEPLOY / "nginx/ramrack.conf").read_text("utf-8")
    for old, new in (
        ("127.0.0.1:8080", upstream),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/ramrack.crt", cert),
        ("/etc/ssl/private/ramrack.key", key),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    places = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # As root nginx would give its workers another user, who may not read what a test wrote.
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}\ndaemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        f"worker_processes 1;\nevents {{ worker_connections 256; }}\n"
        f"http {{ access_log off;\n{places}\ninclude {folder}/site.conf; }}\n"
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e",
               str(folder / "error.log")]  # fmt: skip
    ran(*command, "-t")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.process
def test_nginx_passes_everything_on(tmp_path: Path) -> None:
    """TLS, ids, errors of the server, and bodies too large for any buffer, in both directions."""
    with running_server(tmp_path, settings={"max_body_bytes": "24MiB"}) as server:
        server.push("m", identity(TensorProto.FLOAT, ("N", 4)))
        with (
            nginx(tmp_path, server.url.removeprefix("http://")) as url,
            httpx.Client(base_url=url, verify=False, trust_env=False, timeout=60) as client,
        ):
            wait_until(
                lambda: client.get("/v2/health/live").status_code == 200, 60, "nginx answers"
            )
            answer = client.post("/v2/models/m/infer", json=infer_body([[1.0, 2.0, 3.0, 4.0]]))
            assert answer.json()["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]
            assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
            for sent, said in (("order-7", "order-7"), ("order 7", "[0-9a-f]{32}"),
                               ("a" * 129, "[0-9a-f]{32}")):  # fmt: skip
                live = client.get("/v2/health/live", headers={"x-request-id": sent})
                assert re.fullmatch(said, live.headers["x-request-id"])
            assert answer.headers["x-ramrack-version"] == "1"
            unknown = client.post("/v2/models/none/infer", json={})
            assert (unknown.status_code, list(unknown.json())) == (404, ["error"])
            rows = [[0.5] * 4] * 400_000
            large = client.post("/v2/models/m/infer", json=infer_body(rows))
            assert large.status_code == 200
            assert len(large.content) > 4_000_000
            refused = client.post("/v2/models/m/infer", content=b"[" + b" " * (25 << 20) + b"]")
            assert refused.status_code == 413
            assert "max_body_bytes" in refused.text or "bytes" in refused.json()["error"]
            assert client.post("/v2/repository/index").status_code == 404


@pytest.mark.slow
@pytest.mark.process
def test_nginx_waits_for_no_copy_of_a_body(tmp_path: Path) -> None:
    """The server learns of a slow upload while it comes: its own deadline ends it."""
    with running_server(tmp_path, settings={"body_timeout_s": 1}) as server:
        server.push("m", identity(TensorProto.FLOAT, ("N", 4)))
        with nginx(tmp_path, server.url.removeprefix("http://")) as url:
            port = int(url.rpartition(":")[2])
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

            def connected() -> ssl.SSLSocket | None:
                try:
                    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
                except ConnectionRefusedError:
                    return None
                return context.wrap_socket(raw)

            deadline = time.monotonic() + 60
            while (client := connected()) is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            with client:
                lines = ("POST /v2/models/m/infer HTTP/1.1", "host: x", "content-length: 100")
                client.sendall("\r\n".join([*lines, "", "{"]).encode())
                assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
