"""How an error looks as an answer, and under which reason it is counted."""

from __future__ import annotations

from typing import Final

from registry.errors import InvalidInput
from serving.data.call import Answer, RequestHead
from serving.data.model_gate import ModelFull
from serving.errors import (
    Cancelled,
    DeadlineExpired,
    HeadersTooLarge,
    PayloadTooLarge,
    QueueFull,
    RequestTooSlow,
    UnsupportedMedia,
    WorkerLost,
    message_of,
    status_of,
)
from serving.web.errors import JSON_TYPE, REQUEST_ID, Headers, error_body, error_headers


class InFlightFull(QueueFull):
    """The worker holds as many requests as it may."""


_REASONS: Final[dict[type[Exception], str]] = {
    InFlightFull: "in_flight",
    ModelFull: "max_concurrency",
    QueueFull: "queue_full",
    DeadlineExpired: "deadline",
    Cancelled: "cancelled",
    PayloadTooLarge: "body_too_large",
    HeadersTooLarge: "headers_too_large",
    RequestTooSlow: "too_slow",
    InvalidInput: "bad_request",
    UnsupportedMedia: "unsupported_media",
    WorkerLost: "stopping",
}


def reason_of(error: Exception) -> str | None:
    """Return the reason under which a refusal is counted; None for what is no refusal."""
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), None)


def error_answer(error: Exception, head: RequestHead, headers: Headers) -> Answer:
    """Return the answer that says ``error``; ``headers`` are added to it."""
    return Answer(
        status_of(error),
        [
            JSON_TYPE,
            (REQUEST_ID, head.request_id.encode("ascii")),
            *error_headers(error),
            *headers,
        ],
        error_body(message_of(error)),
    )
