"""Reading an admin call's body."""

import pytest
from starlette.requests import Request
from starlette.types import Message

from registry.errors import InvalidInput
from serving.admin.request import json_in
from serving.codec.parse import MAX_JSON_DEPTH, parse_object
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


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 5000, "body: not JSON that is read here: nested deeper than 1024"),
        (b'{"a": NaN}', "body: not JSON: NaN is not a JSON number: write null"),
        (b'{"a": }', "body: not JSON: "),
    ],
)
async def test_what_is_no_json_is_said_as_on_the_data_plane(body: bytes, said: str) -> None:
    """With the limit, or with what to write instead."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    request = Request({"type": "http", "method": "PUT", "headers": []}, receive)
    with pytest.raises(InvalidInput, match=said):
        await json_in(request, timeout_s=5)


def test_the_depth_that_is_named_is_the_parsers() -> None:
    """So deep is read, one more is not."""

    def nested(levels: int) -> bytes:
        return b'{"a":' * levels + b"1" + b"}" * levels

    assert parse_object(nested(MAX_JSON_DEPTH)).keys() == {"a"}
    with pytest.raises(InvalidInput, match=f"nested deeper than {MAX_JSON_DEPTH}"):
        parse_object(nested(MAX_JSON_DEPTH + 1))
