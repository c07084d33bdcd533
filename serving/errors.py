"""Errors of the serving layer, and the one table that gives every error its status code.

The layers below raise in their own words; only this file knows HTTP. Each message is written for
the person who sent the request: the field, the value seen, the limit.
"""

from __future__ import annotations

from typing import Final

from models.errors import (
    ConversionRefused,
    InputRefused,
    LoadFailed,
    OutOfMemory,
    RunFailed,
    RunTerminated,
    RunTooLarge,
)
from registry.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    NotReady,
    OverBudget,
    StoreFailed,
    StoreFull,
)


class ServingError(Exception):
    """Base of all errors that the serving layer raises on purpose."""


class Unauthorized(ServingError):
    """No token, or one that is not known."""


class Forbidden(ServingError):
    """A known token without the scope that the call needs, or a foreign Host header."""


class ScopeMissing(Forbidden):
    """A known token without ``scope``, which the call needs."""

    def __init__(self, message: str, scope: str) -> None:
        super().__init__(message)
        self.scope = scope


class MethodNotAllowed(ServingError):
    """The path exists, but not with this verb."""


class RequestTooSlow(ServingError):
    """The client did not send its request within the receive deadline."""


class PayloadTooLarge(ServingError):
    """The body is larger than allowed, before or after decompression."""


class UnsupportedMedia(ServingError):
    """A content type or content encoding that is not spoken here."""


class QueueFull(ServingError):
    """The bounded queue has no room; ``retry_after_s`` is a guess at when it will."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeadersTooLarge(ServingError):
    """The request head is larger than allowed."""


class DeadlineExpired(ServingError):
    """The caller's deadline passed before there was an answer."""


class Cancelled(ServingError):
    """The client left before there was an answer; nobody reads this one."""


class WorkerLost(ServingError):
    """The process that should have answered is gone or stopping."""


class UpgradeRefused(ServingError):
    """The release that would take over cannot; the one that serves goes on."""


class MemoryShort(ServingError):
    """The machine has not the memory that an operation on the workers needs."""


STATUS: Final[dict[type[Exception], int]] = {
    InvalidInput: 400,
    InputRefused: 400,
    ConversionRefused: 400,
    LoadFailed: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    RequestTooSlow: 408,
    Conflict: 409,
    PayloadTooLarge: 413,
    RunTooLarge: 413,
    UnsupportedMedia: 415,
    QueueFull: 429,
    HeadersTooLarge: 431,
    Cancelled: 499,
    RunFailed: 500,
    Corrupt: 500,
    NotReady: 503,
    StoreFailed: 503,
    WorkerLost: 503,
    DeadlineExpired: 504,
    RunTerminated: 504,
    UpgradeRefused: 409,
    MemoryShort: 507,
    OverBudget: 507,
    OutOfMemory: 507,
    StoreFull: 507,
}


def status_of(error: BaseException) -> int:
    """Return the status code of an error; 500 for one that nobody planned."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def message_of(error: BaseException) -> str:
    """Return what a client may read: the text of a planned error, nothing of any other."""
    if status_of(error) == 500 and not isinstance(error, RunFailed | Corrupt):
        return "internal error: the log has the details under this request's x-request-id"
    return str(error)
