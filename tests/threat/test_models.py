"""Hostile versions, pushed past every check of the pusher's side to a real server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from models.errors import LoadFailed
from models.graph_check import check_graph
from registry.manifest import parse_manifest
from tests import graphs
from tests.cases.rig import (
    MIB,
    WITNESS,
    anonymous_bytes,
    digest_of,
    forget,
    load_refused,
    manifest_of,
    publish,
    publish_graph,
    untouched,
    upload,
)
from tests.hostile_graphs import (
    BOMBS,
    PLACES,
    SECRET_FIELDS,
    asking_for_threads,
    hiding_external,
)
from tests.process.server import RunningServer, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
NAME: Final = "hostile"
NO_TENSORS: Final = parse_manifest(manifest_of(NAME, digest_of(b"g")))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    settings = {"inspect_memory": "256MiB", "inspect_timeout_s": 60}
    # A variable that would let a graph choose its session's options.
    environ = {"ORT_LOAD_CONFIG_FROM_MODEL": "1"}
    with running_server(folder, settings=settings, environ=environ) as running:
        running.push(WITNESS, graphs.id32())
        yield running


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The one server of this file, which every test must leave as it was."""
    with untouched(running):
        yield running


def refused(server: RunningServer, data: bytes, **changes: Any) -> str:
    """Publish a graph, see its load refused with a reason, remove it; return the reason."""
    document = manifest_of(NAME, upload(server, data)) | changes
    version = server.expect(publish(server, document))["version"]
    reason = load_refused(server, NAME, version)
    forget(server, NAME, version)
    return reason


@pytest.mark.parametrize("place", ["function body", "subgraph attribute", "list attribute"])
def test_external_data_escape_is_refused_by_a_load(server: RunningServer, place: str) -> None:
    """Where a check may forget to look; the other places are in tests/cases, F05."""
    assert "external" in refused(server, hiding_external(place).SerializeToString())


@pytest.mark.parametrize("place", PLACES)
def test_external_data_escape_hidden_anywhere_is_refused(place: str) -> None:
    """A location outside in each of the places that a tensor can stand in."""
    with pytest.raises(LoadFailed, match="external"):
        check_graph(hiding_external(place), NO_TENSORS)


@pytest.mark.parametrize("place", PLACES)
def test_external_data_escape_is_refused_outside_initializers(place: str) -> None:
    """There not even the version's own object is named: runtimes differ in what they open."""
    digest = digest_of(b"t")
    manifest = parse_manifest(manifest_of(NAME, digest_of(b"g"), [{"digest": digest, "bytes": 64}]))
    fields = {"location": digest.partition(":")[2], "offset": "0", "length": "64"}
    model = hiding_external(place, fields)
    if place in ("initializer", "subgraph initializer", "list of subgraphs"):
        check_graph(model, manifest)
    else:
        with pytest.raises(LoadFailed, match="initializers only"):
            check_graph(model, manifest)


LOCATIONS = ("../secret.bin", "/etc/passwd", "a/../../secret.bin", "//proc/self/root/etc/passwd",
             "secret.bin#.bin", "file:///etc/passwd", "http://127.0.0.1/x", "", ".", "linked",
             "\0")  # fmt: skip


@pytest.mark.parametrize("location", LOCATIONS)
def test_external_data_escape_by_any_location_is_refused(location: str) -> None:
    """Only a digest of the manifest is a location: no path, no link, no URL."""
    fields = {**SECRET_FIELDS, "location": location}
    model = graphs.id32()
    model.graph.initializer.append(graphs.external_tensor("t", (16,), fields))
    with pytest.raises(LoadFailed, match="is no tensor of the manifest"):
        check_graph(model, NO_TENSORS)


ODD_FIELDS = (
    {"offset": "-1"}, {"length": "-64"}, {"offset": str(2**63)}, {"length": "9" * 5000},
    {"offset": "0x0"}, {"offset": "0 "}, {"checksum": "x"}, {"__class__": "x"}, {"offset": "4"},
    {"basepath": "/"}, {"offset": "\u0660"}, {"length": "32"},
)  # fmt: skip


@pytest.mark.parametrize("fields", ODD_FIELDS)
def test_external_data_escape_by_odd_fields_is_refused(fields: dict[str, str]) -> None:
    """Offset and length are numbers within the object, and there is no other field."""
    digest = digest_of(b"t")
    entry = {"digest": digest, "bytes": 64}
    manifest = parse_manifest(manifest_of(NAME, digest_of(b"g"), [entry]))
    good = {"location": digest.partition(":")[2], "offset": "0", "length": "64"}
    for given, is_good in ((good, True), ({**good, **fields}, False)):
        model = graphs.id32()
        model.graph.initializer.append(graphs.external_tensor("t", (16,), given))
        if is_good:
            check_graph(model, manifest)
        else:
            with pytest.raises(LoadFailed, match="external"):
                check_graph(model, manifest)


@pytest.mark.parametrize("bomb", BOMBS)
def test_model_bomb_is_refused_with_its_reason(server: RunningServer, bomb: str) -> None:
    """In a child that is thrown away: neither parent nor worker grows, nobody else notices."""
    make, word = BOMBS[bomb]
    pids = [server.pid, *server.worker_pids()]
    before = sum(map(anonymous_bytes, pids))
    assert word in refused(server, make().SerializeToString())
    assert sum(map(anonymous_bytes, pids)) - before < 64 * MIB


def test_model_bomb_of_threads_gets_none(server: RunningServer) -> None:
    """Metadata asks for 64 threads and the environment allows it: neither is listened to."""
    pid = server.worker_pids()[0]
    task = Path(f"/proc/{pid}/task")
    version = publish_graph(server, NAME, asking_for_threads().SerializeToString())
    before = len(list(task.iterdir()))
    server.expect(server.load(NAME, version))
    assert len(list(task.iterdir())) - before < 16
    assert b"ORT_LOAD_CONFIG_FROM_MODEL" not in Path(f"/proc/{pid}/environ").read_bytes()
    path = f"/admin/v1/models/{NAME}"
    server.expect(server.admin("DELETE", f"{path}/route"))
    server.expect(server.admin("POST", f"{path}/versions/{version}:unload", params={"wait": 60}))
    forget(server, NAME, version)


def test_model_bomb_brings_no_library(server: RunningServer, tmp_path: Path) -> None:
    """A manifest cannot name a library of operators: what it says more is not looked at."""
    library = tmp_path / "operators.so"
    library.write_bytes(b"\x7fELF")
    runtime = {"name": "onnx", "custom_ops": str(library), "libraries": [str(library)]}
    make, word = BOMBS["foreign operator"]
    assert word in refused(server, make().SerializeToString(), runtime=runtime)


@pytest.mark.parametrize("shape", [[-1, 2**63], [-2, 4], [True, 4], [1] * 9, "4", [-1, 4.0]])
def test_model_bomb_in_the_signature_is_refused_when_published(
    running: RunningServer, shape: object
) -> None:
    """Shapes are checked before there is a version, and the message names the field."""
    document = manifest_of(NAME, upload(running, graphs.log().SerializeToString()))
    document["signature"]["inputs"][0]["shape"] = shape
    answer = publish(running, document)
    assert answer.status_code == 400
    assert "signature.inputs[0].shape" in answer.json()["error"]
    assert running.admin("GET", f"/admin/v1/models/{NAME}").status_code == 404


# What a process may do that opens what strangers made.


def test_least_privilege_of_the_workers(server: RunningServer) -> None:
    """A worker has no file of the store open or mapped to write to, and calls nobody."""
    for pid in server.worker_pids():
        folder = Path(f"/proc/{pid}")
        for entry in (folder / "fd").iterdir():
            if str(entry.readlink()).startswith(str(server.store)):
                flags = (folder / "fdinfo" / entry.name).read_text().split("flags:")[1].split()[0]
                assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, entry.readlink()
        shared = [
            line for line in (folder / "maps").read_text().splitlines()
            if str(server.store) in line and "w" in line.split()[1] and "s" in line.split()[1]
        ]  # fmt: skip
        assert shared == []
        port = int(server.url.rpartition(":")[2])
        assert outgoing(pid, port) == []


def outgoing(pid: int, own_port: int) -> list[str]:
    """Return the TCP connections of a process that it did not accept at its own port."""
    folder = Path(f"/proc/{pid}")
    inodes = {str(entry.readlink()) for entry in (folder / "fd").iterdir() if entry.is_symlink()}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in (folder / "net" / table).read_text().splitlines()[1:]
    ]
    return [
        row[1] for row in rows
        if f"socket:[{row[9]}]" in inodes and int(row[1].rpartition(":")[2], 16) != own_port
    ]  # fmt: skip


def test_least_privilege_is_seen_where_it_lacks() -> None:
    """The look for outgoing connections finds one where there is one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        assert f"0100007F:{client.getsockname()[1]:04X}" in outgoing(os.getpid(), 1)
