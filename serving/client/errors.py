"""What can go wrong between a client and its server; kept apart so that naming it costs nothing."""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """A call that failed. ``status``: the HTTP status, None where there was no answer."""

    def __init__(
        self, message: str, status: int | None = None, document: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.document = document or {}


class ServerUnreachable(ClientError):
    """Nobody answers at the address, or the connection broke."""
