"""What is fuzzed: one function of bytes for each parser, and the seeds that it begins with.

A target returns for good and for refused input alike, and raises for everything that must not be:
an exception nobody planned, or two ways of reading the same bytes that disagree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from serving.codec.v2_plan import V2Plan
from serving.data.paths import prediction_of
from serving.errors import ServingError
from serving.workers.wire import FrameDecoder, WireError, encode_frame
from tests import graphs
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
PLANNED: Final = (RegistryError, ServingError, ModelsError)


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` takes any bytes. ``modules``: what coverage is counted in."""

    name: str
    run: Callable[[bytes], None]
    seeds: Sequence[bytes]
    modules: tuple[str, ...]


def _tried(read: Callable[[], Any]) -> Any:
    """Return what was read, or the type of the planned refusal."""
    try:
        return read()
    except PLANNED as error:
        if len(str(error)) > 4000:
            raise AssertionError(f"a message of {len(str(error))} characters") from error
        return type(error)


def _same_inputs(left: Any, right: Any) -> bool:
    if isinstance(left, type) or isinstance(right, type):
        return bool(left is right)
    if left.rows != right.rows or left.inputs.keys() != right.inputs.keys():
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
    for signature in (_FLOATS, _MIXED):
        plan = V2Plan(signature, "m", 1, limits=LIMITS)
        plain = _tried(lambda s=signature: v2.decode_infer(body, json_length, s, LIMITS))
        for _ in range(2):
            short = _tried(lambda p=plan: p.decode(body, json_length))
            if not _same_inputs(plain, short):
                raise AssertionError(f"two readings of one body: {plain!r} and {short!r}")


def predict_body(data: bytes) -> None:
    """Read a V1 body, rows and data frames."""
    for signature in (_FLOATS, _MIXED):
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
    """Read frames at once and byte by byte: the same frames, or both are refused."""

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
        for frame in whole[0]:
            encode_frame(frame)


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
        check_graph(parse_graph(data), _NO_TENSORS)


_NO_TENSORS: Final = parse_manifest(manifest_of("m", digest_of(b"")))


def _frames() -> list[bytes]:
    body = orjson.dumps({"type": "target", "id": 1, "body": {"a": [1, 2]}})
    return [len(body).to_bytes(4, "big") + body, (len(body).to_bytes(4, "big") + body) * 3]


def _binaries() -> list[bytes]:
    bodies = [b"\xff\xff" + body for body in BODIES.values() if len(body) < 3000]
    binary = BODIES["binary"]
    split = len(binary) - 16
    return [*bodies, split.to_bytes(2, "big") + binary, b"\0\0" + bytes(16)]


_V1_SEEDS: Final = [
    b'{"dataframe_split":{"columns":["age","id","city","flag"],"data":[[1.5,2,"a",true]]}}',
    b'{"dataframe_records":[{"age":null,"id":1,"city":"x","flag":false}]}',
    b'{"instances":[{"age":1,"id":9007199254740993,"city":null,"flag":true}]}',
    b'{"inputs":{"age":[[1]],"id":[[1]],"city":[["x"]],"flag":[[false]]}}',
]
TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        Target("infer", infer_body, _binaries(), ("serving.codec", "models.signature")),
        Target("predict", predict_body,
               [*_V1_SEEDS, *(body for body in BODIES.values() if len(body) < 3000)],
               ("serving.codec", "models.signature")),
        Target("manifest", manifest, [json.dumps(manifest_of("m", digest_of(b"g"))).encode()],
               ("registry", "models.signature")),
        Target("frames", frames, _frames(), ("serving.workers.wire",)),
        Target("compressed", compressed, [body for _, body in ENCODED.values()],
               ("serving.codec.encoding",)),
        Target("paths", paths, [path.encode("latin-1") for path in PATHS + ODD_PATHS],
               ("serving.data.paths", "serving.web.head", "registry.ident")),
        Target("connection", connection, [case.data for case in corpus() if len(case.data) < 2000],
               ("serving.web", "serving.data")),
        Target("graph", graph, [graphs.id32().SerializeToString(),
                                graphs.endless().SerializeToString()],
               ("models.graph_check", "models.graph_walk", "models.graph_functions")),
    )
}  # fmt: skip
