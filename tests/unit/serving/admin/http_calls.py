"""What the tests of the admin plane through HTTP share."""

from __future__ import annotations

import httpx

MODELS = "/admin/v1/models"


async def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    message = response.json()["error"]
    assert isinstance(message, str)
    assert message
    return message
