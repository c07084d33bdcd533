"""Requests for ``bench`` and ``tune``: from a file, or made up from the model's signature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from registry.errors import InvalidInput
from serving.cli.rows import InputFile, read_input, shown_name

if TYPE_CHECKING:
    from loadtest.wire.forms import Request

FORMS: Final = ("v2", "v1", "binary")


def request_of(
    url: str, token: str, name: str, *,
    version: str = "", form: str = "v2", rows: int = 1, source: Path | None = None,
) -> Request:  # fmt: skip
    """Return one request for the model at ``url``; raises InvalidInput where none can be made.

    ``source``: a file with a whole body, which is sent as it is, or with rows, of which the first
    ``rows`` are sent, over again where it has fewer.
    """
    from dataclasses import replace

    from loadtest.wire.answers import said
    from loadtest.wire.discover import NoServer, Server
    from loadtest.wire.forms import path_of
    from loadtest.wire.signature import NotMadeUp

    try:
        server = Server(url, token)
        if source is not None:
            made = _from_file(server, name, version, rows, source)
        else:
            made = server.model(name, rows, version).requests(form, rows, count=1)[0]
        # One request before the run: its error is worth more than thousands of them.
        request = replace(made, path=path_of(made.form, name, version))
        reply = server.post(request)
    except (NoServer, NotMadeUp) as error:
        raise InvalidInput(f"{error}") from error
    if reply.status != 200:
        raise InvalidInput(f"the request is not answered: {reply.status} {said(reply.content)}")
    return request


def _from_file(server: Any, name: str, version: str, rows: int, source: Path) -> Request:
    from loadtest.wire.forms import Request

    found = read_input(source, lambda: server.metadata(name, version)["inputs"])
    body, form = body_of(found, rows, source)
    return Request("", {"Content-Type": "application/json"}, json.dumps(body).encode(), form, 0)


def body_of(found: InputFile, rows: int, source: Path) -> tuple[Mapping[str, Any], str]:
    """Return what is sent of a file, and its form; raises InvalidInput where it has no rows."""
    if found.body is not None:
        inputs = found.body.get("inputs")
        is_v2 = isinstance(inputs, list) and all(
            isinstance(item, dict) and "datatype" in item for item in inputs
        )
        return found.body, "v2" if is_v2 else "v1"
    if not found.rows:
        raise InvalidInput(f"{shown_name(source)} has no rows: there is nothing to send")
    times = -(-rows // len(found.rows))
    return {"instances": (found.rows * times)[:rows]}, "v1"
