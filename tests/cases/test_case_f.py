"""Security cases through real sockets: what is refused, and that nothing else notices."""

from __future__ import annotations

import io
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import graphs
from tests.cases.rig import (
    MIB,
    ROW,
    WITNESS,
    anonymous_bytes,
    digest_of,
    forget,
    load_refused,
    manifest_of,
    publish,
    publish_graph,
    push_refused,
    ramrack,
    says_too_much,
    untouched,
    upload,
)
from tests.hostile_graphs import nested
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
SECRET = b"root:x:0:0:secret of another folder\n".ljust(64, b"#")
LARGE = 16 * 1024
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"inspect_timeout_s": 60, "inspect_memory": "256MiB"}
    folder = tmp_path_factory.mktemp("f")
    with running_server(folder, workers=2, settings=settings) as running:
        running.push(WITNESS, graphs.id32())
        yield running


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The one server of this file, which every test must leave as it was."""
    with untouched(running):
        yield running


def refused_graph(server: RunningServer, model: onnx.ModelProto | bytes, **options: Any) -> str:
    """Publish a graph by hand, see its load refused, remove it; return the reason."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    version = publish_graph(server, "hostile", data, **options)
    reason = load_refused(server, "hostile", version)
    forget(server, "hostile", version)
    return reason


def leak_of(tensor: onnx.TensorProto) -> onnx.ModelProto:
    """Return a graph that answers with the bytes of a tensor, and has an input to be asked by."""
    return graphs.build(
        [
            helper.make_node("Identity", ["t"], ["y"]),
            helper.make_node("Identity", ["x"], ["echo"]),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, None), graphs.value("echo", TensorProto.FLOAT, None)],
        [tensor],
    )


# F02: who may use the admin plane.


def admin_calls(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return method and path of every documented call, names filled in."""
    names = {"model": "m", "version": "1", "alias": "a", "digest": digest_of(b""), "id": "x",
             "file": "main.js"}  # fmt: skip
    return [
        (method.upper(), path.format(**names))
        for path, item in document["paths"].items()
        for method in item
    ]


def test_f02_the_inference_port_has_no_admin_call(server: RunningServer) -> None:
    """No call that changes or tells anything of the admin plane is on the data plane."""
    calls = admin_calls(server.expect(server.admin("GET", "/openapi.json")))
    mine = [call for call in calls if "/admin/" in call[1] or call[1].endswith("load")]
    assert len(mine) > 20
    for method, path in mine:
        answer = server.data(method, path)
        assert answer.status_code in (404, 405), f"{method} {path}: {answer.status_code}"
    assert server.data("GET", "/metrics").status_code == 404


def test_f02_the_admin_plane_is_bound_to_loopback(server: RunningServer) -> None:
    """Without a token nobody off this machine reaches it."""
    port = int(server.admin_url.rpartition(":")[2])
    folder = Path(f"/proc/{server.pid}/fd")
    inodes = {str(entry.readlink()) for entry in folder.iterdir() if entry.is_symlink()}
    listening = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    mine = [x[1] for x in listening if x[3] == "0A" and f"socket:[{x[9]}]" in inodes]
    assert f"0100007F:{port:04X}" in mine
    assert all(address.startswith("0100007F:") for address in mine)


def test_f02_a_page_of_another_site_is_refused(server: RunningServer) -> None:
    """A browser on this machine lends its hands to nobody: foreign hosts and origins get a 403."""
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = server.admin("POST", "/admin/v1/gc", headers=headers)
        assert answer.status_code == 403, answer.text


def test_f02_a_token_is_needed_for_every_call_and_shows_nowhere(tmp_path: Path) -> None:
    """No token or a wrong one is a 401 on every call; the token is in no log, page or process."""
    settings = {"admin_token": TOKEN, "access_log": "all", "log_level": "debug"}
    with running_server(tmp_path, settings=settings, is_waiting=False) as server:
        wait_until(
            lambda: server.admin("GET", "/v2/health/ready").status_code == 200, 60, "it is ready"
        )
        right = {"authorization": f"Bearer {TOKEN}"}
        document = server.expect(server.admin("GET", "/openapi.json", headers=right))
        # Health, and the console's page, which shows nothing before it has a token.
        is_open = re.compile("/v2/health/.*|/|/console/[^/]*").fullmatch
        calls = [call for call in admin_calls(document) if not is_open(call[1])]
        assert len(calls) > 25
        with httpx.Client(
            base_url=server.admin_url, timeout=60, trust_env=False, verify=False
        ) as client:
            for method, path in calls:
                for headers in ({}, {"authorization": "Bearer " + TOKEN[:-1]}):
                    answer = client.request(method, path, headers=headers)
                    assert answer.status_code == 401, f"{method} {path}: {answer.status_code}"
        pids = [
            worker["pid"]
            for worker in server.admin("GET", "/admin/v1/workers", headers=right).json()["workers"]
        ]
        shown = [
            server.admin("GET", path, headers=right).text
            for path in ("/metrics", "/admin/v1/events", "/admin/v1/workers", "/openapi.json")
        ]
        for pid in (server.pid, *pids):
            shown.append(Path(f"/proc/{pid}/cmdline").read_text())
        for pid in pids:
            shown.append(Path(f"/proc/{pid}/environ").read_text())
        shown.append(server.stderr())
        assert not [text for text in shown if TOKEN in text]


# F05 and F07: external data, on the server's side by a graph made by hand.


@pytest.mark.parametrize(
    "location",
    ["../../secret.bin", "/etc/passwd", "sub/../../secret.bin", "//proc/self/root/etc/passwd"],
)
def test_f05_a_graph_that_points_out_of_the_store_is_refused(
    server: RunningServer, location: str
) -> None:
    """The load says which location it is, and nothing is answered with its bytes."""
    fields = {"location": location, "offset": "0", "length": "64"}
    reason = refused_graph(server, leak_of(graphs.external_tensor("t", (16,), fields)))
    assert "external location" in reason
    assert repr(location) in reason
    assert server.infer("hostile", [ROW]).status_code == 404


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_f05_a_link_in_the_objects_folder_is_no_tensor(
    server: RunningServer, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """Only digests of the manifest are names, whatever else lies beside the objects."""
    secret = server.store.parent / "secret.bin"
    secret.write_bytes(SECRET)
    planted = server.store / "objects" / "planted.bin"
    link(secret, planted)
    try:
        fields = {"location": "planted.bin", "offset": "0", "length": "64"}
        reason = refused_graph(server, leak_of(graphs.external_tensor("t", (16,), fields)))
    finally:
        planted.unlink()
    assert "is no tensor of the manifest" in reason


def test_f05_an_object_that_became_a_symlink_is_refused(server: RunningServer) -> None:
    """A digest whose file is a link elsewhere is damage, not a way out."""
    data = bytes(LARGE * 4)
    digest = upload(server, data)
    fields = {"location": digest.partition(":")[2], "offset": "0", "length": str(len(data))}
    graph = leak_of(graphs.external_tensor("t", (LARGE,), fields)).SerializeToString()
    entry = {"digest": digest, "bytes": len(data)}
    version = publish_graph(server, "hostile", graph, [entry])
    path = server.store / "objects" / fields["location"]
    path.unlink()
    secret = server.store.parent / "secret.bin"
    secret.write_bytes(SECRET.ljust(len(data), b"#"))
    path.symlink_to(secret)
    answer = server.load("hostile", version)
    assert answer.status_code >= 400
    assert digest in answer.json()["error"]
    assert not says_too_much(answer.text)
    forget(server, "hostile", version)
    assert not path.is_symlink()


def hidden_in(place: str, tensor: onnx.TensorProto) -> onnx.ModelProto:
    """Return an identity that has ``tensor`` where a check may forget to look."""
    model = graphs.id32()
    node = model.graph.node[0]
    sparse = onnx.SparseTensorProto(values=tensor, dims=[16])
    if place == "tensor attribute":
        node.attribute.add(name="a", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    elif place == "sparse attribute":
        attribute = node.attribute.add(name="a", type=onnx.AttributeProto.SPARSE_TENSOR)
        attribute.sparse_tensor.CopyFrom(sparse)
    elif place == "sparse initializer":
        model.graph.sparse_initializer.append(sparse)
    elif place == "function default":
        model.functions.add(name="f", domain="own").attribute_proto.add(name="a").t.CopyFrom(tensor)
    elif place == "branch of an If":
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        attribute.g.initializer.append(tensor)
    return model


@pytest.mark.parametrize(
    "place",
    ["tensor attribute", "sparse attribute", "sparse initializer", "function default",
     "branch of an If"],
)  # fmt: skip
def test_f05_external_data_hidden_elsewhere_is_refused(server: RunningServer, place: str) -> None:
    """Each place that a tensor can stand in is looked at."""
    fields = {"location": "/etc/passwd", "offset": "0", "length": "64"}
    model = hidden_in(place, graphs.external_tensor("t", (16,), fields))
    assert "external" in refused_graph(server, model)


def test_f05_the_pusher_refuses_what_leaves_the_folder(
    server: RunningServer, tmp_path: Path
) -> None:
    """The command says which tensor and which location, and sends nothing."""
    outside, folder = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    folder.mkdir()
    (outside / "secret.bin").write_bytes(SECRET)
    (folder / "link.bin").symlink_to(outside / "secret.bin")
    (folder / "hard.bin").hardlink_to(outside / "secret.bin")
    for location in ("../outside/secret.bin", "/etc/passwd", "link.bin", "hard.bin"):
        fields = {"location": location, "offset": "0", "length": "64"}
        path = folder / "model.onnx"
        path.write_bytes(leak_of(graphs.external_tensor("t", (16,), fields)).SerializeToString())
        said = push_refused(server, "hostile", path)
        assert "initializer 't'" in said
        assert "external" in said
        assert str(tmp_path) not in said


ODD_FIELDS = {
    "unknown key": {"__class__": "x"},
    "prepacked": {"prepacked_0": "K|0;1;x"},
    "negative offset": {"offset": "-1"},
    "huge offset": {"offset": str(2**62)},
    "huge length": {"length": str(2**62)},
    "past the end": {"offset": "4"},
}


@pytest.mark.parametrize("fields", ODD_FIELDS.values(), ids=ODD_FIELDS.keys())
def test_f07_odd_external_fields_are_refused(server: RunningServer, fields: dict[str, str]) -> None:
    """A load says what is wrong; neither memory nor disk grows by what the numbers claim."""
    data = bytes(LARGE * 4)
    digest = upload(server, data)
    good = {"location": digest.partition(":")[2], "offset": "0", "length": str(len(data))}
    tensor = graphs.external_tensor("t", (LARGE,), {**good, **fields})
    pids = [server.pid, *server.worker_pids()]
    before = [anonymous_bytes(pid) for pid in pids]
    entry = {"digest": digest, "bytes": len(data)}
    reason = refused_graph(server, leak_of(tensor), tensors=[entry])
    assert "external" in reason
    grown = [anonymous_bytes(pid) - old for pid, old in zip(pids, before, strict=True)]
    assert max(grown) < 50 * MIB


def test_f07_the_pusher_refuses_overlapping_and_huge_fields(
    server: RunningServer, tmp_path: Path
) -> None:
    """Overlap, offsets past the end and unknown keys are refused before anything is sent."""
    (tmp_path / "w.bin").write_bytes(bytes(LARGE * 4))
    half = {"location": "w.bin", "offset": "0", "length": str(LARGE * 2)}
    overlapping = leak_of(graphs.external_tensor("t", (LARGE // 2,), half))
    overlapping.graph.initializer.append(
        graphs.external_tensor("u", (LARGE // 2,), {**half, "offset": "4096"})
    )
    cases = [
        ("overlaps", overlapping),
        ("ends at byte", leak_of(graphs.external_tensor(
            "t", (LARGE // 2,), {**half, "offset": str(2**62)}))),
        ("unknown external data key", leak_of(graphs.external_tensor(
            "t", (LARGE // 2,), {**half, "__class__": "x"}))),
    ]  # fmt: skip
    for word, model in cases:
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        assert word in push_refused(server, "hostile", path)
    assert (tmp_path / "w.bin").stat().st_size == LARGE * 4


def test_f07_a_graph_whose_tensors_overlap_is_refused(server: RunningServer) -> None:
    """Two tensors that share some bytes of an object are refused, and both are named."""
    data = bytes(LARGE * 4)
    digest = upload(server, data)
    good = {"location": digest.partition(":")[2], "length": "64"}
    model = leak_of(graphs.external_tensor("t", (16,), {**good, "offset": "0"}))
    model.graph.initializer.append(graphs.external_tensor("u", (16,), {**good, "offset": "32"}))
    entry = {"digest": digest, "bytes": len(data)}
    reason = refused_graph(server, model, tensors=[entry])
    assert reason == ("initializer 'u': its external data overlaps that of initializer 't'")


# F08: pickle.


class Canary:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def evil_files(canary: Path) -> dict[str, bytes]:
    """Return the canary as a pickle and in two NumPy files that hold objects."""
    array, archive = io.BytesIO(), io.BytesIO()
    objects = np.array([Canary(canary)], dtype=object)
    np.save(array, objects, allow_pickle=True)
    np.savez(archive, data=objects)
    return {
        "model.pkl": pickle.dumps(Canary(canary)),
        "rows.npy": array.getvalue(),
        "rows.npz": archive.getvalue(),
    }


MEDIA = ["application/octet-stream", "application/x-pickle", "application/python-pickle",
         "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/plain",
         "application/x-npz", "application/json"]  # fmt: skip


def test_f08_a_pickle_as_a_request_body_is_never_opened(
    server: RunningServer, tmp_path: Path
) -> None:
    """Under each content type, on each call that takes a body, it is a 4xx and stays closed."""
    canary = tmp_path / "canary"
    paths = [f"/v2/models/{WITNESS}/infer", f"/v1/models/{WITNESS}:predict"]
    admin = ["/admin/v1/models/m/versions", f"/admin/v1/models/{WITNESS}/versions/1:load",
             "/admin/v1/gc", "/v2/repository/index"]  # fmt: skip
    for body in evil_files(canary).values():
        for media in MEDIA:
            headers = {"content-type": media}
            for path in paths:
                answer = server.data("POST", path, content=body, headers=headers)
                assert 400 <= answer.status_code < 500, answer.text
            for path in admin:
                answer = server.admin("POST", path, content=body, headers=headers)
                assert 400 <= answer.status_code < 500, answer.text
    assert not canary.exists()


def test_f08_a_pickle_as_an_object_is_never_opened(server: RunningServer, tmp_path: Path) -> None:
    """Uploaded and named as the graph of a version, it is refused at load and stays closed."""
    canary = tmp_path / "canary"
    for body in evil_files(canary).values():
        assert "not an ONNX model" in refused_graph(server, body)
    assert not canary.exists()


def test_f08_a_pickle_under_another_name_is_not_opened_by_a_push(
    server: RunningServer, tmp_path: Path
) -> None:
    """A file by the name of an ONNX model, and rows to compare with, run no code."""
    canary = tmp_path / "canary"
    files = evil_files(canary)
    (tmp_path / "model.onnx").write_bytes(files["model.pkl"])
    assert "pickle" in push_refused(server, "hostile", tmp_path / "model.onnx")
    for name in ("rows.npy", "rows.npz"):
        (tmp_path / name).write_bytes(files[name])
        push_refused(server, "hostile", tmp_path / name)
    (tmp_path / "lgb.txt").write_text("tree\nversion=v4\n")
    push_refused(server, "hostile", tmp_path / "lgb.txt", "--sample", tmp_path / "rows.npy")
    assert not canary.exists()


# F11: small models with giant demands.


def folded_bomb(side: int) -> onnx.ModelProto:
    """Return a graph whose constant is computed while it is opened."""
    model = graphs.id32()
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["s"], ["large"]))
    model.graph.node.insert(1, helper.make_node("ReduceMax", ["large"], ["peak"], keepdims=0))
    model.graph.node[2].CopyFrom(helper.make_node("Add", ["x", "peak"], ["y"]))
    model.graph.initializer.append(graphs.weights("s", np.array([side, side], np.int64)))
    return model


def crash_by_gemm() -> onnx.ModelProto:
    """Return one product whose matrices have no second dimension."""
    return graphs.build(
        [helper.make_node("Gemm", ["x", "w"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 4))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 4))],
        [graphs.weights("w", np.zeros((), np.float32))],
    )


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (lambda: folded_bomb(1_000_000), "more than 256 MiB"),
        (lambda: folded_bomb(12_000), "more than 256 MiB"),
        (crash_by_gemm, ""),
        (lambda: nested(10_000), "not an ONNX model"),
    ],
    ids=["terabytes", "half a gigabyte", "Gemm", "10,000 levels"],
)
def test_f11_a_small_graph_of_giant_demand_is_refused(
    server: RunningServer, graph: Callable[[], onnx.ModelProto | bytes], reason: str
) -> None:
    """It fails in the throwaway child, with the limit in its reason; no worker notices."""
    assert reason in refused_graph(server, graph())


def test_f11_a_bomb_of_150_bytes_is_refused(server: RunningServer) -> None:
    """Hardly more than its name, and it asks for four terabytes."""
    data = graphs.allocate_bomb().SerializeToString()
    assert len(data) < 200
    document = manifest_of("hostile", upload(server, data))
    document["signature"]["inputs"] = []
    document["signature"]["outputs"][0]["shape"] = [-1, -1]
    version = server.expect(publish(server, document))["version"]
    assert "more than 256 MiB" in load_refused(server, "hostile", version)
    forget(server, "hostile", version)


# What the upload and the publishing of a version refuse.


def broken_upload(server: RunningServer, data: bytes, count: int) -> str:
    """Send the first bytes of an object and leave; return its path."""
    host, port = server.admin_url.removeprefix("http://").split(":")
    path = f"/admin/v1/blobs/{digest_of(data)}"
    head = f"PUT {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head.encode() + data[:count])
        folder = server.store / "tmp"
        wait_until(lambda: any(folder.iterdir()), 60, "the upload has begun")
    return path


def test_half_an_upload_leaves_nothing(server: RunningServer) -> None:
    """A client that leaves in the middle of a small object leaves neither object nor file."""
    data = os.urandom(3 * MIB)
    path = broken_upload(server, data, 2 * MIB)
    folder = server.store / "tmp"
    wait_until(lambda: not any(folder.iterdir()), 60, "the half upload is gone")
    answer = server.admin("HEAD", path)
    assert (answer.status_code, answer.headers["upload-offset"]) == (404, "0")


def test_a_large_upload_goes_on_where_it_broke_off(server: RunningServer) -> None:
    """HEAD says where; the rest alone is sent, and only what follows is taken."""
    data = os.urandom(12 * MIB)
    path = broken_upload(server, data, 8 * MIB)
    wait_until(lambda: kept_bytes(server, path) > 0, 60, "what came is kept")
    kept, size = kept_bytes(server, path), len(data)
    assert 4 * MIB <= kept <= 8 * MIB

    def sent(start: int, total: int = size) -> httpx.Response:
        headers = {"content-range": f"bytes {start}-{total - 1}/{total}"}
        return server.admin("PUT", path, content=data[start:], headers=headers)

    assert "content-length" in error_of(sent(kept, size + 1), 400)
    assert f"{kept} of {size} bytes are kept" in error_of(sent(kept - 1), 409)
    answer = sent(kept)
    assert (answer.status_code, answer.json()["bytes"]) == (201, size)
    assert server.admin("HEAD", path).headers["content-length"] == str(size)
    assert not any((server.store / "tmp").iterdir())
    assert sent(kept).status_code == 200
    document = manifest_of("large", digest_of(data), [])
    forget(server, "large", server.expect(publish(server, document))["version"])


@pytest.mark.parametrize("text", ["", "bytes */12", "bytes 4-3/4", "bytes 0-2/4", "bytes 1-3/4x"])
def test_a_range_that_is_none_is_refused(server: RunningServer, text: str) -> None:
    """With the form that is wanted, and before a byte is kept."""
    answer = server.admin(
        "PUT", f"/admin/v1/blobs/{digest_of(b'123')}", content=b"123",
        headers={"content-range": text},
    )  # fmt: skip
    assert 'must be "bytes START-END/TOTAL"' in error_of(answer, 400)


def kept_bytes(server: RunningServer, path: str) -> int:
    return int(server.admin("HEAD", path).headers["upload-offset"])


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"])


def test_an_upload_that_is_not_its_digest_is_refused(server: RunningServer) -> None:
    """A flipped byte and a wrong digest are a 400 with both digests, and nothing is kept."""
    data = bytearray(os.urandom(MIB))
    digest = digest_of(data)
    data[12345] ^= 1
    answer = server.admin("PUT", f"/admin/v1/blobs/{digest}", content=bytes(data))
    assert answer.status_code == 400
    assert digest in answer.json()["error"]
    assert digest_of(data) in answer.json()["error"]
    for wrong in ("sha256:" + "0" * 63, "sha256:" + "G" * 64, "md5:" + "0" * 32, "..%2f..%2fx"):
        answer = server.admin("PUT", f"/admin/v1/blobs/{wrong}", content=bytes(data))
        assert answer.status_code in (400, 404), f"{wrong}: {answer.text}"
        assert not says_too_much(answer.text)


def test_a_manifest_that_names_a_missing_object_is_refused(server: RunningServer) -> None:
    """A 409 lists what to upload; no version comes of it, not even the model's name."""
    graph, other = "sha256:" + "ab" * 32, "sha256:" + "cd" * 32
    document = manifest_of("nothing", graph, [{"digest": other, "bytes": 4}])
    answer = publish(server, document)
    assert answer.status_code == 409
    assert sorted(answer.json()["missing"]) == [graph, other]
    assert server.admin("GET", "/admin/v1/models/nothing").status_code == 404


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (lambda: b"this is no graph at all", "not an ONNX model"),
        (lambda: graphs.unknown_operator().SerializeToString(), "Nonsense"),
    ],
    ids=["not ONNX", "unknown operator"],
)
def test_a_graph_that_nobody_can_run_is_refused(
    server: RunningServer, graph: Callable[[], bytes], reason: str
) -> None:
    """It ends FAILED with the reason."""
    assert reason in refused_graph(server, graph())


def raw_status(server: RunningServer, method: str, path: str) -> tuple[int, int]:
    """Return the status of a path sent byte by byte as it is, on both planes."""
    found = []
    for url in (server.url, server.admin_url):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(
                f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 2\r\n"
                "content-type: application/json\r\nconnection: close\r\n\r\n{}".encode()
            )
            answer = b""
            while chunk := client.recv(65536):
                answer += chunk
        assert b'"error"' in answer, answer
        assert not says_too_much(answer.decode("latin-1"))
        found.append(int(answer.split()[1]))
    return found[0], found[1]


@pytest.mark.parametrize(
    "name",
    ["../x", "%2e%2e%2fx", "..%2fx", "%2e%2e", "..", "a%00b", "%c3%a4", "a" * 65, ".hidden",
     "x%5c..%5cy", "%252e%252e%252fx"],
)  # fmt: skip
def test_a_name_that_is_a_path_is_refused(server: RunningServer, name: str) -> None:
    """As it is and percent-encoded, on both planes, for every kind of call."""
    for method, path in (
        ("POST", f"/v2/models/{name}/infer"),
        ("GET", f"/v2/models/{name}"),
        ("POST", f"/v1/models/{name}:predict"),
        ("POST", f"/admin/v1/models/{name}/versions"),
        ("POST", f"/admin/v1/models/{name}/versions/1:load"),
        ("DELETE", f"/admin/v1/models/{name}/versions/1"),
        ("PUT", f"/admin/v1/models/{name}/aliases/a"),
        ("POST", f"/v2/repository/models/{name}/load"),
    ):
        for status in raw_status(server, method, path):
            assert status in (400, 404, 405), f"{method} {path}: {status}"
    document = manifest_of("good", "sha256:" + "ab" * 32)
    document["model"] = name
    answer = server.admin("POST", "/admin/v1/models/good/versions", json=document)
    assert answer.status_code == 400
    assert "model name" in answer.json()["error"]


def test_a_name_that_is_a_path_is_refused_by_a_push(server: RunningServer, tmp_path: Path) -> None:
    """The command checks it before it looks at the file."""
    onnx.save(graphs.id32(), tmp_path / "model.onnx")
    done = ramrack(server, "push", "../x", tmp_path / "model.onnx")
    assert done.returncode in (1, 2)
    assert "'../x'" in done.stderr
    assert "Traceback" not in done.stderr
