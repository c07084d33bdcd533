"""Reading an admin call's body."""

import pytest
from starlette.requests import Request
from starlette.types import Message

from serving.admin.request import json_in
from serving.errors import Cancelled


async def test_a_client_who_leaves_in_the_middle_is_nobodys_failure() -> None:
    """It is a cancellation as on the data plane, not an unplanned error with a traceback."""
    messages: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b'{"version"', "more_body": True},
    ]

    async def receive() -> Message:
        return messages.pop()

    request = Request({"type": "http", "method": "PUT", "headers": []}, receive)
    with pytest.raises(Cancelled, match="the client left"):
        await json_in(request, timeout_s=5)
