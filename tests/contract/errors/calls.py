"""What the tests of errors ask for, and the server that they ask: its models and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests import graphs
from tests.contract.wire import REQUEST_ID

MIB = 1024**2
ID: dict[str, str] = {"x-request-id": REQUEST_ID}
INFER = "/v2/models/id32/infer"
PREDICT = "/v1/models/id32:predict"
ADMIN_ID32 = "/admin/v1/models/id32"
LIMITS = {
    "max_body_bytes": MIB,
    "max_output_bytes": MIB,
    "body_timeout_s": 1,
    "header_timeout_s": 1,
    "max_run_s": 4,
    "queue_rows": 1,
    "max_in_flight": 4,
    "memory_budget": 64 * MIB,
    "inspect_memory": 1024 * MIB,
    "ready_requires": "all",
}


def fails_by_itself() -> ModelProto:
    """Give ``x`` back, but scale it by -1, which no runtime can, where a value is over 100."""
    return graphs.build(
        [
            helper.make_node("ReduceMax", ["x"], ["peak"], keepdims=1),
            helper.make_node("Greater", ["peak", "limit"], ["is_high"]),
            helper.make_node("Where", ["is_high", "minus_one", "one"], ["scale"]),
            helper.make_node("Resize", ["x", "", "scale"], ["y"], mode="nearest"),
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N",))],
        [graphs.value("y", TensorProto.FLOAT, ("M",))],
        [
            graphs.weights("limit", np.array([100], np.float32)),
            graphs.weights("one", np.array([1], np.float32)),
            graphs.weights("minus_one", np.array([-1], np.float32)),
        ],
    )


def bearer(secret: str) -> dict[str, str]:
    return {**ID, "authorization": f"Bearer {secret}"}


def floats(data: Any, shape: tuple[int, ...] = (1, 4), **fields: Any) -> dict[str, Any]:
    """Return a V2 request for ``x``, with some of its fields changed."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(shape), "data": data, **fields}
    return {"inputs": [tensor]}


GOOD = floats([1, 2, 3, 4])
