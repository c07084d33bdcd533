"""The three forms of a prediction request: V1 rows, V2 with JSON tensors, V2 with binary ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from loadtest.wire.signature import Tensor, Value

_FORMATS: Final[Mapping[str, str]] = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
    "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
HEAD_LENGTH: Final = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Request:
    """One POST. ``rows``: how many the answer must have; 0 where the model has no rows."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    form: str
    rows: int


def v1(model: str, inputs: Sequence[Tensor], *, is_rows: bool = True) -> Request:
    """Return the V1 form: rows by column name, or whole inputs where the model has no rows.

    ``is_rows``: whether the outputs have rows, without which they cannot be split into them.
    """
    path = path_of("v1", model)
    if not (is_rows and _has_rows(inputs)):
        whole = {each.spec.name: _nested(each.shape, each.data) for each in inputs}
        return Request(path, _JSON, _dumped({"inputs": whole}), "v1", 0)
    by_name: dict[str, list[Any]] = {}
    for each in inputs:
        rows = _nested(each.shape, each.data)
        if each.spec.columns and len(each.shape) == 2:
            by_name |= {name: [row[place] for row in rows]
                        for place, name in enumerate(each.spec.columns)}  # fmt: skip
        else:
            by_name[each.spec.name] = rows
    count = inputs[0].shape[0]
    instances: list[Any] = [{name: values[row] for name, values in by_name.items()}
                            for row in range(count)]  # fmt: skip
    if len(inputs) == 1 and not inputs[0].spec.columns:
        instances = by_name[inputs[0].spec.name]
    return Request(path, _JSON, _dumped({"instances": instances}), "v1", count)


def v2(model: str, inputs: Sequence[Tensor], **_: bool) -> Request:
    """Return the V2 form with the values as JSON."""
    items = [_head(each) | {"data": list(each.data)} for each in inputs]
    rows = inputs[0].shape[0] if _has_rows(inputs) else 0
    return Request(path_of("v2", model), _JSON, _dumped({"inputs": items}), "v2", rows)


def binary(model: str, inputs: Sequence[Tensor], **_: bool) -> Request:
    """Return the V2 form with the values as bytes behind the JSON head, both ways."""
    blobs = [_blob(each) for each in inputs]
    items = [_head(each) | {"parameters": {"binary_data_size": len(blob)}}
             for each, blob in zip(inputs, blobs, strict=True)]  # fmt: skip
    head = _dumped({"inputs": items, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
    rows = inputs[0].shape[0] if _has_rows(inputs) else 0
    return Request(path_of("v2", model), headers, head + b"".join(blobs), "binary", rows)


FORMS: Final[Mapping[str, Callable[..., Request]]] = {"v1": v1, "v2": v2, "binary": binary}
_JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}


def path_of(form: str, model: str, selector: str = "") -> str:
    """Return where a form is sent; ``selector``: a version's number or alias, empty for the route.

    Only V1 has other paths for numbers and for aliases.
    """
    name, chosen = quote(model, safe=""), quote(selector, safe="")
    if form == "v1":
        kind = "versions" if selector.isdigit() else "labels"
        return f"/v1/models/{name}{f'/{kind}/{chosen}' if selector else ''}:predict"
    return f"/v2/models/{name}{f'/versions/{chosen}' if selector else ''}/infer"


def _has_rows(inputs: Sequence[Tensor]) -> bool:
    return bool(inputs) and all(each.spec.has_rows for each in inputs)


def _head(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.spec.name, "datatype": tensor.spec.datatype,
            "shape": list(tensor.shape)}  # fmt: skip


def _dumped(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _nested(shape: Sequence[int], data: Sequence[Value]) -> Any:
    """Return flat values as lists within lists."""
    if not shape:
        return data[0]
    if len(shape) == 1:
        return list(data)
    step = len(data) // shape[0] if shape[0] else 0
    return [_nested(shape[1:], data[at * step : (at + 1) * step]) for at in range(shape[0])]


def _blob(tensor: Tensor) -> bytes:
    if tensor.spec.datatype == "BYTES":
        texts = [str(text).encode() for text in tensor.data]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return struct.pack(f"<{len(tensor.data)}{_FORMATS[tensor.spec.datatype]}", *tensor.data)
