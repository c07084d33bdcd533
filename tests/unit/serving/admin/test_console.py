"""The console over HTTP: its files and their guards, its stream, and what looking costs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from registry.errors import NotReady
from serving.admin.app import create_admin_app
from serving.admin.console import hub as hub_module
from serving.admin.console.hub import ConsoleHub
from serving.admin.console.pages import FILES
from serving.admin.console.sampler import Sampler, console_of
from serving.errors import QueueFull
from serving.metrics.page import MetricsMemory, Timing
from serving.metrics.rates import Counts
from serving.web.server import HttpServer
from tests.unit.serving.admin.test_auth import TOKENS, bearer

pytestmark = pytest.mark.timeout(60)
STREAM = "/admin/v1/console/stream"


def events_of(text: str) -> list[tuple[str, dict]]:
    """The events of a stream that ended, kind and document."""
    found = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


# The page and its files


async def test_page_loads_without_a_token_and_names_no_other_host(world):
    """Whoever opens it sees an empty page; everything in it comes from this server."""
    async with world.client(tokens=TOKENS) as client:
        page = await client.get("/")
        files = {name: await client.get(f"/console/{name}") for name in FILES}

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert {name: answer.status_code for name, answer in files.items()} == dict.fromkeys(FILES, 200)
    named = set(re.findall(r'(?:src|href)="/console/([^"]+)"', page.text))
    modules = {
        name for answer in files.values() for name in re.findall(r'from "\./([^"]+)"', answer.text)
    }
    assert named | modules | {"index.html"} == set(FILES)
    for answer in (page, *files.values()):
        hosts = set(re.findall(r"https?://([^/\"' ]+)", answer.text))
        assert hosts <= {"www.w3.org"}, "the name space of SVG is no address"


async def test_page_allows_nothing_inline_and_nothing_from_elsewhere(client):
    """The policy stands on each file, and the page keeps it."""
    page = await client.get("/")
    script = await client.get("/console/main.js")

    for answer in (page, script):
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", page.text)
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"


def test_scripts_never_make_markup_of_text():
    """No script has a way in which a name or a reason could become part of the page."""
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    for name, file in FILES.items():
        assert not re.search(banned, file.body.decode()), name


@pytest.mark.parametrize("name", ["none.js", "%2e%2e", "index.html.bak", "__init__.py"])
async def test_what_is_no_file_of_the_console_is_not_found(client, name):
    """Only the files that were read at the start are given out."""
    assert (await client.get(f"/console/{name}")).status_code == 404


async def test_foreign_host_gets_no_page(client):
    """A name that was pointed at this server does not open the console."""
    answer = await client.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 403


async def test_files_are_open_for_reading_alone(world):
    """Without a token no other verb gets past the guard."""
    async with world.client(tokens=TOKENS) as client:
        for method in ("POST", "PUT", "DELETE"):
            for path in ("/", "/console/main.js"):
                assert (await client.request(method, path)).status_code == 401
        assert (await client.get("/consoles")).status_code == 401


# The stream


async def test_stream_says_who_looks_and_shows_everything_first(world):
    """The first look has all sections, so that a page needs nothing else."""
    await world.push_loaded("m", 2)
    await world.push("m", b"m graph 9")
    operation = world.control.load("m", 2, world.actor)
    await operation.wait()
    async with world.client(tokens=TOKENS) as client:
        answer = await client.get(STREAM, params={"limit": 1}, headers=bearer("read"))

    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    (hello, who), (look, shown) = events_of(answer.text)
    assert (hello, who) == ("hello", {"who": "read", "scopes": ["read"]})
    assert look == "look"
    assert shown["server"]["ready"] is True
    (model,) = shown["models"]["models"]
    assert [(v["version"], v["state"]) for v in model["versions"]] == [
        (1, "READY"), (2, "READY"), (3, "UNLOADED"),
    ]  # fmt: skip
    assert model["route"]["split"] == [{"version": 1, "weight": 100}]
    assert model["route"]["changed"]["who"] == "tester"
    assert shown["memory"]["budget_bytes"] == world.budget_bytes
    assert shown["workers"]["workers"][0]["state"] == "serving"
    assert shown["operations"][0]["state"] == "succeeded"
    kinds = [event["kind"] for event in shown["events"]["latest"]]
    assert kinds[0] == "publish"
    assert "load" in kinds
    assert shown["rates"]["all"]["requests_per_s"] == 0


async def test_later_looks_have_only_what_changed(world):
    """A quiet second costs a few bytes, and a change is there with the next look."""
    await world.push_loaded("m", 1)
    hub = hub_of(world, every_s=0.01)
    hub.enter()
    looks = hub.messages()
    try:
        first = json.loads(await anext(looks))
        # What the first look found may still have moved while it was taken.
        second = json.loads(await anext(looks))
        await world.control.traffic.set_alias("m", "prod", 1, world.actor, "checked")
        changed: dict = {}
        while "events" not in changed:
            changed |= json.loads(await anext(looks))
    finally:
        await looks.aclose()
        hub.leave()

    assert {"server", "models", "memory", "workers", "operations", "events"} <= set(first)
    assert "server" not in second
    assert "look" in second
    assert changed["models"]["models"][0]["aliases"]["prod"]["version"] == 1
    assert changed["events"]["latest"][0]["reason"] == "checked"
    assert "workers" not in changed


def hub_of(world, every_s: float) -> ConsoleHub:
    """A hub as the server has it, but faster."""
    made = console_of(world.control, world.settings)
    return ConsoleHub(made._sample, made._forget, every_s)


@pytest.mark.parametrize(("name", "status"), [(None, 401), ("nobody", 401), ("push", 403)])
async def test_stream_needs_a_token_with_read(world, name, status):
    """Looking is guarded as every call is; the token never stands in a URL."""
    async with world.client(tokens=TOKENS) as client:
        answer = await client.get(STREAM, headers=bearer(name) if name else {})
        in_url = await client.get(STREAM, params={"token": "secret-read"})
        unknown = await client.get(STREAM, params={"token": "x"}, headers=bearer("read"))

    assert answer.status_code == status
    assert in_url.status_code == 401
    assert unknown.status_code == 400
    assert "token" in unknown.json()["error"]


async def test_rates_come_from_what_the_workers_counted(world):
    """Requests a second and percentiles are those of the counters behind the metrics page."""
    with MetricsMemory.create(1) as memory:
        counters = memory.writer(0).version("m", 1)
        sections = console_of(world.control, world.settings, memory)._sample
        await sections()
        for _ in range(50):
            counters.request_started()
            counters.request_done(200, 1, Timing(2_500_000, 0))
        await asyncio.sleep(0.05)
        rates = (await sections())["rates"]

    found = rates["models"]["m"]["versions"]["1"]
    assert 0 < found["requests_per_s"] <= 50 / 0.05
    assert found["p50_s"] == pytest.approx(0.0025)
    assert rates["all"] == found
    assert rates["models"]["m"]["p99_s"] == found["p99_s"]


async def test_window_of_the_rates_moves_on():
    """Rates are of the last looks, not of all time; a long quiet ends in nothing."""
    counts = {("m", 1): Counts({"200": 0})}

    class Nothing:
        async def events(self):
            return {}

        def __getattr__(self, name):
            return dict

    sampler = Sampler(Nothing(), lambda: counts)
    await sampler.sections()
    counts = {("m", 1): Counts({"200": 90})}
    busy = (await sampler.sections())["rates"]["all"]
    for _ in range(20):
        quiet = (await sampler.sections())["rates"]["all"]

    assert busy["requests_per_s"] > 0
    assert quiet["requests_per_s"] == 0


async def test_versions_that_are_not_loaded_are_counted_beyond_the_newest(world):
    """A store of years does not make every look large; what is left out is said."""
    await world.push("m", b"graph")
    await world.control.traffic.set_settings("m", {"retain": 100}, world.actor)
    for number in range(12):
        await world.push("m", f"graph {number}".encode())
    async with world.client() as client:
        answer = await client.get(STREAM, params={"limit": 1})

    shown = events_of(answer.text)[1][1]["models"]
    assert [v["version"] for v in shown["models"][0]["versions"]] == list(range(4, 14))
    assert shown["left_out"] == 3


# What looking costs


async def test_nothing_is_sampled_while_nobody_looks():
    """The first reader starts the looks, the last one ends them, and all share one sampler."""
    samples = 0
    forgotten = []

    async def sample():
        nonlocal samples
        samples += 1
        return {"server": samples}

    hub = ConsoleHub(sample, lambda: forgotten.append(samples), every_s=0.005)
    await asyncio.sleep(0.02)
    assert (hub.is_sampling, samples) == (False, 0)
    hub.enter()
    hub.enter()
    one, two = hub.messages(), hub.messages()
    assert json.loads(await anext(one))["server"] == json.loads(await anext(two))["server"] == 1
    hub.leave()
    assert hub.is_sampling
    hub.leave()
    taken = samples
    await asyncio.sleep(0.03)

    assert (hub.is_sampling, samples) == (False, taken)
    assert forgotten == [taken]


async def test_readers_are_bounded(monkeypatch):
    """One more than allowed is told to close another."""
    monkeypatch.setattr(hub_module, "MAX_READERS", 2)

    async def sample():
        return {}

    hub = ConsoleHub(sample)
    hub.enter()
    hub.enter()
    with pytest.raises(QueueFull, match="2 of 2 live consoles"):
        hub.enter()
    hub.leave()
    hub.leave()


async def test_reader_that_lags_gets_one_newer_message_not_many():
    """Nothing is queued for a slow reader: it gets what is true when it asks."""
    now = 0

    async def sample():
        nonlocal now
        now += 1
        return {"server": now, "same": 1}

    hub = ConsoleHub(sample, every_s=0.001)
    hub.enter()
    looks = hub.messages()
    first = json.loads(await anext(looks))
    while now < 20:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    second = json.loads(await anext(looks))
    hub.leave()

    assert first["same"] == 1
    assert second["server"] >= 19
    assert "same" not in second


async def test_closed_hub_ends_its_readers_and_takes_no_more():
    """A server that stops is not held up by whoever looks at it."""

    async def sample():
        return {"server": 1}

    hub = ConsoleHub(sample)
    hub.enter()
    looks = hub.messages()
    await anext(looks)
    waiting = asyncio.create_task(anext(looks, None))
    await asyncio.sleep(0)
    hub.close()

    assert await waiting is None
    with pytest.raises(NotReady, match="stopping"):
        hub.enter()


async def test_look_that_fails_ends_the_streams_and_the_next_reader_tries_again(caplog):
    """A fault in showing is logged once and harms nothing else."""
    is_broken = True

    async def sample():
        if is_broken:
            raise KeyError("gone")
        return {"server": 1}

    hub = ConsoleHub(sample)
    hub.enter()
    assert [message async for message in hub.messages()] == []
    hub.leave()
    is_broken = False
    hub.enter()
    looks = hub.messages()
    assert json.loads(await anext(looks))["server"] == 1
    hub.leave()
    assert len([r for r in caplog.records if "console" in r.message]) == 1


# Over real sockets


@pytest.fixture
async def served(world) -> AsyncIterator[tuple[HttpServer, ConsoleHub, int]]:
    """The admin plane of ``world`` on a free port, with the hub of its console."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    hub = hub_of(world, every_s=0.01)
    server = HttpServer(
        create_admin_app(world.control, world.settings, console=hub), world.settings
    )
    await server.start(listener)
    yield server, hub, listener.getsockname()[1]
    hub.close()
    await server.drain(5)
    listener.close()


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_stop_ends_an_open_stream_in_order(served):
    """An open console does not delay the stop, and its stream ends as an answer does."""
    server, hub, port = served
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
        client.stream("GET", STREAM) as answer,
    ):
        pieces = answer.aiter_bytes()
        await anext(pieces)
        hub.close()
        # Without the close the open stream would use up the whole time, and this would be False.
        drained = asyncio.create_task(server.drain(20))
        async for _ in pieces:
            pass
        assert await drained is True
    assert hub.readers == 0


@pytest.mark.slow
async def test_client_that_leaves_ends_the_looking(served):
    """A closed tab costs nothing any more."""
    _, hub, port = served
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
        client.stream("GET", STREAM) as answer,
    ):
        await anext(answer.aiter_bytes())
        assert hub.readers == 1

    await until(lambda: hub.readers == 0)
    assert not hub.is_sampling


@pytest.mark.slow
async def test_reader_that_reads_nothing_is_cut(world):
    """Who stopped to read is gone after the write timeout, and the server keeps nothing for it."""
    settings = dataclasses.replace(world.settings, write_timeout_s=0.2)
    large = "x" * 1_000_000
    looks = 0

    async def sample():
        nonlocal looks
        looks += 1
        return {"server": f"{looks}{large}"}

    hub = ConsoleHub(sample, every_s=0.01)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = HttpServer(create_admin_app(world.control, settings, console=hub), settings)
    await server.start(listener)
    with socket.create_connection(listener.getsockname()) as reader:
        reader.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: hub.readers == 1)
        await until(lambda: hub.readers == 0)
    assert not hub.is_sampling
    hub.close()
    assert await server.drain(5)
    listener.close()
