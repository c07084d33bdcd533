"""What a recorded change made different, in words short enough for a row of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

_MOST_CHARS: Final = 40
_NOTHING: Final = "none"


def change_text(before: object, after: object) -> str:
    """Return what an event's ``before`` and ``after`` differ in, part by part.

    ``route 1 -> 1=70 2=30; alias stable none -> 2``. What was only noted, with nothing before, is
    named with its value. Empty where nothing changed.
    """
    if before == after:
        return ""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return "; ".join(_parts(before, after))
    if before is None and isinstance(after, Mapping):
        return "; ".join(f"{name} {_short(value)}" for name, value in after.items())
    return f"{_short(before)} -> {_short(after)}"


def _parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in _names(before, after):
        old, new = before.get(name), after.get(name)
        if name == "route":
            yield _route_change(old, new)
        elif name in _OF_EACH:
            said, show = _OF_EACH[name]
            yield from _each(said, old or {}, new or {}, show)
        elif name == "ready":
            yield f"READY {_list(old)} -> {_list(new)}"
        else:
            yield f"{name} {_short(old)} -> {_short(new)}"


def _each(
    said: str, old: Mapping[str, Any], new: Mapping[str, Any], show: Callable[[object], str]
) -> Iterator[str]:
    for name in _names(old, new):
        yield f"{said}{name} {show(old.get(name))} -> {show(new.get(name))}"


def _names(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def _route_change(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    told = _route(old), _route(new)
    if told[0] != told[1] or old is None or new is None:
        return f"route {told[0]} -> {told[1]}"
    # Where it came from is said only where nothing else changed: else the text before says it.
    return f"route's previous {_route(old.get('previous'))} -> {_route(new.get('previous'))}"


def _route(route: Mapping[str, Any] | None) -> str:
    """Return a route in the words that ``ramrack route`` reads."""
    if route is None:
        return _NOTHING
    shares: Sequence[Mapping[str, int]] = route.get("split") or []
    if len(shares) == 1:
        words = [str(shares[0]["version"])]
    else:
        words = [f"{share['version']}={share['weight']}" for share in shares]
    words += [f"shadow {version}" for version in route.get("shadow") or ()]
    if route.get("latest"):
        words.append("(follows latest)")
    return " ".join(words) or _NOTHING


def _list(value: object) -> str:
    if not isinstance(value, list):
        return _short(value)
    return ",".join(map(str, value)) or _NOTHING


def _short(value: object) -> str:
    if value is None:
        return _NOTHING
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 3] + "..."


def _is_failed(value: object) -> str:
    # Why is in the event's reason and in the version's: the whole text would hide the rest.
    return "no" if value is None else "yes"


_OF_EACH: Final[Mapping[str, tuple[str, Callable[[object], str]]]] = {
    "aliases": ("alias ", _short),
    "settings": ("", _short),
    "failed": ("FAILED ", _is_failed),
}
