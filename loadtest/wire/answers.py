"""Whether an answer is one: its status, its version, and a shape that fits what was asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.wire.forms import HEAD_LENGTH
from loadtest.wire.signature import Spec

VERSION_HEADER: Final = "x-ramrack-version"
_SHOWN: Final = 160


def fault(
    form: str, rows: int, outputs: Sequence[Spec],
    status: int, headers: Mapping[str, str], content: bytes,
) -> str:  # fmt: skip
    """Return what is wrong with an answer, in words that do not differ from request to request.

    ``headers``: any mapping whose keys do not care for upper and lower case, or lower-case keys.
    Empty: nothing is wrong.
    """
    if status == 0:
        return "no answer"
    if status != 200:
        return f"{status}: {said(content)}"
    version = headers.get(VERSION_HEADER, "")
    if not version.isdigit():
        return f"no version in the header {VERSION_HEADER}"
    length = headers.get(HEAD_LENGTH.lower()) if form == "binary" else None
    try:
        document = json.loads(content[: int(length)] if length else content)
        if form == "v1":
            return _v1_fault(document, rows)
        return _v2_fault(document, rows, outputs, version, content, int(length or 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"not an answer of form {form}: {type(error).__name__}"


def said(content: bytes) -> str:
    """Return the reason that an answer gives, or the beginning of what it is instead."""
    try:
        text = str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return text[:_SHOWN]


def _v1_fault(document: Mapping[str, Any], rows: int) -> str:
    if not rows:
        return "" if "outputs" in document else "no outputs"
    predictions = document.get("predictions")
    if not isinstance(predictions, list):
        return "no list of predictions"
    return "" if len(predictions) == rows else f"{len(predictions)} predictions for {rows} rows"


def _v2_fault(
    document: Mapping[str, Any], rows: int, outputs: Sequence[Spec], version: str,
    content: bytes, head_bytes: int,
) -> str:  # fmt: skip
    if str(document["model_version"]) != version:
        return "model_version in the body is not the version in the header"
    by_name = {item["name"]: item for item in document["outputs"]}
    blob_bytes = 0
    for spec in outputs:
        item = by_name.get(spec.name)
        if item is None:
            return f"output {spec.name!r} is missing"
        shape = item["shape"]
        if rows and spec.has_rows and shape[:1] != [rows]:
            return f"output {spec.name!r} has shape {shape} for {rows} rows"
        if "data" in item:
            if len(item["data"]) != math.prod(shape):
                return f"output {spec.name!r} has other values than its shape {shape}"
        else:
            blob_bytes += item["parameters"]["binary_data_size"]
    if head_bytes and head_bytes + blob_bytes != len(content):
        return f"the binary part has {len(content) - head_bytes} bytes, {blob_bytes} were announced"
    return ""
