"""What can go wrong in the registry, in the registry's own words.

No HTTP here: ``serving.errors`` holds the one table that turns these into status codes. Every
message names the field, the value seen and what is allowed, because it reaches the user unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping


class RegistryError(Exception):
    """Base of all errors that the registry raises on purpose."""


class InvalidInput(RegistryError):
    """The caller sent a name, number, digest or document that is not allowed."""


class NotFound(RegistryError):
    """No such model, version, alias, object or operation."""


class Conflict(RegistryError):
    """The request is well formed, but the present state forbids it."""


class NotReady(RegistryError):
    """The version is known but does not serve now."""


class DigestMismatch(InvalidInput):
    """Uploaded bytes do not hash to the digest they were sent under."""


class MissingObjects(Conflict):
    """A manifest names objects that the store does not hold."""

    def __init__(self, message: str, digests: tuple[str, ...]) -> None:
        super().__init__(message)
        self.digests = digests


class OverBudget(RegistryError):
    """A load needs more memory than the budget has left; ``plan`` says how much."""

    def __init__(self, message: str, plan: Mapping[str, object]) -> None:
        super().__init__(message)
        self.plan = plan


class StoreFull(RegistryError):
    """The disk under the store has no room for the write."""


class StoreFailed(RegistryError):
    """The disk under the store failed a read or a write; nothing was acknowledged."""


class Corrupt(RegistryError):
    """Bytes in the store are not what was stored: damaged, truncated or replaced."""


class StoreLocked(RegistryError):
    """Another server holds the store."""


class StoreFormat(RegistryError):
    """The store was written by a release that this one cannot read."""
