"""The health check of a container asks the server that is there, as its settings describe it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from serving import healthcheck
from tests.contract.ports import free_port


@contextmanager
def server(status: int, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """Answer everything with a status; yield port and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        if context is not None:
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening.server_port, asked
        listening.shutdown()
        thread.join()


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run the check in an empty folder with settings from the environment."""
    monkeypatch.chdir(tmp_path)

    def run(**settings: object) -> int:
        for name, value in settings.items():
            monkeypatch.setenv(f"RAMRACK_{name.upper()}", str(value))
        return healthcheck.main()

    return run


def test_a_server_on_all_addresses_and_another_port_is_found(check: Callable[..., int]) -> None:
    """The setting that a container has, and a port that is not the default."""
    with server(200) as (port, asked):
        assert check(host="0.0.0.0", port=port) == 0
    assert asked == ["/v2/health/live"]


def test_the_settings_file_of_the_folder_counts(check: Callable[..., int], tmp_path: Path) -> None:
    """As for the server itself."""
    with server(200) as (port, _):
        (tmp_path / "ramrack.toml").write_text(f"port = {port}\n")
        assert check() == 0


def test_a_server_that_speaks_tls_is_healthy(check: Callable[..., int], tmp_path: Path) -> None:
    """Its certificate names whom others call; the check calls loopback."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: it makes the certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", "/CN=models.example.org", "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with server(200, context) as (port, asked):
        assert check(port=port, tls_cert=cert, tls_key=key) == 0
    assert asked == ["/v2/health/live"]


def test_a_server_that_is_ill_or_gone_is_not_healthy(
    check: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is on stderr, where the engine keeps it."""
    with server(503) as (port, _):
        assert check(port=port) == 1
    assert "status 503" in capsys.readouterr().err
    assert check(port=free_port()) == 1
    assert "refused" in capsys.readouterr().err
    assert check(port="none") == 1
    assert "RAMRACK_PORT" in capsys.readouterr().err
