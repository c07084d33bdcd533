"""Refusals of names that are not known, which say what there is instead.

The cost is bounded, because strangers may ask for any name: a few names are listed as they are,
and of many only some are compared. Aliases are no part of it: who may predict need not know them.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Collection
from typing import Final

from registry.errors import NotFound
from registry.ident import MODEL_CHARS, shown

MOST_NAMED: Final = 8
_MOST_COMPARED: Final = 32


def unknown_model(asked: str, known: Collection[str]) -> NotFound:
    """Return the refusal of a model that is none of ``known``: lists them, or those close to it."""
    return NotFound(f"model {shown(asked)} is not known: {_models(asked, known)}")


def unknown_version(model: str, asked: object, known: Collection[int]) -> NotFound:
    """Return the refusal of a version that is none of ``known``: lists the newest of them."""
    return NotFound(f"model {shown(model)} has no version {asked}: {_versions(known)}")


def unknown_alias(model: str, asked: object, known: Collection[int]) -> NotFound:
    """Return the refusal of an alias; ``known``: the versions, which may be named instead."""
    return NotFound(
        f"model {shown(model)} has no alias {shown(asked)}: {_versions(known)} as versions, and "
        "latest is the highest that is READY"
    )


def no_route(model: str, ready: Collection[int]) -> str:
    """Say that a model has no route, and what gives it one; ``ready``: its READY versions.

    A load makes a route only of a version that was not READY before, so those that are READY have
    to be named.
    """
    if not ready:
        return (
            f"model {shown(model)} has no route, and no version of it is READY: load one, "
            "the first to be READY becomes the route"
        )
    named = ", ".join(map(str, sorted(ready, reverse=True)[:MOST_NAMED]))
    more = " and others" if len(ready) > MOST_NAMED else ""
    return (
        f"model {shown(model)} has no route: name a version in the path (READY: {named}{more}), or "
        f"give it a route, as `ramrack route {model} {max(ready)}` does"
    )


def close_to(asked: str, known: Collection[str]) -> list[str]:
    """Return at most three names that were perhaps meant, the closest first.

    Of many names those of about the same length and with the same first letter are compared.
    """
    if not 0 < len(asked) <= MODEL_CHARS:
        return []
    first = asked[0].casefold()
    alike = (name for name in known if name[0].casefold() == first)
    nearest = heapq.nsmallest(
        _MOST_COMPARED, alike, key=lambda name: (abs(len(name) - len(asked)), name)
    )
    folded = {name.casefold(): name for name in nearest}
    found = difflib.get_close_matches(asked.casefold(), folded, n=3)
    return [folded[name] for name in found]


def _models(asked: str, known: Collection[str]) -> str:
    if not known:
        return "there are no models yet"
    if len(known) <= MOST_NAMED:
        return f"there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known))}"
    close = close_to(asked, known)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"{meant}there are {len(known)} models, `ramrack ls` and POST /v2/repository/index "
        "list them"
    )


def _versions(known: Collection[int]) -> str:
    if not known:
        return "it has none"
    newest = ", ".join(map(str, sorted(known)[-MOST_NAMED:]))
    if len(known) <= MOST_NAMED:
        return f"it has {newest}"
    return f"it has {len(known)}, the newest of them {newest}"
