"""Routes, releases and settings over HTTP: good bodies, and every way to get one wrong."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.timeout(30)
M = "/admin/v1/models/m"
SPLIT = {"split": [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}], "shadow": [3]}


def share(version: Any, weight: Any) -> dict[str, Any]:
    return {"version": version, "weight": weight}


@pytest.fixture
async def full(world):
    """Version 1 to 3 READY, 4 FAILED, 5 not loaded."""
    await world.push_loaded("m", 3)
    bad = await world.push("m", b"bad")
    world.inspector.refused[bad.manifest.graph] = "no such operator"
    with pytest.raises(Exception, match="operator"):
        await world.load("m", 4)
    await world.push("m", b"unloaded")
    return world


def seen(world) -> tuple[int, int, int]:
    """What a change of any kind would make different."""
    return (
        world.control.writer.state.generation, world.store.events.last_seq,
        len(world.fleet.targets),
    )  # fmt: skip


async def refused(world, answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]
    assert [word for word in words if word not in message] == [], message


BAD_ROUTES = [
    ({}, 400, "give either split or"),
    ({"split": [share(1, 100)], "latest": True}, 400, "give either split or"),
    ({"shadow": [1]}, 400, "give either split or"),
    ({"split": []}, 400, "split: got 0 entries", "1 to 16"),
    ({"split": {}}, 400, "split: got {}", "1 to 16"),
    ({"split": None}, 400, "split: got None"),
    ({"split": [share(v, 1) for v in range(1, 18)]}, 400, "got 17 entries", "1 to 16"),
    ({"split": [share(1, 90)]}, 400, "weights sum to 90", "100"),
    ({"split": [{"version": 1, "wieght": 100}]}, 400, "split[0].wieght", "did you mean 'weight'"),
    ({"split": [{"version": 1}]}, 400, "split[0].weight is missing"),
    ({"split": [share(1, 90), share(2, 20)]}, 400, "weights sum to 110", "100"),
    ({"split": [share(1, 100), share(2, 0)]}, 400, "split[1].weight: 0", "1 to 100"),
    ({"split": [share(1, 110), share(2, -10)]}, 400, "split[0].weight: 110", "1 to 100"),
    ({"split": [share(1, -10)]}, 400, "split[0].weight: -10", "1 to 100"),
    ({"split": [share(1, 50.0), share(2, 50.0)]}, 400, "split[0].weight: 50.0", "integer"),
    ({"split": [share(1, True), share(2, 99)]}, 400, "split[0].weight: True", "integer"),
    ({"split": [share(1, "100")]}, 400, "split[0].weight: '100'", "integer"),
    ({"split": [share(1, None)]}, 400, "split[0].weight: None"),
    ({"split": [{"version": 1}]}, 400, "split[0]", "version and weight"),
    ({"split": [{**share(1, 100), "x": 1}]}, 400, "split[0]", "version and weight"),
    ({"split": [1]}, 400, "split[0]", "version and weight"),
    ({"split": [share(1, 50), share(1, 50)]}, 400, "split[1].version: 1 stands twice"),
    ({"split": [share("1", 100)]}, 400, "split[0].version: version '1'", "integer"),
    ({"split": [share(True, 100)]}, 400, "split[0].version: version True"),
    ({"split": [share(1.0, 100)]}, 400, "split[0].version: version 1.0"),
    ({"split": [share(0, 100)]}, 400, "split[0].version: version 0", "from 1"),
    ({"split": [share("latest", 100)]}, 400, "split[0].version: version 'latest'"),
    ({"split": [share(1, 100)], "shadow": [1]}, 400, "shadow[0]: 1 is in the split"),
    ({"split": [share(1, 100)], "shadow": [2, 2]}, 400, "shadow[1]: 2 stands twice"),
    ({"split": [share(1, 100)], "shadow": [2, 3, 4, 5, 6]}, 400, "got 5 entries", "at most 4"),
    ({"split": [share(1, 100)], "shadow": 2}, 400, "shadow: got 2", "list"),
    ({"split": [share(1, 100)], "shadow": ["2"]}, 400, "shadow[0]: version '2'"),
    ({"split": [share(1, 100)], "shadow": [share(2, 1)]}, 400, "shadow[0]: version {"),
    ({"latest": True, "shadow": [2]}, 400, "shadow: [2] does not go with latest"),
    ({"latest": 1}, 400, "latest 1 must be true or false"),
    ({"split": [share(1, 100)], "allow_incompatible": "yes"}, 400, "allow_incompatible 'yes'"),
    ({"splitt": []}, 400, "did you mean 'split'"),
    ([], 400, "JSON object"),
    ({"split": [share(9, 100)]}, 404, "no version 9", "it has 1, 2, 3, 4, 5"),
    ({"split": [share(1, 50), share(9, 50)]}, 404, "no version 9"),
    ({"split": [share(1, 100)], "shadow": [9]}, 404, "no version 9"),
    ({"split": [share(4, 100)]}, 409, "route cannot name m/4: FAILED: no such operator"),
    ({"split": [share(1, 99), share(4, 1)]}, 409, "route cannot name m/4: FAILED"),
    ({"split": [share(1, 99), share(5, 1)]}, 409, "route cannot name m/5", "load it first"),
    ({"split": [share(1, 100)], "shadow": [4]}, 409, "a shadow of the route cannot name m/4"),
    ({"split": [share(1, 100)], "shadow": [5]}, 409, "a shadow of the route cannot name m/5"),
]


async def test_wrong_route_is_refused_and_changes_nothing(full):
    """Each names the field, the value and what is allowed, in a route and in a release alike."""
    before = seen(full)
    async with full.client() as client:
        for body, status, *words in BAD_ROUTES:
            await refused(full, await client.put(f"{M}/route", json=body), status, *words)
            routes = {"routes": {"m": body}}
            words = ["must be an object"] if body == [] else words
            answer = await client.put("/admin/v1/release", json=routes)
            await refused(full, answer, status, *words)
            if status == 400 and words[0] != "give either split or" and body != []:
                assert "routes.m" in answer.json()["error"]
    assert seen(full) == before


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, ["routes None", "1 to 1000 models"]),
        ({"routes": {}}, 400, ["routes {}", "1 to 1000 models"]),
        ({"routes": []}, 400, ["routes []"]),
        ({"routes": {"a b": SPLIT}}, 400, ["model name 'a b'"]),
        ({"routes": {"none": SPLIT}}, 404, ["model 'none' is not known: there "]),
        ({"routes": {"m": {**SPLIT, "if_match": 3}}}, 400, ["routes.m: if_match 3"]),
        ({"routes": {"m": {**SPLIT, "if_match": '"0"'}}}, 409, ["m: If-Match"]),
        ({"routes": {"m": {**SPLIT, "ifmatch": ""}}}, 400, ["routes.m", "did you mean 'if_match'"]),
        ({"route": {}}, 400, ["did you mean 'routes'"]),
    ],
)
async def test_wrong_release_is_refused_and_changes_nothing(full, body, status, words):
    """A release says which model of it is wrong."""
    before = seen(full)
    async with full.client() as client:
        await refused(full, await client.put("/admin/v1/release", json=body), status, *words)
    assert seen(full) == before


async def test_a_release_happens_only_to_the_routes_that_were_seen(full):
    """If-Match holds for every route without an if_match of its own; one that moved stops all."""
    async with full.client() as client:
        tag = (await client.get(f"{M}/route")).json()["etag"]
        before = seen(full)
        for header, own in (('"0"', None), (tag, '"0"')):
            guard = {} if own is None else {"if_match": own}
            body = {"routes": {"m": {**SPLIT, **guard}}}
            answer = await client.put("/admin/v1/release", json=body, headers={"if-match": header})
            await refused(full, answer, 409, "m: If-Match '\"0\"'", f"is {tag} now")
        assert seen(full) == before
        whole = {"split": [share(1, 100)]}
        answer = await client.put(
            "/admin/v1/release", json={"routes": {"m": {**whole, "allow_incompatible": True}}},
            headers={"if-match": f'"0", {tag}'},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text


async def test_the_etag_of_an_alias_is_shown_and_guards_it(full):
    """The answer that sets it has it, the model lists it, and another one is refused."""
    async with full.client() as client:
        url = f"{M}/aliases/prod"
        tag = (await client.put(url, json={"version": 1})).json()["etag"]
        assert (await client.get(M)).json()["alias_etags"]["prod"] == tag
        stale = await client.put(url, json={"version": 2}, headers={"if-match": '"0"'})
        await refused(full, stale, 409, "If-Match")
        gone = await client.delete(url, headers={"if-match": tag})
        assert (gone.status_code, gone.json()["etag"]) == (200, None)


@pytest.mark.parametrize(
    ("alias", "body", "status", "words"),
    [
        ("latest", {"version": 1}, 400, ["'latest' is reserved"]),
        ("3", {"version": 1}, 400, ["alias '3' is not allowed", "[a-z]"]),
        ("Prod", {"version": 1}, 400, ["alias 'Prod' is not allowed"]),
        ("prod", {"version": "1"}, 400, ["version '1'"]),
        ("prod", {}, 400, ["version is missing"]),
        ("prod", {"version": 9}, 404, ["no version 9"]),
        ("prod", {"version": 4}, 409, ["alias 'prod' cannot name m/4: FAILED"]),
        ("prod", {"version": 5}, 409, ["alias 'prod' cannot name m/5", "load it first"]),
    ],
)
async def test_wrong_alias_is_refused_and_changes_nothing(full, alias, body, status, words):
    """Numbers and latest are no aliases, and an alias names only what is READY."""
    before = seen(full)
    async with full.client() as client:
        answer = await client.put(f"{M}/aliases/{alias}", json=body)
    await refused(full, answer, status, *words)
    assert seen(full) == before


BAD_SETTINGS = [
    ({"queue_row": 1}, "did you mean 'queue_rows'"),
    ({"queue_rows": 0}, "queue_rows: 0", "an integer from 1 to"),
    ({"queue_rows": 1.5}, "queue_rows: 1.5", "integer"),
    ({"queue_rows": True}, "queue_rows: True", "integer"),
    ({"queue_rows": "5"}, "queue_rows: '5'", "integer"),
    ({"max_concurrency": 0}, "max_concurrency: 0", "from 1"),
    ({"priority": 101}, "priority: 101", "from -100 to 100"),
    ({"batching": 1}, "batching: 1", "true or false"),
    ({"max_run_s": 0}, "max_run_s: 0", "a number from 0.01 to 604800"),
    ({"timeout_ms": 3_600_001}, "timeout_ms: 3600001", "1 to 3600000"),
    ({"max_output_bytes": 2**53}, "max_output_bytes: 9007199254740992"),
    ({"retain": -1}, "retain: -1", "from 0"),
    ({"queue_rows": 5, "retain": []}, "retain: []"),
    ([], "JSON object"),
]


async def test_wrong_setting_is_refused_and_changes_nothing(full):
    """Each names the key, the value and the range; a good one beside it is not set either."""
    before = seen(full)
    async with full.client() as client:
        for body, *words in BAD_SETTINGS:
            await refused(full, await client.put(f"{M}/settings", json=body), 400, *words)
        await refused(full, await client.put("/admin/v1/models/none/settings", json={}), 404)
    assert seen(full) == before


async def test_split_is_shown_everywhere(full):
    """Route, history, models and versions agree about shares, shadows and previous."""
    async with full.client() as client:
        body = {"split": SPLIT["split"][::-1], "shadow": [3]}
        answer = await client.put(f"{M}/route", json=body)
        whole = {"split": [share(1, 100)], "shadow": []}
        assert answer.json() == {
            "model": "m", **SPLIT, "latest": False, "previous": whole,
            "etag": answer.headers["etag"],
        }  # fmt: skip
        model = (await client.get(M)).json()
        assert model["route"] == answer.json() == (await client.get(f"{M}/route")).json()
        assert [
            (v["version"], v["traffic"], v["is_shadow"], v["is_previous"])
            for v in model["versions"]
        ] == [(1, 90, False, True), (2, 10, False, False), (3, 0, True, False),
              (4, 0, False, False), (5, 0, False, False)]  # fmt: skip
        history = (await client.get(f"{M}/route/history")).json()["history"]
        assert [{k: h[k] for k in ("split", "shadow")} for h in history] == [whole, SPLIT]

        back = await client.post(f"{M}/route:rollback")
        assert {k: back.json()[k] for k in ("split", "shadow", "previous")} == {
            **whole, "previous": SPLIT,
        }  # fmt: skip
        event = (await client.get("/admin/v1/events?since=0&limit=1000")).json()["events"][-1]
        assert event["kind"] == "rollback"
        assert event["after"]["route"]["previous"] == SPLIT


async def test_release_answers_with_all_routes(full):
    """The routes come back with their new etags."""
    await full.push_loaded("n", 1)
    async with full.client() as client:
        etag = (await client.get(f"{M}/route")).headers["etag"]
        routes = {"m": {**SPLIT, "if_match": etag}, "n": {"latest": True}}
        answer = await client.put("/admin/v1/release?reason=go", json={"routes": routes})
        assert answer.status_code == 200, answer.text
        shown = {route["model"]: route for route in answer.json()["routes"]}
        assert shown["m"]["split"] == SPLIT["split"]
        assert shown["n"]["latest"] is True
        for name, route in shown.items():
            events = (await client.get(f"/admin/v1/events?model={name}&limit=1000")).json()
            last = events["events"][-1]
            assert (last["kind"], last["reason"]) == ("release", "go")
            assert route["etag"] == f'"{last["seq"]}"'


async def test_settings_are_shown_changed_and_guarded(full):
    """The etag moves with each change, and If-Match refuses a stale one."""
    async with full.client() as client:
        first = await client.get(f"{M}/settings")
        assert set(first.json()["settings"].values()) == {None}
        changed = await client.put(f"{M}/settings", json={"queue_rows": 7, "batching": False},
                                   headers={"if-match": first.headers["etag"]})  # fmt: skip
        assert changed.json()["settings"]["queue_rows"] == 7
        stale = await client.put(f"{M}/settings", json={"queue_rows": 8},
                                 headers={"if-match": first.headers["etag"]})  # fmt: skip
        await refused(full, stale, 409, "If-Match")
        again = await client.get(f"{M}/settings")
        assert again.json() == changed.json()
        assert (await client.get(M)).json()["settings"] == changed.json()["settings"]
        reset = await client.put(f"{M}/settings", json=dict.fromkeys(("queue_rows", "batching")))
        assert set(reset.json()["settings"].values()) == {None}
        assert reset.headers["etag"] != first.headers["etag"]


async def test_change_that_workers_did_not_take_is_a_504(full):
    """The status is that of work not done in time, and the text says what holds."""
    full.fleet.is_stuck = True
    async with full.client() as client:
        answer = await client.put(f"{M}/route", json=SPLIT)
        await refused(full, answer, 504, "route of m", "slots [0]", "the former state is in force")
        assert (await client.get(f"{M}/route")).json()["split"] == [share(1, 100)]
