"""Requests in MLflow's form: which model they mean, and whether their body is CSV."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from registry.errors import NotFound
from serving.data.call import Protocol
from serving.data.paths import Target

CSV_TYPE: Final = b"text/csv"


def invoked(asked: Target, headers: Iterable[tuple[bytes, bytes]], default: str) -> Target:
    """Return a target of this form with its model (``default`` where it names none) and reading."""
    asked = replace(asked, protocol=body_protocol(headers))
    try:
        return replace(asked, model=invoked_model(asked.model, default))
    except NotFound as error:
        return replace(asked, error=asked.error or error)


def body_protocol(headers: Iterable[tuple[bytes, bytes]]) -> Protocol:
    """Return how the body of an invocation is to be read, by its content type."""
    for name, value in headers:
        if name == b"content-type" and value.partition(b";")[0].strip().lower() == CSV_TYPE:
            return "csv"
    return "mlflow"


def invoked_model(named: str, default: str) -> str:
    """Return the model of an invocation: the path's, else the setting's; raises NotFound."""
    if model := named or default:
        return model
    raise NotFound(
        "no model answers at /invocations: use /v1/models/MODEL/invocations, or name one in the "
        "setting invocations_model"
    )
