"""What the tests of the data plane through HTTP share."""

from __future__ import annotations

from typing import Any

import httpx

INFER = "/v2/models/fraud/infer"
PREDICT = "/v1/models/fraud:predict"


def v2(*rows: float, **more: Any) -> dict[str, Any]:
    """Return a V2 request with a row of four equal numbers for each value."""
    data = [value for row in rows for value in [row] * 4]
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 4], "data": data}
    return {"inputs": [tensor], **more}


def error_of(response: httpx.Response) -> str:
    """Return the message of an error, which is all that its body holds."""
    document = response.json()
    assert list(document) == ["error"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    text: str = document["error"]
    return text
