"""What is fuzzed: one function of bytes for each parser, and the seeds that it begins with.

A target returns for good and for refused input alike, and raises for everything that must not be:
an exception nobody planned, or two ways of reading the same bytes that disagree.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import orjson

from models.errors import ModelsError
from models.graph_check import check_graph, parse_graph
from models.signature import Signature, TensorSpec, parse_signature
from registry.errors import InvalidInput, RegistryError
from registry.manifest import parse_manifest
from serving.codec import v1, v2
from serving.codec.encoding import Decompressor
from serving.codec.limits import Limits
from serving.codec.packed_rows import arrays_of
from serving.codec.v2_plan import V2Plan
from serving.data.paths import prediction_of
from serving.errors import ServingError
from serving.fleet import VersionReport
from serving.web.handover import ConnectionQueue
from serving.workers import messages
from serving.workers.slot import Slot
from serving.workers.wire import Frame, FrameDecoder, WireError, encode_frame
from tests import graphs, hostile_graphs
from tests.cases.rig import digest_of, manifest_of
from tests.fuzz.connections import OneConnection
from tests.unit.serving.data.wire_corpus import BODIES, ENCODED, ODD_PATHS, PATHS, corpus

# Small, so that a wrong bound shows as a find and not as a slow one.
LIMITS: Final = Limits(max_tensor_bytes=1 << 20)
_FLOATS: Final = Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),))
_MIXED: Final = Signature(
    (
        TensorSpec("age", "FP64", (-1, 1)),
        TensorSpec("id", "INT64", (-1, 1)),
        TensorSpec("city", "BYTES", (-1, 1), missing="none"),
        TensorSpec("flag", "BOOL", (-1, 1)),
    ),
    (TensorSpec("y", "FP32", (-1, 1)),),
)
_TABLE: Final = Signature(
    (TensorSpec("t", "FP64", (-1, 3), columns=("age", "id", "x")),),
    (TensorSpec("y", "FP32", (-1, 1)),),
)
_PAIR: Final = Signature(
    (TensorSpec("a", "FP64", (-1, 2)), TensorSpec("b", "INT64", (-1, 1))),
    (TensorSpec("y", "FP32", (-1,)),),
)
_SIGNATURES: Final = (_FLOATS, _PAIR, _MIXED, _TABLE)
PLANNED: Final = (RegistryError, ServingError, ModelsError)


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` takes any bytes."""

    name: str
    run: Callable[[bytes], None]
    seeds: Sequence[bytes]


def _tried(read: Callable[[], Any]) -> Any:
    """Return what was read, or the type of the planned refusal."""
    try:
        return read()
    except PLANNED as error:
        if len(str(error)) > 4000:
            raise AssertionError(f"a message of {len(str(error))} characters") from error
        return type(error)


def _same_calls(left: Any, right: Any) -> bool:
    if isinstance(left, type) or isinstance(right, type):
        return bool(left is right)
    if left.inputs.keys() != right.inputs.keys() or any(
        getattr(left, name) != getattr(right, name)
        for name in ("id", "rows", "outputs", "timeout_us", "priority")
    ):
        return False
    return all(
        array.dtype == right.inputs[name].dtype
        and array.shape == right.inputs[name].shape
        and np.array_equal(array, right.inputs[name], equal_nan=array.dtype.kind == "f")
        for name, array in left.inputs.items()
    )


def infer_body(data: bytes) -> None:
    """Read a V2 body by the usual way and by the short one: both say the same, also the next time.

    The first two bytes are the length header: 0xffff for none.
    """
    length = int.from_bytes(data[:2], "big")
    body, json_length = data[2:], None if length == 0xFFFF else length
    for signature in _SIGNATURES:
        plan = V2Plan(signature, "m", 1, limits=LIMITS)
        plain = _tried(lambda s=signature: v2.decode_infer(body, json_length, s, LIMITS))
        for _ in range(2):
            short = _tried(lambda p=plan: p.decode(body, json_length))
            if not _same_calls(plain, short):
                raise AssertionError(f"two readings of one body: {plain!r} and {short!r}")


def next_body(data: bytes) -> None:
    """Read V2 bodies by what was learned of others: each says what it says to who knows nothing.

    The first byte chooses a good body; what follows changes it, four bytes for each change: where
    (two), how, and a byte. The first half makes the second body of it, the whole makes a third.
    """
    if not data:
        return
    good = _good_bodies()[data[0] % len(_good_bodies())]
    changes = [data[start : start + 4] for start in range(1, min(len(data) - 3, 128), 4)]
    bodies = [good, _changed(good, changes[: len(changes) // 2]), _changed(good, changes)]
    for signature in _SIGNATURES:
        plan = V2Plan(signature, "m", 1, limits=LIMITS)
        for turn in (0, 0, 1, 1, 2, 2, 0):
            length = int.from_bytes(bodies[turn][:2], "big")
            body, json_length = bodies[turn][2:], None if length == 0xFFFF else length
            plain = _tried(
                lambda s=signature, b=body, n=json_length: v2.decode_infer(b, n, s, LIMITS)
            )
            short = _tried(lambda p=plan, b=body, n=json_length: _as_served(p, b, n))
            if not _same_calls(plain, short):
                raise AssertionError(f"two readings of {body!r}: {plain!r} and {short!r}")


def _changed(body: bytes, changes: Sequence[bytes]) -> bytes:
    """Return a body with some bytes overwritten, put in or taken out; its length header, too."""
    made = bytearray(body)
    for where, how, byte in ((each[:2], each[2] % 4, each[3:]) for each in changes):
        at = int.from_bytes(where, "big") % (len(made) + 1)
        if how == 3:
            made[1:2] = byte
        else:
            made[at : at + (how != 1)] = b"" if how == 2 else byte
    return bytes(made)


def _as_served(plan: V2Plan, body: bytes, json_length: int | None) -> v2.InferCall:
    """Read as a request does: by what is known, and the long way where that is not enough."""
    known = plan.read(body) if json_length is None else plan.read_binary(body, json_length)
    if known is None:
        return plan.decode(body, json_length)
    return replace(known[0], inputs=arrays_of(known[1]))


def predict_body(data: bytes) -> None:
    """Read a V1 body, rows and data frames."""
    for signature in _SIGNATURES:
        call = _tried(lambda s=signature: v1.decode_predict(data, s, LIMITS))
        if not isinstance(call, type):
            for array in call.inputs.values():
                if array.nbytes > LIMITS.max_tensor_bytes:
                    raise AssertionError(f"{array.nbytes} bytes of one input")


def manifest(data: bytes) -> None:
    """Read a manifest, write it, and read that: the same content."""
    with suppress(InvalidInput):
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        found = parse_manifest(document)
        again = parse_manifest(json.loads(json.dumps(found.to_json())))
        if (again, again.digest) != (found, found.digest):
            raise AssertionError("a manifest does not survive its own form")
        parse_signature(found.signature)


def frames(data: bytes) -> None:
    """Read frames at once and byte by byte: the same frames, or both are refused.

    What they say of a worker is noted, or refused as the parent expects it.
    """

    def read(step: int) -> object:
        decoder, found = FrameDecoder(1 << 16), []
        try:
            for start in range(0, len(data), step):
                found += decoder.feed(data[start : start + step])
        except WireError:
            return found, "refused"
        return found, decoder.pending_bytes

    whole, pieces = read(max(1, len(data))), read(1)
    if isinstance(whole, tuple) and whole[1] == "refused":
        # All at once none of them is given away.
        if not isinstance(pieces, tuple) or pieces[1] != "refused":
            raise AssertionError("cut into pieces it is taken")
    elif whole != pieces:
        raise AssertionError(f"{whole!r} at once, {pieces!r} in pieces")
    elif isinstance(whole, tuple):
        slot = Slot(0, _NOWHERE, (), ConnectionQueue(_NOWHERE, _NOWHERE), 0)
        for frame in whole[0]:
            encode_frame(frame)
            with suppress(WireError, KeyError, TypeError, ValueError):
                slot.take(frame, 0.0)


def compressed(data: bytes) -> None:
    """Decode a body; never more than the limit is held."""
    for encoding in ("gzip", "deflate"):
        stream = Decompressor(encoding, 10_000)
        with suppress(*PLANNED):
            for start in range(0, len(data), 50):
                stream.feed(data[start : start + 50])
                if stream.size_bytes > 10_000:
                    raise AssertionError("more than the limit")
            stream.finish()


def paths(data: bytes) -> None:
    """Read a request target."""
    found = prediction_of(data)
    # What MLflow's clients ask names no model: the setting does.
    if (
        found is not None
        and found.error is None
        and not (found.model or found.protocol == "mlflow")
    ):
        raise AssertionError("a prediction of no model")


def connection(data: bytes) -> None:
    """Feed a connection whole and in two pieces: the same answers in the same order.

    Cut, the last one may come before its body does: it is another refusal then, and the end.
    """
    whole = OneConnection.answers_to([data])
    cut = OneConnection.answers_to([data[: len(data) // 2], data[len(data) // 2 :]])
    if cut[:-1] != whole[: max(0, len(cut) - 1)]:
        raise AssertionError(f"at once {whole!r}, in pieces {cut!r}")


def graph(data: bytes) -> None:
    """Check a graph as the server does before a runtime sees it."""
    with suppress(ModelsError):
        check_graph(parse_graph(data), _ONE_TENSOR)


_NOWHERE: Final = socket.socket()
_TENSOR: Final = {"digest": digest_of(b"t"), "bytes": 64}
_ONE_TENSOR: Final = parse_manifest(manifest_of("m", digest_of(b""), [_TENSOR]))


def _graphs() -> list[bytes]:
    """Return good graphs, some with data in the object, and what must be refused of them."""
    location = digest_of(b"t").partition(":")[2]
    good, tied = graphs.id32(), graphs.id32()
    for model, offset in ((good, "0"), (tied, "32")):
        fields = {"location": location, "offset": offset, "length": "32"}
        model.graph.initializer.append(graphs.external_tensor("t", (2, 4), fields))
    tied.graph.initializer.append(good.graph.initializer[0])
    hidden = [hostile_graphs.hiding_external(place) for place in hostile_graphs.PLACES]
    others = [graphs.endless(), hostile_graphs.doubling(3), hostile_graphs.recursive(),
              hostile_graphs.foreign(), hostile_graphs.sparse()]  # fmt: skip
    return [model.SerializeToString() for model in (graphs.id32(), good, tied, *hidden, *others)]


def _manifests() -> list[bytes]:
    plain = manifest_of("m", digest_of(b"g"))
    spec = {"name": "t", "datatype": "FP64", "shape": [-1, 2], "columns": ["a", "b"]}
    words = {"name": "w", "datatype": "BYTES", "shape": [-1], "categories": ["u"], "missing": "-"}
    answer = {"name": "y", "datatype": "FP32", "shape": [-1, 2], "labels": ["no", 1],
              "method": "predict_proba"}  # fmt: skip
    whole = plain | {
        "tensors": [_TENSOR], "signature": {"inputs": [spec, words], "outputs": [answer]},
        "parity": {"largest": 1e-7}, "source": {"framework": "x"}, "meta": {"run": [1, None]},
        "created": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return [json.dumps(document).encode() for document in (plain, whole)]


@cache
def _good_bodies() -> list[bytes]:
    """Return what each of the signatures takes: as JSON, as bytes behind it, and as both."""

    def tensor(name: str, datatype: str, shape: list[int], data: object) -> dict[str, Any]:
        return {"name": name, "datatype": datatype, "shape": shape, "data": data}

    def sent(inputs: list[dict[str, Any]], **more: object) -> bytes:
        tail = b""
        for one in inputs:
            if isinstance(one["data"], bytes):
                tail += one["data"]
                one["parameters"] = {"binary_data_size": len(one.pop("data"))}
        head = orjson.dumps({"inputs": inputs, **more})
        return (len(head) if tail else 0xFFFF).to_bytes(2, "big") + head + tail

    numbers = np.arange(8, dtype="<f4").tobytes()
    wide, whole = np.arange(4, dtype="<f8").tobytes(), np.arange(2, dtype="<i8").tobytes()
    return [
        sent([tensor("x", "FP32", [1, 4], [1, 2.5, -3, 4])]),
        sent([tensor("x", "FP32", [2, 4], [[1, 2, 3, 4], [5, 6, None, 8]])], id="a"),
        sent([tensor("x", "FP32", [2, 4], numbers)]),
        sent([tensor("x", "FP32", [2, 4], numbers)], id="b", parameters={"timeout": 9}),
        sent([tensor("a", "FP64", [1, 2], [1, 2]), tensor("b", "INT64", [1, 1], [3])]),
        sent([tensor("b", "INT64", [2, 1], [3, 4]), tensor("a", "FP64", [2, 2], [1, 2, 3, 4])]),
        sent([tensor("a", "FP64", [2, 2], wide), tensor("b", "INT64", [2, 1], whole)]),
        sent([tensor("a", "FP64", [2, 2], wide), tensor("b", "INT64", [2], [3, 4])]),
        sent([tensor("age", "FP64", [1], [1]), tensor("id", "INT64", [1], [2]),
              tensor("city", "BYTES", [1], ["x"]), tensor("flag", "BOOL", [1], [True])]),
        sent([tensor("age", "FP64", [1], [1]), tensor("id", "INT64", [1], [2]),
              tensor("city", "BYTES", [1], b"\1\0\0\0x"), tensor("flag", "BOOL", [1], b"\1")]),
        sent([tensor(name, "FP64", [1], [1]) for name in ("age", "id", "x")]),
        sent([tensor("t", "FP64", [1, 3], [1, 2, 3])], outputs=[{"name": "y"}]),
    ]  # fmt: skip


def _next_bodies() -> list[bytes]:
    """Return changes that turn a body into the client's next one, and into what only looks so."""
    changes = (b"", b"\0\x3d\0" + b"9", b"\0\3\1 \0\x40\0" + b"9", b"\0\0\3\x5f\0\x50\2\0")
    return [bytes([i]) + each for i in range(len(_good_bodies())) for each in changes]


def _frames() -> list[bytes]:
    report = VersionReport("READY", "", 0.5, 100, is_out_of_memory=False)
    said: dict[str, Any] = {
        "target": {"a": [1, 2]}, messages.READY: {}, messages.LISTENING: {},
        messages.HEARTBEAT: {"memory_bytes": 1, "stuck": ""}, messages.TAKEN: {"generation": 2},
        messages.LOADING: {"model": "m", "version": 1}, messages.FATAL: {"reason": "gone"},
        messages.REPORT: messages.Report(2, {("m", 1): report}, {("m", 2): 5}).to_json(),
    }  # fmt: skip
    frames = [
        encode_frame(Frame(kind, number, body)) for number, (kind, body) in enumerate(said.items())
    ]
    return [*frames, frames[0] * 3, b"".join(frames)]


def _binaries() -> list[bytes]:
    bodies = [b"\xff\xff" + body for body in BODIES.values() if len(body) < 3000]
    binary = BODIES["binary"]
    split = len(binary) - 16
    return [*bodies, *_good_bodies(), split.to_bytes(2, "big") + binary, b"\0\0" + bytes(16)]


_V1_SEEDS: Final = [
    b'{"dataframe_split":{"columns":["age","id","city","flag"],"data":[[1.5,2,"a",true]]}}',
    b'{"dataframe_records":[{"age":null,"id":1,"city":"x","flag":false}]}',
    b'{"instances":[{"age":1,"id":9007199254740993,"city":null,"flag":true}]}',
    b'{"inputs":{"age":[[1]],"id":[[1]],"city":[["x"]],"flag":[[false]]}}',
]
TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        Target("infer", infer_body, _binaries()),
        Target("next", next_body, _next_bodies()),
        Target("predict", predict_body,
               [*_V1_SEEDS, *(body for body in BODIES.values() if len(body) < 3000)]),
        Target("manifest", manifest, _manifests()),
        Target("frames", frames, _frames()),
        Target("compressed", compressed, [body for _, body in ENCODED.values()]),
        Target("paths", paths, [path.encode("latin-1") for path in PATHS + ODD_PATHS]),
        Target("connection", connection, [case.data for case in corpus() if len(case.data) < 2000]),
        Target("graph", graph, _graphs()),
    )
}  # fmt: skip
