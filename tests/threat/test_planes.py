"""Who may ask for what on both planes, names as paths, URLs, and what errors and logs give away."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from serving.admin.table import CALLS
from serving.data.guard import OPEN_PATHS
from tests import graphs
from tests.cases.rig import ROW, digest_of, manifest_of, says_too_much
from tests.contract.wire import connected, head_of, read_answer
from tests.process.server import RunningServer, infer_body, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
OWNER: Final = "owner-0f3a-never-shown"
SCOPES: Final = ("read", "push", "promote", "admin", "infer")
VERBS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
PAYLOAD: Final = 87654.25
# Health, and the console's page and files, which show nothing without a token of their own.
OPEN: Final = frozenset(call.path for call in CALLS if not call.scope)


def secret_of(scope: str) -> str:
    return f"only-{scope}-never-shown"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for tokens on both planes: one with all scopes, one for each scope."""
    folder = tmp_path_factory.mktemp("planes")
    config = folder / "ramrack.toml"
    tokens = [
        f'[[tokens]]\nname = "{scope}er"\nscopes = ["{scope}"]\n'
        f'sha256 = "{hashlib.sha256(secret_of(scope).encode()).hexdigest()}"\n'
        for scope in SCOPES
    ]
    config.write_text("".join(tokens), encoding="utf-8")
    settings = {"admin_token": OWNER, "config": config, "data_auth": "token",
                "access_log": "all", "log_level": "debug"}  # fmt: skip
    with running_server(folder, settings=settings, is_waiting=False) as running:
        running.headers = bearer(OWNER)
        running.wait_until_ready()
        running.push("witness", graphs.id32())
        yield running


@pytest.fixture(scope="module")
def callers(server: RunningServer) -> Iterator[dict[str, httpx.Client]]:
    """A client of each plane that keeps its connection."""
    options: dict[str, Any] = {"timeout": 60, "trust_env": False, "verify": False}
    with (
        httpx.Client(base_url=server.admin_url, **options) as admin,
        httpx.Client(base_url=server.url, **options) as data,
    ):
        yield {"admin": admin, "data": data}


def filled(path: str) -> str:
    """Return a path of the documents with names in it that nothing has."""
    names = {"model": "nobody", "version": "1", "alias": "a", "digest": digest_of(b"?"), "id": "x",
             "number": "1", "file": "main.js"}  # fmt: skip
    return re.sub(r"{(\w+)(?::\w+)?}", lambda match: names[match[1]], path)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_open_admin_plane_each_call_wants_its_scope(
    callers: dict[str, httpx.Client], call: Any
) -> None:
    """No token and a wrong one are a 401, each other scope a 403, its own is let in."""
    # What the call does not know: refused behind the door, so that nothing is done.
    path = filled(call.path) + ("?nonsense=1" if call.query is not None else "")

    def status(headers: dict[str, str]) -> int:
        return callers["admin"].request(call.method, path, headers=headers).status_code

    if call.path in OPEN:
        assert status({}) == status(bearer("wrong")) == 200
        return
    wrong = [
        {},
        bearer("wrong"),
        bearer(OWNER[:-1]),
        {"authorization": "Bearer"},
        {"authorization": OWNER},
    ]
    assert {status(headers) for headers in wrong} == {401}
    for scope in SCOPES:
        found = status(bearer(secret_of(scope)))
        assert (found == 403) == (scope != call.scope), f"{scope}: {found}"
        assert found != 401
    assert status(bearer(OWNER)) not in (401, 403)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs/static/swagger-ui.css"])
def test_open_admin_plane_its_own_documents_want_the_scope_read(
    callers: dict[str, httpx.Client], path: str
) -> None:
    """No route declares a scope for them: the door asks."""
    statuses = {
        scope: callers["admin"].get(path, headers=bearer(secret_of(scope))).status_code
        for scope in SCOPES
    }
    assert statuses == {scope: 200 if scope == "read" else 403 for scope in SCOPES}


def test_open_admin_plane_no_verb_and_no_spelling_goes_around_the_door(
    server: RunningServer, callers: dict[str, httpx.Client]
) -> None:
    """Each path with each verb, and paths that a router could read otherwise, are a 401."""
    assert {"/v2/health/live", "/v2/health/ready", "/", "/console/{file:name}"} == OPEN
    paths = {filled(call.path) for call in CALLS if call.scope}
    paths |= {"/docs", "/openapi.json", "/docs/static/swagger-ui.css", "/nothing"}
    for path in sorted(paths):
        for verb in VERBS:
            answer = callers["admin"].request(verb, path)
            assert answer.status_code == 401, f"{verb} {path}: {answer.status_code}"
    for path in (
        "//admin/v1/models", "/admin//v1/models", "/./admin/v1/models", "/admin/v1/models/",
        "/v2/health/live/../../../admin/v1/models", "/%61dmin/v1/models", "/ADMIN/v1/models",
        "/v2/health/live%2f..%2f..%2fadmin", "http://localhost/admin/v1/models", "/metrics/",
        "/docs/../admin/v1/models", "/v2/health/live;/admin/v1/models", "*", "/v2/health/live%00",
    ):  # fmt: skip
        with connected(server.admin_url) as client:
            client.sendall(head_of("GET", path, {"host": "localhost"}))
            assert read_answer(client.stream).status == 401, path


def test_open_admin_plane_two_tokens_are_none(server: RunningServer) -> None:
    """A proxy may have looked at the one and the server at the other: neither counts."""
    for url, path in ((server.admin_url, "/admin/v1/models"), (server.url, "/v2/models")):
        for secrets in ((OWNER, "wrong"), ("wrong", OWNER), (OWNER, OWNER)):
            lines = "".join(f"authorization: Bearer {secret}\r\n" for secret in secrets)
            with connected(url) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode())
                assert read_answer(client.stream).status == 401


def test_open_admin_plane_the_data_plane_asks_for_infer(
    server: RunningServer, callers: dict[str, httpx.Client]
) -> None:
    """With data_auth each path but health wants a token with infer, whatever the verb."""
    document = callers["data"].get("/openapi.json", headers=bearer(secret_of("infer"))).json()
    paths = [path for path in document["paths"] if path not in OPEN_PATHS]
    assert len(paths) > 15
    for path in paths:
        for verb in VERBS:
            ask = lambda headers, v=verb, p=path: (  # noqa: E731
                callers["data"].request(v, filled(p), headers=headers).status_code
            )
            assert ask({}) == ask(bearer("wrong")) == 401, f"{verb} {path}"
            assert ask(bearer(secret_of("admin"))) == 403, f"{verb} {path}"
            assert ask(bearer(secret_of("infer"))) not in (401, 403), f"{verb} {path}"


@pytest.mark.parametrize(("scope", "status"), [("", 401), ("guess", 401), ("admin", 403)])
def test_open_admin_plane_a_head_that_comes_again_is_asked_again(
    server: RunningServer, scope: str, status: int
) -> None:
    """Heads that came before are answered without the parser; none gets in by being known."""
    body = json.dumps(infer_body([ROW])).encode()
    headers = {"host": "h", "content-length": str(len(body))}
    if scope:
        headers |= bearer(secret_of(scope))
    with connected(server.url) as client:
        for _ in range(6):
            client.sendall(head_of("POST", "/v2/models/witness/infer", headers) + body)
            assert read_answer(client.stream).status == status


def test_ssrf_no_call_fetches_a_url(server: RunningServer) -> None:
    """URLs wherever a name, a digest or a reason goes: nobody calls on the canary."""
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.2)
        port = canary.getsockname()[1]
        urls = (f"http://127.0.0.1:{port}/x", f"http://allowed@127.0.0.1:{port}/",
                f"http://localhost:{port}#@allowed/", "file:///etc/passwd",
                f"//127.0.0.1:{port}/x", f"http://[::ffff:127.0.0.1]:{port}/")  # fmt: skip
        for url in urls:
            quoted = urllib.parse.quote(url, safe="")
            document = manifest_of("m", digest_of(b"?"))
            for method, path, body in (
                ("POST", f"/v2/repository/models/{quoted}/load", {"parameters": {"url": url}}),
                ("POST", "/v2/repository/models/witness/load", {"parameters": {"config": url}}),
                ("POST", "/v2/repository/models/witness/load", {"url": url}),
                ("POST", f"/admin/v1/models/{quoted}/versions", document),
                ("POST", "/admin/v1/models/m/versions", {**document, "graph": url}),
                ("POST", "/admin/v1/models/m/versions", {**document, "source": {"url": url}}),
                ("PUT", f"/admin/v1/blobs/{quoted}", {}),
                ("POST", f"/admin/v1/models/witness/versions/1:load?url={quoted}", {}),
                ("POST", f"/admin/v1/models/witness/versions/1:load?reason={quoted}&wait=1", {}),
            ):
                status = server.admin(method, path, json=body).status_code
                assert status < 500, f"{method} {path}"
                assert status >= 400 or "reason=" in path, f"{method} {path}: {status}"
        with pytest.raises(TimeoutError):
            canary.accept()


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "%2e%2e%2fx", "..%5cx", "a%00b", "%00", "a" * 300, "%c3%a4", "%ef%bd%81",
     "%d0%b0dmin", "a%0ab", "a%0d%0ab", "%252e%252e", "a%2fb", "-a", ".a", "a%20", "a%e2%80%8b",
     "con%3a", "~root", "a%ff"],
)  # fmt: skip
def test_names_are_held_to_their_pattern_after_decoding(server: RunningServer, name: str) -> None:
    """Model, version and alias, on both planes, as they are sent: a 4xx that keeps no file."""
    before = {path for path in server.store.rglob("*") if path.is_dir()}
    calls = [
        (url, method, path.format(name))
        for url, method, path in (
            (server.url, "POST", "/v2/models/{}/infer"),
            (server.url, "POST", "/v2/models/witness/versions/{}/infer"),
            (server.url, "POST", "/v1/models/witness/labels/{}:predict"),
            (server.url, "GET", "/v2/models/{}/stats"),
            (server.admin_url, "POST", "/admin/v1/models/{}/versions"),
            (server.admin_url, "PUT", "/admin/v1/models/{}/settings"),
            (server.admin_url, "PUT", "/admin/v1/models/witness/aliases/{}"),
            (server.admin_url, "POST", "/admin/v1/models/witness/versions/{}:load"),
            (server.admin_url, "PUT", "/admin/v1/blobs/{}"),
        )
    ]
    for url, method, path in calls:
        body = b'{"version": 1}'
        headers = {"host": "localhost", "content-length": str(len(body)), **bearer(OWNER)}
        with connected(url) as client:
            client.sendall(head_of(method, path, headers) + body)
            answer = read_answer(client.stream)
        assert 400 <= answer.status < 500, f"{method} {path}: {answer.status}"
        assert not says_too_much(answer.text)
        assert "\r" not in answer.text
        assert "\n" not in answer.text
    assert {path for path in server.store.rglob("*") if path.is_dir()} == before


def test_nothing_given_away_by_errors_and_logs(server: RunningServer) -> None:
    """Neither token nor payload nor path of the machine is in any answer or line of the log."""
    answers = [
        server.data("POST", "/v2/models/witness/infer", json=body, headers=headers)
        for body in (infer_body([[PAYLOAD] * 4]), infer_body([[PAYLOAD] * 5]), {"x": PAYLOAD})
        for headers in (bearer(secret_of("infer")), bearer(secret_of("read")), bearer("guess-1"))
    ]
    answers += [
        server.admin("POST", "/admin/v1/models/witness/versions", content=b"{" + OWNER.encode()),
        server.admin("PUT", "/admin/v1/blobs/" + digest_of(b"a"), content=b"b"),
        server.admin("GET", "/admin/v1/events"),
        server.admin("GET", "/metrics"),
        server.admin("GET", "/admin/v1/workers"),
    ]
    done = "/nothing-more"
    server.data("GET", done, headers=bearer(secret_of("infer")))
    wait_until(lambda: done in server.stderr(), 60, "the last request is in the log")
    log = server.stderr()
    for text in [*(f"{answer.headers} {answer.text}" for answer in answers), log]:
        assert not re.search(r"never-shown|guess-1", text), text
        assert str(server.store) not in text or text is log
    for answer in answers:
        assert not says_too_much(answer.text)
        assert str(PAYLOAD) not in answer.text or answer.status_code == 200
    assert str(PAYLOAD) not in log
    assert "Traceback" not in log


def test_nothing_given_away_by_a_line_that_somebody_fakes(server: RunningServer) -> None:
    """What a client sends stays inside its line of the log, whatever it holds."""
    fake = '/x%0a{"level":"error","message":"faked"}%0d%1b[2J'
    with connected(server.url) as client:
        client.sendall(head_of("GET", fake, {"host": "h", **bearer(secret_of("infer"))}))
        assert read_answer(client.stream).status == 404
    wait_until(lambda: "faked" in server.stderr(), 60, "the request is in the log")
    assert not [record for record in server.logs if record.get("message") == "faked"]
    assert server.text == []


def test_open_admin_plane_tokens_are_kept_as_hashes(server: RunningServer) -> None:
    """No file of the store and no process but its starter's environment holds a token."""
    for path in server.store.rglob("*"):
        if path.is_file():
            assert b"never-shown" not in path.read_bytes(), path
    for pid in server.worker_pids():
        for name in ("cmdline", "environ"):
            assert b"never-shown" not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_open_admin_plane_the_time_tells_nothing_of_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hashes are compared by hmac.compare_digest, against each token whichever fits."""
    import hmac

    from serving.auth import Authenticator, hash_token
    from serving.settings import Token

    compared: list[str] = []
    real = hmac.compare_digest
    monkeypatch.setattr(
        hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b)
    )  # fmt: skip
    tokens = tuple(Token(name, hash_token(name), ("read",)) for name in ("a", "b", "c"))
    assert Authenticator(tokens).actor("Bearer a").name == "a"
    assert compared == [token.sha256 for token in tokens]


def test_names_infer_still_works(server: RunningServer) -> None:
    """After all of it the witness answers the owner of the right token."""
    answer = server.infer("witness", [ROW], headers=bearer(secret_of("infer")))
    assert json.loads(answer.text)["outputs"][0]["data"] == ROW
    assert threading.active_count() < 50
