"""Uploads and manifests through HTTP: taken in, refused, mended."""

from __future__ import annotations

import asyncio

import pytest

from tests.store_driver import digest_of
from tests.unit.serving.admin.http_calls import MODELS, error_of

pytestmark = pytest.mark.timeout(30)


async def test_upload_of_other_bytes_keeps_nothing(world, client):
    """A digest that does not match is a 400, and the store is as before."""
    digest = digest_of(b"good")

    answer = await client.put(f"/admin/v1/blobs/{digest}", content=b"evil")

    await error_of(answer, 400)
    assert world.store.usage().objects == 0
    assert list((world.store.root / "tmp").iterdir()) == []


async def test_upload_of_what_is_there_is_not_written_again(world, client):
    """A second upload of an object is a 200, and its bytes are read and dropped."""
    digest = await asyncio.to_thread(world.put, b"good")
    path = world.store.objects_dir / digest.removeprefix("sha256:")
    before = path.stat().st_ino

    answer = await client.put(f"/admin/v1/blobs/{digest}", content=b"good")

    assert (answer.status_code, answer.json()["bytes"]) == (200, 4)
    assert path.stat().st_ino == before


async def test_one_push_mends_all_that_is_damaged(world, client):
    """Cut objects are not there, an upload replaces them, and registering finds the others."""
    objects = [b"graph", b"w" * 70_000, b"v" * 70_000, b"u" * 70_000]
    manifest = await asyncio.to_thread(world.manifest, "m", *objects)
    await client.post(f"{MODELS}/m/versions", json=manifest.to_json())
    paths = [world.store.objects_dir / digest_of(o).removeprefix("sha256:") for o in objects]
    for path, data in zip(paths, (b"", b"w", bytes(70_000), bytes(70_000)), strict=True):
        path.chmod(0o644)
        path.write_bytes(data)
    heads = [await client.head(f"/admin/v1/blobs/{digest_of(each)}") for each in objects]
    assert [head.status_code for head in heads] == [404, 404, 200, 200]

    for each in objects[:2]:
        answer = await client.put(f"/admin/v1/blobs/{digest_of(each)}", content=each)
        assert answer.status_code == 201
    answer = await client.post(f"{MODELS}/m/versions", json=manifest.to_json())
    assert answer.status_code == 409
    assert set(answer.json()["missing"]) == {digest_of(each) for each in objects[2:]}

    for each in objects[2:]:
        await client.put(f"/admin/v1/blobs/{digest_of(each)}", content=each)
    answer = await client.post(f"{MODELS}/m/versions", json=manifest.to_json())
    assert (answer.status_code, answer.json()["created"]) == (200, False)
    assert [path.read_bytes() for path in paths] == objects


async def test_an_upload_replaces_what_has_another_size(world, client):
    """Also where no version says how large it should be: the upload does."""
    digest = await asyncio.to_thread(world.put, b"good")
    path = world.store.objects_dir / digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"g")

    answer = await client.put(f"/admin/v1/blobs/{digest}", content=b"good")

    assert (answer.status_code, path.read_bytes()) == (201, b"good")


async def test_client_that_leaves_during_an_upload_leaves_nothing(world):
    """Half an upload is no object, and no file stays."""
    from serving.admin.app import create_admin_app

    app = create_admin_app(world.control, world.settings)
    digest = digest_of(b"x" * 3_000_000)
    messages = [
        {"type": "http.request", "body": b"x" * 2_000_000, "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = []
    scope = {
        "type": "http", "method": "PUT", "path": f"/admin/v1/blobs/{digest}", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", b"3000000")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
        "root_path": "", "http_version": "1.1",
    }  # fmt: skip

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)

    assert sent[0]["status"] == 400
    assert world.store.usage().objects == 0
    assert list((world.store.root / "tmp").iterdir()) == []


async def test_what_is_kept_of_a_broken_upload_goes_in_time(world, client, monkeypatch):
    """Nobody has to ask: a look now and then gives up what is old, and ends with the last."""
    monkeypatch.setattr("serving.control.control_plane.OLD_UPLOADS_EVERY_S", 0.01)
    monkeypatch.setattr("registry.uploads.LEAST_KEPT_BYTES", 1)
    monkeypatch.setattr("registry.kept_uploads.KEPT_S", 0.1)
    digest = digest_of(b"whole")
    upload = world.store.begin_upload(digest, 5)
    upload.write(b"wh")
    upload.suspend()
    head = await client.head(f"/admin/v1/blobs/{digest}")
    assert (head.status_code, head.headers["upload-offset"]) == (404, "2")
    assert head.headers["content-type"] == "application/json"

    world.control.upload_broke_off()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    head = await client.head(f"/admin/v1/blobs/{digest}")
    assert (head.status_code, head.headers["upload-offset"]) == (404, "0")
    assert list((world.store.root / "tmp").iterdir()) == []


async def test_full_disk_is_told_as_507(world, client, monkeypatch):
    """An upload that the disk has no room for is refused, and says so."""
    answer = await client.put(
        f"/admin/v1/blobs/{digest_of(b'x')}", content=b"x", headers={"content-length": str(10**17)}
    )

    assert "no room" in await error_of(answer, 507)


async def test_manifest_that_names_missing_objects_lists_them(client):
    """A publish that is incomplete says what to upload."""
    digest = digest_of(b"nowhere")
    manifest = {
        "format": 1, "model": "m", "graph": digest, "tensors": [],
        "signature": {"inputs": [], "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}]},
        "runtime": {"name": "onnx"},
    }  # fmt: skip

    answer = await client.post(f"{MODELS}/m/versions", json=manifest)

    await error_of(answer, 409)
    assert answer.json()["missing"] == [digest]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "other"}, "of the path"),
        ({"model": "../x"}, "model name"),
        ({"signature": {"inputs": []}}, "signature.outputs"),
        ({"format": 2}, "format"),
        ({"grpah": 1}, "grpah"),
    ],
)
async def test_manifest_that_is_wrong_is_refused(world, client, change, says):
    """Each mistake in a manifest is a 400 that names the field."""
    document = world.manifest("m", b"graph").to_json() | change

    answer = await client.post(f"{MODELS}/m/versions", json=document)

    assert says in await error_of(answer, 400)
