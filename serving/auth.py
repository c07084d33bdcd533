"""Who may do what on either plane: tokens, their scopes, and when one is needed.

Without any token an admin plane on a loopback address is open to everyone on the machine. With
one, every call needs one. The data plane asks for one only where ``data_auth`` says so. Only
hashes of tokens are kept; they are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Final

from registry.errors import InvalidInput
from serving.errors import ScopeMissing, Unauthorized
from serving.settings import SCOPES, Settings, Token

TOKEN_VARIABLE: Final = "RAMRACK_ADMIN_TOKEN"  # noqa: S105 - the variable's name
ENVIRONMENT_TOKEN_NAME: Final = "environment"  # noqa: S105 - the name that events show
ANYONE: Final = "anyone"
INFER: Final = "infer"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who sent a call: the token's name, what it may do, and the client's address."""

    name: str
    scopes: frozenset[str]
    address: str = ""

    def require(self, scope: str) -> None:
        """Raise ScopeMissing unless the actor has ``scope``."""
        if scope not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            message = f"token {self.name!r} lacks the scope {scope!r}: it has {has}"
            raise ScopeMissing(message, scope)


# What the server does of itself: restores, quarantines, clean-ups.
SERVER: Final = Actor("server", frozenset(SCOPES))


class Authenticator:
    """Turns an Authorization header into an Actor."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._tokens = tokens

    @property
    def is_open(self) -> bool:
        """Say whether calls need no token."""
        return not self._tokens

    def actor(self, authorization: str | None, address: str = "") -> Actor:
        """Return who sent the header, or raise Unauthorized."""
        if self.is_open:
            return Actor(ANYONE, frozenset(SCOPES), address)
        if authorization is None:
            raise Unauthorized("a token is needed: send Authorization: Bearer TOKEN")
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthorized("the Authorization header must be: Bearer TOKEN")
        sha256 = hash_token(secret.strip())
        found: Actor | None = None
        # No early end: the time must not tell how many tokens were compared.
        for token in self._tokens:
            if hmac.compare_digest(token.sha256, sha256) and found is None:
                found = Actor(token.name, frozenset(token.scopes))
        if found is None:
            raise Unauthorized("the token is not known here")
        return replace(found, address=address)


def hash_token(secret: str) -> str:
    """Return the form in which a token is kept: SHA-256 in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def admin_tokens(settings: Settings, environ: MutableMapping[str, str]) -> tuple[Token, ...]:
    """Return all tokens, and take the one of the environment out of ``environ``.

    Child processes and crash reports must not see it. It has every scope.
    """
    secret = environ.pop(TOKEN_VARIABLE, None)
    if secret is None:
        return settings.tokens
    if not secret.strip():
        raise InvalidInput(f"{TOKEN_VARIABLE} is set but empty: give a token or unset it")
    return (*settings.tokens, Token(ENVIRONMENT_TOKEN_NAME, hash_token(secret.strip()), SCOPES))


def data_tokens(settings: Settings, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Return what the workers have to know of all tokens: nothing where they ask for none."""
    return tokens if settings.data_auth == "token" else ()


def check_exposure(settings: Settings, tokens: tuple[Token, ...]) -> None:
    """Raise InvalidInput if a plane would be open to whom it must not, or closed to everyone."""
    if settings.data_auth == "token" and not any(INFER in token.scopes for token in tokens):
        raise InvalidInput(
            f"data_auth is 'token', and no token has the scope {INFER!r}: set {TOKEN_VARIABLE}, "
            "or add one to [[tokens]]"
        )
    if not tokens and not is_loopback(settings.admin_host):
        raise InvalidInput(
            f"admin_host {settings.admin_host!r} is not loopback, and no token is set: set "
            f"{TOKEN_VARIABLE} or [[tokens]], or use 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Say whether an address reaches this machine only; a name other than localhost may not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
