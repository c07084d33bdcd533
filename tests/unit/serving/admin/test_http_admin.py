"""The admin plane through HTTP: its calls, their errors, and its pages."""

from __future__ import annotations

import json
import re

import pytest

from serving.admin.table import CALLS
from serving.fleet import WorkerInfo
from tests.store_driver import digest_of
from tests.unit.serving.admin.http_calls import MODELS, error_of

pytestmark = pytest.mark.timeout(30)


async def test_whole_way_of_a_version(world, client):
    """Upload, publish, load, alias, unload, delete: each answers as documented."""
    objects = [b"graph", b"w" * 70_000]
    for data in objects:
        digest = digest_of(data)
        assert (await client.head(f"/admin/v1/blobs/{digest}")).status_code == 404
        answer = await client.put(f"/admin/v1/blobs/{digest}", content=data)
        assert (answer.status_code, answer.json()) == (201, {"digest": digest, "bytes": len(data)})
        head = await client.head(f"/admin/v1/blobs/{digest}")
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(data)))
    manifest = world.manifest("m", *objects).to_json()

    first = await client.post(f"{MODELS}/m/versions?reason=new", json=manifest)
    again = await client.post(f"{MODELS}/m/versions", json=manifest)
    assert (first.status_code, first.json()["version"], first.json()["created"]) == (201, 1, True)
    assert (again.status_code, again.json()["version"], again.json()["created"]) == (200, 1, False)

    loaded = await client.post(f"{MODELS}/m/versions/1:load?wait=20&reason=go", json={})
    assert (loaded.status_code, loaded.json()["state"]) == (200, "succeeded")
    operation = await client.get(f"/admin/v1/operations/{loaded.json()['id']}")
    assert operation.json() == loaded.json()

    alias = await client.put(f"{MODELS}/m/aliases/prod", json={"version": 1})
    assert alias.json() == {
        "model": "m", "alias": "prod", "version": 1, "previous": None,
        "etag": alias.headers["etag"],
    }  # fmt: skip
    version = (await client.get(f"{MODELS}/m/versions/1")).json()
    assert (version["state"], version["traffic"], version["aliases"]) == ("READY", 100, ["prod"])
    assert version["batching"] == {"allowed": True, "reason": "rows are independent"}
    assert version["memory"]["weight_bytes"] == version["memory"]["unique_bytes"] == 70_000

    refused = await client.post(f"{MODELS}/m/versions/1:unload")
    assert "alias 'prod'" in await error_of(refused, 409)
    await client.delete(f"{MODELS}/m/aliases/prod")
    removed = await client.delete(f"{MODELS}/m/route")
    assert removed.json() == {"model": "m", "split": []}
    unloaded = await client.post(f"{MODELS}/m/versions/1:unload?wait=20")
    assert unloaded.json()["state"] == "succeeded"
    deleted = await client.delete(f"{MODELS}/m/versions/1")
    assert deleted.json() == {"model": "m", "version": 1}
    assert (await client.get(MODELS)).json() == {"models": []}


async def test_route_calls_move_and_restore_traffic(world, client):
    """A route is shown, set, followed, listed and rolled back."""
    await world.push_loaded("m", 2)
    body = {"split": [{"version": 2, "weight": 100}]}
    moved = await client.put(f"{MODELS}/m/route?reason=better", json=body)
    assert moved.json() == {
        "model": "m", "split": body["split"], "shadow": [], "latest": False,
        "previous": {"split": [{"version": 1, "weight": 100}], "shadow": []},
        "etag": moved.headers["etag"],
    }  # fmt: skip
    assert (await client.get(f"{MODELS}/m/route")).json() == moved.json()

    back = await client.post(f"{MODELS}/m/route:rollback")
    assert back.json()["split"] == [{"version": 1, "weight": 100}]
    to = await client.post(f"{MODELS}/m/route:rollback", json={"to": 2})
    assert to.json()["split"] == body["split"]
    latest = await client.put(f"{MODELS}/m/route", json={"latest": True})
    assert latest.json()["latest"] is True
    history = (await client.get(f"{MODELS}/m/route/history")).json()["history"]
    assert [change["split"][0]["version"] for change in history] == [1, 2, 1, 2, 2]
    assert history[1]["reason"] == "better"


async def test_if_match_guards_routes_and_aliases(world, client):
    """A stale ETag is a 409 that says to read again."""
    await world.push_loaded("m", 2)
    etag = (await client.get(f"{MODELS}/m/route")).headers["etag"]
    body = {"split": [{"version": 2, "weight": 100}]}
    await client.put(f"{MODELS}/m/route", json=body, headers={"if-match": etag})

    stale = await client.put(f"{MODELS}/m/route", json=body, headers={"if-match": etag})
    assert "If-Match" in await error_of(stale, 409)
    alias = await client.put(f"{MODELS}/m/aliases/a", json={"version": 1})
    bad = await client.delete(f"{MODELS}/m/aliases/a", headers={"if-match": '"999"'})
    await error_of(bad, 409)
    good = await client.delete(f"{MODELS}/m/aliases/a", headers={"if-match": alias.headers["etag"]})
    assert good.json()["previous"] == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{MODELS}/none", 404),
        ("GET", f"{MODELS}/m/versions/9", 404),
        ("POST", f"{MODELS}/m/versions/9:load", 404),
        ("POST", f"{MODELS}/m/versions/9:unload", 404),
        ("POST", f"{MODELS}/m/versions/9:plan", 404),
        ("DELETE", f"{MODELS}/m/versions/9", 404),
        ("DELETE", f"{MODELS}/m/aliases/none", 404),
        ("GET", f"{MODELS}/none/route", 404),
        ("GET", "/admin/v1/operations/none", 404),
        ("GET", "/admin/v2/models", 404),
        ("GET", "/admin/v1/models/", 404),
        ("GET", f"{MODELS}/..%2fx", 404),
        ("GET", f"{MODELS}/stats", 400),
        ("GET", f"{MODELS}/a%20b", 400),
        ("GET", f"{MODELS}/{'a' * 300}", 400),
        ("GET", f"{MODELS}/m/versions/010", 400),
        ("GET", f"{MODELS}/m/versions/latest", 400),
        ("GET", f"{MODELS}/m/versions/0", 400),
        ("DELETE", f"{MODELS}/m/aliases/latest", 400),
        ("PUT", "/admin/v1/blobs/sha256:12", 400),
        ("GET", "/admin/v1/events?since=-1", 400),
        ("GET", "/admin/v1/events?limit=0", 400),
        ("GET", "/admin/v1/events?limit=1001", 400),
        ("GET", "/admin/v1/events?limit=1&limit=2", 400),
        ("GET", "/admin/v1/memory?verbose=1", 400),
        ("POST", f"{MODELS}/m/versions/1:load?wait=-1", 400),
        ("POST", f"{MODELS}/m/versions/1:load?wait=nan", 400),
        ("POST", f"{MODELS}/m/versions/1:load?wait=3601", 400),
        ("POST", f"{MODELS}/m/versions/1:load?reason={'x' * 1001}", 400),
        ("PUT", MODELS, 405),
        ("GET", f"{MODELS}/m/versions/1:load", 405),
        ("POST", "/admin/v1/memory", 405),
        ("DELETE", "/metrics", 405),
    ],
)
async def test_wrong_call_is_refused_with_its_status(world, client, method, path, status):
    """Unknown names are 404, bad values 400, wrong verbs 405, always as JSON with a reason."""
    await world.push("m", b"graph")

    await error_of(await client.request(method, path), status)


async def test_unknown_field_names_the_nearest(world, client):
    """A typing error in a body is told with what was perhaps meant."""
    await world.push_loaded("m", 1)

    body = await client.put(f"{MODELS}/m/aliases/a", json={"verison": 1})
    query = await client.post(f"{MODELS}/m/versions/1:load?waits=1")

    assert "did you mean 'version'" in await error_of(body, 400)
    assert "did you mean 'wait'" in await error_of(query, 400)


@pytest.mark.parametrize(
    "media",
    ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "*/*"],
)
async def test_form_or_text_body_is_refused(world, client, media):
    """Only JSON is accepted, so that no form of another page can change anything."""
    answer = await client.post("/admin/v1/gc", content=b"{}", headers={"content-type": media})

    assert media[:10] in await error_of(answer, 415)


async def test_compressed_admin_body_is_refused(client):
    """A content encoding is a 415, not a parse error."""
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    await error_of(await client.post("/admin/v1/gc", content=b"x", headers=headers), 415)


async def test_body_that_is_not_json_is_refused(client):
    """Half JSON, bare NaN and bottomless nesting are 400."""
    for body in (b"{", b'{"a": NaN}', b"[" * 100_000, b"\xff"):
        await error_of(await client.post("/admin/v1/gc", content=body), 400)


async def test_a_name_that_stands_twice_changes_nothing(world, client):
    """Nobody can tell which of the two was meant: a 400 that names it, on every call."""
    await world.push_loaded("m", 1)
    for method, path, body in (
        ("PUT", f"{MODELS}/m/aliases/prod", b'{"version": 1, "version": 2}'),
        ("PUT", f"{MODELS}/m/route", b'{"latest": true, "latest": false}'),
        ("PUT", f"{MODELS}/m/settings", b'{"retain": 3, "retain": 5}'),
        ("POST", f"{MODELS}/m/versions", b'{"format": 1, "format": 1}'),
        ("POST", "/v2/repository/models/m/load", b'{"parameters": {}, "parameters": {}}'),
    ):
        name = body.split(b'"')[1].decode()
        answer = await client.request(method, path, content=body)
        assert f"the name '{name}' stands twice" in await error_of(answer, 400)
    assert (await client.get(f"{MODELS}/m")).json()["aliases"] == {}


async def test_body_larger_than_eight_mib_is_refused_while_it_arrives(client):
    """A body past the limit is a 413, and is not read to its end."""
    sent = 0

    async def chunks():
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield b" " * (1 << 20)

    answer = await client.post("/admin/v1/gc", content=chunks())

    assert "8388608 bytes" in await error_of(answer, 413)
    assert sent < 16


async def test_load_without_wait_is_an_operation_under_way(world, client):
    """A load answers 202 at once, and the operation tells how far it is."""
    await world.push("m", b"graph")
    world.inspector.gate.clear()

    begun = await client.post(f"{MODELS}/m/versions/1:load")
    waited = await client.post(f"{MODELS}/m/versions/1:load?wait=0")

    assert (begun.status_code, waited.status_code) == (202, 202)
    assert begun.json()["id"] == waited.json()["id"]
    assert (await client.get(f"{MODELS}/m/versions/1")).json()["state"] == "LOADING"
    world.inspector.gate.set()
    ended = await client.post(f"{MODELS}/m/versions/1:load?wait=20")
    assert ended.json()["state"] == "succeeded"


async def test_load_that_ends_badly_has_the_status_of_its_cause(world, client):
    """A refused graph is a 400, a budget that is spent a 507 with the plan."""
    bad = await world.push("m", b"bad")
    await world.push("m", b"big", b"w" * 2000)
    world.inspector.refused[bad.manifest.graph] = "no such operator: Nope"
    world.control.ledger.budget_bytes = 1000

    refused = await client.post(f"{MODELS}/m/versions/1:load?wait=20")
    large = await client.post(f"{MODELS}/m/versions/2:load?wait=20")

    assert await error_of(refused, 400) == "no such operator: Nope"
    assert refused.json()["operation"]["state"] == "failed"
    assert "needs at least 2003 bytes" in await error_of(large, 507)
    assert large.json()["plan"]["free_bytes"] == 1000
    plan = (await client.post(f"{MODELS}/m/versions/2:plan")).json()
    assert (plan["fits"], plan["needs_bytes"], plan["would_evict"]) == (False, 2003, [])
    assert (plan["model"], plan["version"], plan["budget_bytes"]) == ("m", 2, 1000)
    assert plan.pop("state") == "FAILED"
    assert plan.pop("state_reason") == large.json()["error"]
    # Whoever did not wait for the end finds it in the operation.
    assert large.json()["plan"] == plan
    operation = large.json()["operation"]["id"]
    assert (await client.get(f"/admin/v1/operations/{operation}")).json()["plan"] == plan
    first = refused.json()["operation"]["id"]
    assert "plan" not in (await client.get(f"/admin/v1/operations/{first}")).json()


async def test_a_rollback_without_room_has_the_plan_of_what_it_had_to_load(world, client):
    """The version that must come back does not fit: 507, the plan, and the route stays."""
    await world.push_loaded("m", 1)
    await world.push("m", b"g", b"w" * 2000)
    await world.load("m", 2)
    await world.push("m", b"other")
    await world.load("m", 3)
    for version in (2, 3):
        body = {"split": [{"version": version, "weight": 100}]}
        await client.put(f"{MODELS}/m/route", json=body)
    await client.put(f"{MODELS}/m/route", json={"split": [{"version": 1, "weight": 100}]})
    await world.unload("m", 2)
    world.control.ledger.budget_bytes = 1000

    answer = await client.post(f"{MODELS}/m/route:rollback", json={"to": 2})

    assert "m/2 needs" in await error_of(answer, 507)
    plan = answer.json()["plan"]
    assert (plan["model"], plan["version"], plan["fits"]) == ("m", 2, False)
    route = (await client.get(f"{MODELS}/m/route")).json()
    assert route["split"] == [{"version": 1, "weight": 100}]


async def test_events_are_listed_in_pages(world, client):
    """Events come oldest first, after a number, with the next number to ask from."""
    await world.push_loaded("m", 1)
    await world.push_loaded("n", 1)

    first = (await client.get("/admin/v1/events?limit=3")).json()
    rest = (await client.get(f"/admin/v1/events?since={first['next']}")).json()
    end = (await client.get(f"/admin/v1/events?since={rest['next']}")).json()
    of_n = (await client.get("/admin/v1/events?model=n")).json()

    assert [e["kind"] for e in first["events"] + rest["events"]] == ["publish", "load"] * 2
    assert end == {"events": [], "next": 4}
    assert [e["model"] for e in of_n["events"]] == ["n", "n"]


async def test_actor_and_reason_go_into_the_events(world, client):
    """An event says from where a change came, and why."""
    await world.push("m", b"graph")
    await client.post(f"{MODELS}/m/versions/1:load?wait=20&reason=release%2042")

    event = (await client.get("/admin/v1/events")).json()["events"][-1]

    assert (event["who"], event["address"], event["reason"]) == (
        "anyone",
        "127.0.0.1",
        "release 42",
    )


async def test_memory_and_workers_are_shown(world, client):
    """The ledger and the slots are there for people and dashboards."""
    await world.push("m", b"one", b"w" * 100)
    await world.load("m", 1)

    memory = (await client.get("/admin/v1/memory")).json()
    workers = (await client.get("/admin/v1/workers")).json()

    assert (memory["committed_bytes"], memory["unreleased_bytes"]) == (103, 0)
    assert memory["free_bytes"] == memory["budget_bytes"] - 103
    assert memory["versions"][0]["unique_bytes"] == 100
    assert workers["workers"] == [
        {"slot": 0, "pid": 41, "state": "serving", "generation": 1, "cpus": [0], "restarts": 0,
         "reason": "", "memory_bytes": 7}
    ]  # fmt: skip


async def test_private_memory_is_null_until_a_load_measured_it(world, client):
    """Nobody is told of 0 bytes that are not; what was measured is known after an unload, too."""
    world.inspector.private_bytes = 10
    await world.push("m", b"one", b"w" * 100)

    async def told():
        version = (await client.get(f"{MODELS}/m/versions/1")).json()
        plan = (await client.post(f"{MODELS}/m/versions/1:plan")).json()
        return version["memory"]["private_bytes_per_worker"], plan["private_bytes_per_worker"]

    assert await told() == (None, None)
    await world.load("m", 1)
    assert await told() == (10, 10)
    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 1)
    assert await told() == (10, 10)


async def test_gc_and_verify_report(world, client):
    """A clean-up and a check tell counts; a damaged object is named."""
    record = await world.push("m", b"graph")
    path = world.store.objects_dir / record.manifest.graph.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"grapH")

    gc = await client.post("/admin/v1/gc")
    verify = await client.post("/admin/v1/verify")

    assert gc.json() == {"objects": 0, "bytes": 0}
    assert verify.json()["objects"] == 1
    assert verify.json()["damaged"][0]["digest"] == record.manifest.graph


async def test_health_follows_restore_and_workers(world, client):
    """Ready means: the restore is over and a worker serves; FAILED versions are listed."""
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    await world.control.restored()
    assert (await client.get("/v2/health/ready")).json() == {"ready": True, "failed": []}

    world.fleet.slots = (WorkerInfo(0, None, "restarting", 0, (0,), 3),)
    answer = await client.get("/v2/health/ready")
    assert "no worker serves" in await error_of(answer, 503)
    world.control.writer.is_restored = False
    assert "loaded again" in await error_of(await client.get("/v2/health/ready"), 503)


async def test_pages_and_metrics_are_served(client):
    """The start page, the documentation and the metrics need no other host."""
    page = await client.get("/")
    docs = await client.get("/docs")
    metrics = await client.get("/metrics")

    assert (page.status_code, docs.status_code) == (200, 200)
    assert "https://" not in docs.text
    assert (metrics.text, metrics.headers["content-type"]) == (
        "metrics 1\n", "text/plain; version=0.0.4; charset=utf-8",
    )  # fmt: skip


async def test_openapi_lists_every_call_with_its_parameters(client):
    """The document has every call of the table, each path parameter declared."""
    document = (await client.get("/openapi.json")).json()

    for call in CALLS:
        path = call.path.replace(":name}", "}")
        operation = document["paths"][path][call.method.lower()]
        declared = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
        assert declared == {part[1:-1].partition(":")[0] for part in
                            re.findall(r"{[^}]+}", call.path)}  # fmt: skip
        assert operation["summary"]
    ids = [op["operationId"] for item in document["paths"].values() for op in item.values()]
    assert len(ids) == len(set(ids))
    json.dumps(document)
