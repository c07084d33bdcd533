"""The admin plane's OpenAPI document against live answers.

Every client of these tests checks each answer against the document (see ``documented``). Here is
one good call of each operation, errors of all kinds, and what the document itself must have.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from typing import Any

import httpx
import pytest

from registry.manifest import parse_manifest
from serving.admin.table import CALLS
from serving.errors import STATUS
from serving.settings import SCOPES, Token
from tests.schema_check import problems
from tests.unit.serving.admin.documented import operation_of

pytestmark = pytest.mark.timeout(30)
MODELS = "/admin/v1/models"


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


async def test_each_operation_answers_what_its_schema_says(world, client):
    """One good answer of every call, each as documented; none is left out."""
    reached = set()
    document = (await client.get("/openapi.json")).json()
    manifest = world.manifest("m", b"one", b"w" * 100).to_json()
    digest = "sha256:" + hashlib.sha256(b"more").hexdigest()

    async def good(method: str, path: str, status: int = 200, **options: Any) -> None:
        answer = await client.request(method, path, **options)
        assert answer.status_code == status, answer.text
        operation = operation_of(document, method, answer.request.url.path)
        assert operation is not None
        reached.add(operation["operationId"])

    await good("PUT", f"/admin/v1/blobs/{digest}", 201, content=b"more")
    await good("HEAD", f"/admin/v1/blobs/{digest}")
    await good("POST", f"{MODELS}/m/versions", 201, json=manifest)
    await good("GET", MODELS)
    await good("POST", f"{MODELS}/m/versions/1:plan")
    await good("POST", f"{MODELS}/m/versions/1:load?wait=20")
    begun = await client.post(f"{MODELS}/m/versions/1:load")
    await good("GET", f"/admin/v1/operations/{begun.json()['id']}")
    await good("PUT", f"{MODELS}/m/aliases/prod", json={"version": 1})
    await world.push("m", b"two")
    await world.load("m", 2)
    await good("PUT", f"{MODELS}/m/route", json={"latest": True})
    split = [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}]
    await good("PUT", "/admin/v1/release", json={"routes": {"m": {"split": split}}})
    await good("PUT", f"{MODELS}/m/settings", json={"queue_rows": 7, "max_run_s": 0.5})
    for path in ("", "/versions/1", "/versions/2", "/route", "/route/history", "/settings"):
        await good("GET", f"{MODELS}/m{path}")
    await good("POST", f"{MODELS}/m/route:rollback")
    await good("DELETE", f"{MODELS}/m/aliases/prod")
    await good("DELETE", f"{MODELS}/m/route")
    await good("POST", f"{MODELS}/m/versions/1:unload?wait=20")
    await good("DELETE", f"{MODELS}/m/versions/1")
    for path in ("events", "memory", "workers"):
        await good("GET", f"/admin/v1/{path}")
    await good("POST", "/admin/v1/gc")
    await good("POST", "/admin/v1/verify")
    await good("POST", "/admin/v1/workers:restart?wait=20")
    world.control.on_upgrade(nothing)
    await good("POST", "/admin/v1/server:upgrade")
    await good("POST", "/v2/repository/index")
    await good("POST", "/v2/repository/models/m/unload")
    await good("POST", "/v2/repository/models/m/load")
    await good("GET", "/admin/v1/console/stream?limit=1")
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/", "/console/main.js"):
        await good("GET", path)

    assert reached == {op["operationId"] for op in operations(document).values()}


async def nothing() -> None:
    pass


async def test_document_names_version_scheme_and_scopes(client):
    """The release is the package's, and each call names the token's scope it needs."""
    document = (await client.get("/openapi.json")).json()

    assert document["info"]["version"] == metadata.version("ramrack")
    scheme = document["components"]["securitySchemes"]["bearer"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    wanted = {f"{c.method} {c.path.replace(':name}', '}')}": c.scope for c in CALLS}
    for name, operation in operations(document).items():
        scope = wanted[name]
        assert operation.get("security") == ([{"bearer": [scope]}] if scope else None), name
        assert ({"401", "403"} <= set(operation["responses"])) == bool(scope), name


async def test_document_has_a_schema_for_each_answer_and_an_example_for_each_body(client):
    """No answer is undescribed, no status is one that the error table does not have."""
    document = (await client.get("/openapi.json")).json()
    known = {str(code) for code in {200, 201, 202, *STATUS.values()} - {499}}
    empty = {"head_blob", "triton_load", "triton_unload"}

    for name, operation in operations(document).items():
        assert set(operation["responses"]) <= known, name
        assert {"405", "431", "500"} <= set(operation["responses"]), name
        for status, answer in operation["responses"].items():
            is_empty = status == "200" and operation["operationId"] in empty
            schemas = [content["schema"] for content in answer.get("content", {}).values()]
            assert bool(schemas) != is_empty, (name, status)
            assert all(schemas), (name, status)
        body = operation.get("requestBody")
        for content in body["content"].values() if body else ():
            assert list(problems(content["example"], content["schema"], document)) == [], name


async def test_a_change_that_takes_if_match_says_so_and_where_to_get_one(client):
    """What its header names is the ETag of the answers about the same thing."""
    document = (await client.get("/openapi.json")).json()
    takes = {
        name: operation for name, operation in operations(document).items()
        if "If-Match" in {parameter["name"] for parameter in operation.get("parameters", ())}
    }  # fmt: skip
    assert {operation["operationId"] for operation in takes.values()} == {
        "set_alias", "delete_alias", "set_route", "delete_route", "roll_back", "release",
        "set_settings",
    }  # fmt: skip
    tagged = {
        operation["operationId"] for operation in operations(document).values()
        if "ETag" in operation["responses"].get("200", {}).get("headers", {})
    }  # fmt: skip
    assert tagged == {
        "set_alias", "show_route", "set_route", "roll_back", "show_settings", "set_settings",
    }  # fmt: skip


async def test_links_lead_to_calls_that_there_are(client):
    """Each names an operation and gives it parameters of its path."""
    document = (await client.get("/openapi.json")).json()
    known = {each["operationId"]: each for each in operations(document).values()}
    links = [
        link for operation in known.values() for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]  # fmt: skip
    assert len(links) > 20
    for link in links:
        target = known[link["operationId"]]
        in_path = {each["name"] for each in target["parameters"] if each["in"] == "path"}
        assert link["parameters"].keys() <= in_path, link


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/admin/v1/gc", b"null"),
        ("POST", "/admin/v1/verify", b"[]"),
        ("POST", f"{MODELS}/m/versions/1:plan", b"null"),
        ("POST", "/v2/repository/index", b"null"),
        ("POST", "/v2/repository/models/m/load", b'{"parameters": {"unload_dependents": null}}'),
        ("PUT", f"{MODELS}/m/route", b'{"latest": true, "split": []}'),
        ("GET", "/admin/v1/console/stream?limit=100001", b""),
        ("POST", "/admin/v1/verify?reason=x", b""),
    ],
)
async def test_what_the_schema_forbids_is_refused(world, client, method, path, body):
    """No body is passed over because nothing in it was needed, nor a parameter that is not read."""
    await world.push("m", b"one")
    answer = await client.request(
        method, path, content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text


async def test_example_of_a_manifest_is_one(client):
    """What is copied from the page is read by the server."""
    document = (await client.get("/openapi.json")).json()
    publish = document["paths"][MODELS + "/{model}/versions"]["post"]
    example = publish["requestBody"]["content"]["application/json"]["example"]

    assert parse_manifest(example).model == "fraud"


async def test_errors_of_all_kinds_are_documented(world):
    """Statuses that the error table gives are in the document of the calls that give them."""
    token = Token("reader", hashlib.sha256(b"secret").hexdigest(), ("read",))
    everything = Token("all", hashlib.sha256(b"all").hexdigest(), SCOPES)
    bad = await world.push("m", b"bad")
    await world.push("m", b"big", b"w" * 2000)
    world.inspector.refused[bad.manifest.graph] = "no such operator: Nope"
    world.control.ledger.budget_bytes = 1000
    seen = set()
    async with world.client(tokens=(token, everything)) as client:

        async def ask(method: str, path: str, secret: str = "all", **options: Any) -> None:
            headers = {"authorization": f"Bearer {secret}", **options.pop("headers", {})}
            answer: httpx.Response = await client.request(method, path, headers=headers, **options)
            seen.add(answer.status_code)

        await ask("GET", MODELS, "nobody")
        await ask("POST", "/admin/v1/gc", "secret")
        await ask("GET", MODELS, headers={"host": "evil.example"})
        await ask("GET", f"{MODELS}?x=1")
        await ask("GET", f"{MODELS}/none")
        await ask("PUT", f"{MODELS}/m/aliases/prod", json={"version": 1})
        await ask("POST", f"{MODELS}/m/versions/1:load?wait=20")
        await ask("POST", f"{MODELS}/m/versions/2:load?wait=20")
        await ask("POST", f"{MODELS}/m/versions/1:load", content=b"a=b",
                  headers={"content-type": "text/plain"})  # fmt: skip
        await ask("POST", "/admin/v1/gc", content=b"[" + b" " * (9 << 20))
        await ask("POST", f"{MODELS}/m/versions", json=manifest_without_objects())
        world.fleet.slots = ()
        await ask("GET", "/v2/health/ready")

    assert seen >= {400, 401, 403, 404, 409, 413, 415, 503, 507}


def manifest_without_objects() -> dict[str, Any]:
    """Return a manifest of an object that is not there."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    return {
        "format": 1, "model": "m", "graph": "sha256:" + "1" * 64, "tensors": [],
        "signature": {"inputs": [tensor], "outputs": [tensor]}, "runtime": {"name": "onnx"},
    }  # fmt: skip
