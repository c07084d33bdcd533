"""The client: what it repeats, what it sends, and how it words what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from models.package import BytesObject, Package
from registry.manifest import Manifest, TensorEntry
from serving.client.admin import AdminClient
from serving.client.connection import Http
from serving.client.errors import ClientError, ServerUnreachable, TokenNotAllowed
from serving.client.push import push_package

Answer = Callable[[httpx.Request], httpx.Response]


def client_of(answer: Answer, token: str = "") -> tuple[AdminClient, list[float]]:
    """Return an admin client whose requests ``answer`` gets, and the pauses that it made."""
    pauses: list[float] = []
    http = Http("http://server:1", token, token_variable="RAMRACK_ADMIN_TOKEN",
                transport=httpx.MockTransport(answer), sleep=pauses.append)  # fmt: skip
    return AdminClient(http), pauses


def test_the_servers_own_words_reach_the_user():
    """An error answer becomes a ClientError with its text and status."""
    client, _ = client_of(lambda _: httpx.Response(404, json={"error": "no model 'x'"}))
    with client, pytest.raises(ClientError, match="no model 'x'") as caught:
        client.model("x")
    assert caught.value.status == 404


def test_a_foreign_server_is_suspected():
    """An error without our form asks whether this is the right server."""
    client, _ = client_of(lambda _: httpx.Response(502, text="<html>"))
    with client, pytest.raises(ClientError, match=r"502 .* is not how the ramrack server answers"):
        client.models()


def test_an_answer_of_another_service_is_no_crash():
    """A 200 that is not ours is a ClientError as well."""
    client, _ = client_of(lambda _: httpx.Response(200, json=[1]))
    with client, pytest.raises(ClientError, match="is it a ramrack server"):
        client.models()


def test_a_missing_token_is_said_with_where_to_give_it():
    """A 401 names the variable: to set it, or to look at what is in it."""
    refusal = httpx.Response(401, json={"error": "the token is not known here"})
    client, _ = client_of(lambda _: refusal)
    with client, pytest.raises(ClientError, match=r"^a token is needed: set RAMRACK_ADMIN_TOKEN$"):
        client.models()
    client, _ = client_of(lambda _: refusal, "secret")
    with client, pytest.raises(ClientError, match=r"not known here: check RAMRACK_ADMIN_TOKEN$"):
        client.models()


CHALLENGE = {"www-authenticate": 'Bearer error="insufficient_scope", scope="push"'}


def test_may_push_is_asked_before_anything_is_sent():
    """What lacks is said: a server, the right plane, a token, a scope; nothing is changed."""
    live, known = httpx.Response(200, json={}), httpx.Response(200, json={"workers": []})
    for head, workers, expected in (
        (httpx.Response(404), known, ""),
        (httpx.Response(404), httpx.Response(403, json={"error": "lacks the scope 'read'"}), ""),
        (httpx.Response(401), known, "a token is needed: set RAMRACK_ADMIN_TOKEN"),
        (httpx.Response(403, headers=CHALLENGE), known,
         "the token in RAMRACK_ADMIN_TOKEN lacks the scope 'push'"),
        (httpx.Response(403), httpx.Response(403, json={"error": "Host 'x' is foreign"}),
         "Host 'x' is foreign"),
        (httpx.Response(404), httpx.Response(404, json={"error": "path is not known"}),
         ("http://server:1 is not the ramrack server, it has no /admin/v1/workers: give the "
         "address of the ramrack server")),
    ):  # fmt: skip
        answers = {"/v2/health/live": live, "/admin/v1/workers": workers}
        seen = []

        def answer(request: httpx.Request, answers=answers, head=head, seen=seen) -> httpx.Response:
            seen.append(request.method)
            return answers.get(request.url.path, head)

        client, _ = client_of(answer)
        found = ""
        with client:
            try:
                client.check_push()
            except ClientError as error:
                found = str(error)
        assert found == expected
        assert set(seen) <= {"GET", "HEAD"}


@pytest.mark.parametrize("token", ["se\ncret", "secret\r", "geh\u00e4im", "two words", "a\x00b"])
def test_a_token_that_no_header_can_carry_is_refused_and_never_shown(token: str):
    """The message names the variable, and no error in its chain shows the token."""
    with pytest.raises(TokenNotAllowed, match=r"RAMRACK_ADMIN_TOKEN.*not shown") as caught:
        AdminClient.connect("http://server:1", token)
    error: BaseException | None = caught.value
    while error is not None:
        assert token not in str(error)
        assert repr(token)[1:-1] not in str(error)
        error = error.__cause__ or error.__context__


def test_what_is_asked_before_a_request_can_end_the_call():
    """Nothing is sent once the check before a request raises, whatever the request."""
    sent = []

    def stop() -> None:
        raise KeyboardInterrupt

    http = Http("http://server:1", token_variable="T", before_request=stop,
                transport=httpx.MockTransport(lambda request: sent.append(request)))  # fmt: skip
    with AdminClient(http) as client:
        put = partial(client.put_object, "d", 0, lambda _: iter(()))
        for call in (client.models, client.gc, put):
            with pytest.raises(KeyboardInterrupt):
                call()
    assert sent == []


def test_the_token_is_sent_as_bearer():
    """The token travels in the Authorization header."""
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={"models": []})

    client, _ = client_of(answer, token="secret")
    with client:
        client.models()
    assert seen == ["Bearer secret"]


def test_nobody_there_says_how_to_start_one():
    """A refused connection ends after one more try, with advice."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    client, pauses = client_of(answer)
    with client, pytest.raises(ServerUnreachable, match=r"no server at .*`ramrack serve`"):
        client.models()
    assert pauses == [0.1]


def test_a_broken_read_is_repeated_and_a_broken_change_is_not():
    """GET is tried again after a broken connection; POST may have been done, so it is not."""
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.method)
        if len(calls) in (1, 3):
            raise httpx.ReadError("reset", request=request)
        return httpx.Response(200, json={"models": []})

    client, _ = client_of(answer)
    with client:
        assert client.models() == []
        with pytest.raises(ServerUnreachable, match="broke"):
            client.gc()
    assert calls == ["GET", "GET", "POST"]


@pytest.mark.parametrize("url", ["", "server:80", "ftp://x", "http://", "http://[::1"])
def test_a_url_that_is_none_is_refused(url: str):
    """An address that cannot be one is refused before anything is sent."""
    with pytest.raises(ClientError, match="address"):
        AdminClient.connect(url)


class FakeAdmin:
    """Objects and registrations of a server, over MockTransport."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.lengths: list[str | None] = []
        self.puts: list[str] = []
        self.break_first_put = False
        self.forget_once = ""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        digest = request.url.path.rsplit("/", 1)[-1]
        if request.method == "HEAD":
            if digest not in self.held:
                return httpx.Response(404)
            length = len(self.held[digest])
            return httpx.Response(200, headers={"content-length": str(length)})
        if request.method == "PUT":
            self.puts.append(digest)
            self.lengths.append(request.headers.get("content-length"))
            if self.break_first_put:
                self.break_first_put = False
                raise httpx.WriteError("reset", request=request)
            self.held[digest] = request.read()
            return httpx.Response(201)
        if self.forget_once:
            del self.held[self.forget_once]
            missing, self.forget_once = self.forget_once, ""
            return httpx.Response(409, json={"error": "missing", "missing": [missing]})
        return httpx.Response(201, json={"version": 1, "digest": "sha256:x", "created": True})


def package() -> Package:
    """A graph and two tensors."""
    graph, small, large = (BytesObject.of(data) for data in (b"g", b"s" * 10, b"l" * 3_000_000))
    manifest = Manifest(
        "m", graph.digest, tuple(TensorEntry(o.digest, o.size_bytes) for o in (small, large)), {},
        {"name": "onnx"},
    )  # fmt: skip
    return Package(manifest, (graph, small, large))


def test_a_push_sends_only_what_is_missing():
    """Objects that the server holds are not sent again, and the result says what that saved."""
    server, wanted = FakeAdmin(), package()
    graph, small, large = wanted.objects
    server.held[large.digest] = b"l" * 3_000_000
    client, _ = client_of(server)
    with client:
        result = push_package(client, wanted)
    assert sorted(server.puts) == sorted([graph.digest, small.digest])
    assert (result.bytes_sent, result.bytes_saved, result.objects_sent) == (11, 3_000_000, 2)
    assert sorted(server.lengths) == ["1", "10"]


def test_a_broken_upload_starts_anew_and_is_counted_once():
    """After a broken connection the whole object is sent again; progress never ends over 100 %."""
    server, wanted = FakeAdmin(), package()
    server.break_first_put = True
    seen: list[tuple[int, int, int]] = []
    client, pauses = client_of(server)
    with client:
        push_package(client, wanted, progress=lambda *counts: seen.append(counts))
    assert {o.digest: o.size_bytes for o in wanted.objects} == {
        digest: len(data) for digest, data in server.held.items()
    }
    assert pauses == [0.1]
    assert seen[-1] == (3_000_011, 3_000_011, 0)


def test_an_object_that_vanished_meanwhile_is_sent_again():
    """Where a clean-up took an object between the question and the registration, it is resent."""
    server, wanted = FakeAdmin(), package()
    small = wanted.objects[1]
    server.held[small.digest] = b"s" * 10
    server.forget_once = small.digest
    client, _ = client_of(server)
    with client:
        result = push_package(client, wanted)
    assert result.version == 1
    assert server.held[small.digest] == b"s" * 10


def test_an_object_of_another_size_is_sent_again():
    """What was cut on the server's disk is damaged there, whatever its name says."""
    server, wanted = FakeAdmin(), package()
    for each in wanted.objects:
        server.held[each.digest] = b""
    client, _ = client_of(server)
    with client:
        result = push_package(client, wanted)
    assert sorted(server.puts) == sorted(each.digest for each in wanted.objects)
    assert (result.objects_sent, result.bytes_saved) == (3, 0)


def test_a_push_that_is_repeated_sends_only_what_had_not_arrived():
    """After a push broke off, the next one counts what arrived as saved and sends the rest."""
    server, wanted = FakeAdmin(), package()
    small = wanted.objects[1]
    is_broken = True

    def answer(request: httpx.Request) -> httpx.Response:
        if is_broken and request.method == "PUT" and small.digest in request.url.path:
            return httpx.Response(503, json={"error": "the server is going down"})
        return server(request)

    client, _ = client_of(answer)
    seen: list[tuple[int, int, int]] = []
    with client:
        with pytest.raises(ClientError, match="going down"):
            push_package(client, wanted)
        arrived = set(server.held)
        is_broken = False
        server.puts.clear()
        result = push_package(client, wanted, progress=lambda *counts: seen.append(counts))
    late = [each.digest for each in wanted.objects if each.digest not in arrived]
    assert sorted(server.puts) == sorted(late)
    assert small.digest in server.puts
    assert result.bytes_saved == sum(o.size_bytes for o in wanted.objects if o.digest in arrived)
    assert seen[-1] == (result.bytes_sent, result.bytes_sent, result.bytes_saved)


def test_a_refused_upload_stops_the_push():
    """The first refusal ends the push with the server's reason; nothing is registered."""
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.method)
        if request.method == "HEAD":
            return httpx.Response(404)
        return httpx.Response(507, json={"error": "the disk is full"})

    client, _ = client_of(answer)
    with client, pytest.raises(ClientError, match="the disk is full"):
        push_package(client, package())
    assert "POST" not in calls


def test_an_upload_is_never_held_in_memory_as_a_whole():
    """The body is an iterator that is read piece by piece."""
    pieces = []

    class Endless:
        digest = "sha256:" + "0" * 64
        size_bytes = 3 << 20

        def chunks(self) -> Iterator[bytes]:
            for _ in range(3):
                pieces.append("made")
                yield b"x" * (1 << 20)

    class Streaming(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "HEAD":
                return httpx.Response(404)
            if request.method == "PUT":
                for _ in request.stream:
                    pieces.append("read")
            return httpx.Response(201, json={"version": 1, "digest": "d", "created": True})

    http = Http("http://server", token_variable="T", transport=Streaming())
    manifest = Manifest("m", Endless.digest, (), {}, {"name": "onnx"})
    with AdminClient(http) as client:
        push_package(client, Package(manifest, (Endless(),)))
    assert pieces == ["made", "read"] * 3


class Receiver:
    """A server that takes a part of a large object, breaks, and may keep what came."""

    def __init__(self, data: bytes, kept: list[str | None], breaks: int = 1) -> None:
        self.data, self.kept, self.breaks = data, kept, breaks
        self.sent: list[tuple[str | None, int]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            offset = self.kept.pop(0)
            return httpx.Response(404, headers={"upload-offset": offset} if offset else {})
        body = request.read()
        where = request.headers.get("content-range")
        assert request.headers["content-length"] == str(len(body))
        assert self.data.endswith(body)
        self.sent.append((where, len(body)))
        if len(self.sent) <= self.breaks:
            raise httpx.WriteError("broken pipe")
        return httpx.Response(409 if where == "bytes 5-9/10" else 201, json={"error": "gone"})


@pytest.mark.parametrize(
    ("kept", "breaks", "sent"),
    [
        (["0", "4"], 1, [(None, 10), ("bytes 4-9/10", 6)]),
        (["7"], 0, [("bytes 7-9/10", 3)]),
        ([None, None], 1, [(None, 10), (None, 10)]),
        (["5"], 0, [("bytes 5-9/10", 5), (None, 10)]),
        (["10", "x"], 1, [(None, 10), (None, 10)]),
    ],
    ids=["goes on", "goes on with an earlier push", "older server", "gone by now", "nonsense"],
)
def test_a_large_object_is_not_sent_twice(monkeypatch, kept, breaks, sent):
    """After a broken connection, and at the next push, what the server has kept stays there."""
    monkeypatch.setattr("serving.client.admin.RESUMED_BYTES", 10)
    receiver = Receiver(b"0123456789", kept, breaks)
    client, _ = client_of(receiver)
    with client:
        client.put_object("sha256:d", 10, lambda start: iter([receiver.data[start:]]))
    assert receiver.sent == sent
    assert receiver.kept == []


def test_progress_counts_what_is_kept_as_sent(monkeypatch):
    """It never goes back past that, and ends at the whole."""
    monkeypatch.setattr("serving.client.admin.RESUMED_BYTES", 1)
    graph = BytesObject.of(b"0123456789")
    manifest = Manifest("m", graph.digest, (), {}, {"name": "onnx"})
    heads, parts, seen = ["", "4"], [], []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(404, headers={"upload-offset": heads.pop(0)})
        if request.method == "PUT":
            parts.append(request.read())
            return httpx.Response(201, json={})
        return httpx.Response(201, json={"version": 1, "digest": "d", "created": True})

    client, _ = client_of(answer)
    with client:
        push_package(client, Package(manifest, (graph,)), progress=lambda *now: seen.append(now))
    assert parts == [b"456789"]
    assert seen == [(4, 10, 0), (10, 10, 0)]
