"""Reading an admin call's body."""

from typing import Any

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
    with pytest.raises(InvalidInput, match=said):
        await read(body)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"version": 3, "version": 4}', "version"),
        (b'{"version": 3, "reason": 1, "versi\\u006fn": 3}', "version"),
        (b'{"routes": {"m": {"latest": true}, "m": {"split": []}}}', "m"),
        (b'{"meta": [{"a": 1}, {"run": {"a": 1, "a": 1}}]}', "a"),
    ],
)
async def test_a_name_that_stands_twice_is_refused(body: bytes, name: str) -> None:
    """At any depth, however it is spelled, and also where both say the same."""
    with pytest.raises(InvalidInput, match=f"body: the name '{name}' stands twice in one object"):
        await read(body)


async def test_a_name_may_stand_in_several_objects() -> None:
    """Beside or inside each other; what is nested deeper than any call needs is said to be."""
    body = b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}'
    assert await read(body) == {"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}
    assert await read(b"[" * 500 + b"]" * 500)
    with pytest.raises(InvalidInput, match="nested too deep"):
        await read(b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH)


async def read(body: bytes) -> Any:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    request = Request({"type": "http", "method": "PUT", "headers": []}, receive)
    return await json_in(request, timeout_s=5)


def test_the_depth_that_is_named_is_the_parsers() -> None:
    """So deep is read, one more is not."""

    def nested(levels: int) -> bytes:
        return b'{"a":' * levels + b"1" + b"}" * levels

    assert parse_object(nested(MAX_JSON_DEPTH)).keys() == {"a"}
    with pytest.raises(InvalidInput, match=f"nested deeper than {MAX_JSON_DEPTH}"):
        parse_object(nested(MAX_JSON_DEPTH + 1))
