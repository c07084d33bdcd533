"""What can go wrong between a client and its server; kept apart so that naming it costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """A call that failed. ``status``: the HTTP status, None where there was no answer.

    ``scope``: what the token lacks, where the server said so. ``headers``: those of the answer.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        document: dict[str, Any] | None = None,
        scope: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.document = document or {}
        self.scope = scope
        self.headers = headers or {}


class TokenNotAllowed(ClientError):
    """A token that no header could carry. The message does not show it."""


class ServerUnreachable(ClientError):
    """Nobody answers at the address, or the connection broke."""


def check_token(token: str, variable: str) -> None:
    """Raise TokenNotAllowed unless a header can carry the token; ``variable`` is where it is from.

    Checked before anything else sees it, because HTTP libraries quote what they refuse.
    """
    if not all("!" <= character <= "~" for character in token):
        raise TokenNotAllowed(
            f"the token in {variable} is not allowed: it may have printable ASCII characters "
            "only, no spaces and no line breaks (it is not shown here)"
        )
