"""V2 infer requests and what the codec makes of them, for its tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec.v2 import InferCall, decode_infer


def signature(datatype: str = "FP32", *shape: int, **extra: Any) -> Signature:
    """An identity over one input ``x``."""
    spec = TensorSpec("x", datatype, shape or (-1,), **extra)
    return Signature((spec,), (TensorSpec("y", datatype, shape or (-1,)),))


def tensor(data: object, shape: object, datatype: object = "FP32", name: object = "x") -> Any:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def decode(body: object, spec: Signature | None = None, **keywords: Any) -> InferCall:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_infer(raw, None, spec or signature(), **keywords)


def refusal(body: object, spec: Signature | None = None, **keywords: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(body, spec, **keywords)
    return str(caught.value)


def read(data: object, datatype: str, shape: list[int] | None = None, **extra: Any) -> list[Any]:
    """Decode one JSON tensor and return its elements."""
    size = shape if shape is not None else [len(data)]  # type: ignore[arg-type]
    spec = signature(datatype, *([-1] * len(size)), **extra)
    values: list[Any] = (
        decode({"inputs": [tensor(data, size, datatype)]}, spec).inputs["x"].tolist()
    )
    return values
