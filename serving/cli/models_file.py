"""Reads a models file: routes, aliases and settings as they shall be, and how that differs.

::

    [models.fraud]
    route = { 3 = 90, 4 = 10 }        # or a version, or "latest"
    shadow = [5]
    aliases = { prod = 3 }
    settings = { queue_rows = 1024 }

Of a model that is named, each of route, aliases and settings that is given becomes exactly what
the file says; what is not given stays as it is, and so do models that are not named.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from registry.errors import InvalidInput
from registry.ident import check_alias, check_model_name, check_version, parse_version, shown
from registry.model_settings import NAMES, ModelSettings, changed
from registry.traffic import WEIGHT_SUM
from registry.traffic_rules import parse_traffic
from serving.cli.traffic_words import LATEST

T = TypeVar("T")
_ROUTE_FORMS: Final = 'a version, versions with their weights as in { 3 = 90, 4 = 10 }, or "latest"'
_KEYS: Final = ("route", "shadow", "aliases", "settings", "allow_incompatible")


@dataclass(frozen=True, slots=True)
class WantedModel:
    """What a file says of one model; None where it says nothing.

    ``route``: as the admin plane takes it. ``settings``: all of them, None for the server's own.
    """

    name: str
    route: dict[str, Any] | None
    aliases: dict[str, int] | None
    settings: dict[str, Any] | None

    @property
    def versions(self) -> list[int]:
        """Every version that a route or alias of the file names."""
        route = self.route or {}
        named = [share["version"] for share in route.get("split", ())]
        return sorted({*named, *route.get("shadow", ()), *(self.aliases or {}).values()})


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the file says. ``what``: route, settings.KEY or aliases.NAME."""

    model: str
    what: str
    now: Any
    wanted: Any


def read_models(path: Path) -> list[WantedModel]:
    """Return what the file says, or raise InvalidInput with its name, the line and the key."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not TOML: {error}") from error
    return _Reader(path, text).models(document)


class _Reader:
    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def models(self, document: Mapping[str, Any]) -> list[WantedModel]:
        for key in document:
            if key != "models":
                raise self._error((key,), f"unknown key {shown(key)}: use [models.NAME]")
        models = document.get("models")
        if not isinstance(models, dict) or not models:
            raise self._error(("models",), "no model is named: use [models.NAME]")
        return [self._model(name, item) for name, item in models.items()]

    def _model(self, name: str, item: Any) -> WantedModel:
        self._checked(("models", name), lambda: check_model_name(name))
        if not isinstance(item, dict):
            raise self._error(("models", name), f"{shown(item)} must be a table")
        for key in item:
            if key not in _KEYS:
                raise self._error(
                    ("models", name, key), f"unknown key {shown(key)}: use {', '.join(_KEYS)}"
                )
        for key in ("shadow", "allow_incompatible"):
            if key in item and "route" not in item:
                raise self._error(("models", name, key), f"{key} needs a route beside it")
        return WantedModel(
            name,
            self._part(name, item, "route", lambda: _route(item)),
            self._part(name, item, "aliases", lambda: _aliases(item["aliases"])),
            self._part(name, item, "settings", lambda: _settings(item["settings"])),
        )

    def _part(self, name: str, item: dict[str, Any], key: str, read: Callable[[], T]) -> T | None:
        return self._checked(("models", name, key), read) if key in item else None

    def _checked(self, keys: tuple[str, ...], read: Callable[[], T]) -> T:
        try:
            return read()
        except InvalidInput as error:
            raise self._error(keys, str(error)) from error

    def _error(self, keys: tuple[str, ...], text: str) -> InvalidInput:
        line = self._line_of(keys)
        where = f"{self._path}: line {line}" if line else str(self._path)
        return InvalidInput(f"{where}: {'.'.join(keys)}: {text}")

    def _line_of(self, keys: tuple[str, ...]) -> int:
        """Return the line on which a key is set, or its table begins; 0 where it is not plain."""
        table: tuple[str, ...] = ()
        found = 0
        for number, line in enumerate(self._lines, start=1):
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                table = _dotted(header[1])
                here = table
            elif assignment := re.match(r"\s*([\w\"'.-]+)\s*=", line):
                here = (*table, *_dotted(assignment[1]))
            else:
                continue
            if here[: len(keys)] == keys:
                return number
            if not found and here == keys[: len(here)]:
                found = number
        return found


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part[0] or part[1] or part[2]
                 for part in re.findall(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)", text))  # fmt: skip


def _route(item: dict[str, Any]) -> dict[str, Any]:
    route, shadow = item["route"], item.get("shadow", [])
    allow = item.get("allow_incompatible", False)
    if type(allow) is not bool:
        raise InvalidInput(f"allow_incompatible {shown(allow)} must be true or false")
    if route == LATEST:
        if shadow:
            raise InvalidInput('shadow does not go with "latest"')
        return {"latest": True}
    if isinstance(route, dict):
        split = [{"version": _split_key(v), "weight": w} for v, w in route.items()]
    elif isinstance(route, str):
        raise InvalidInput(f"{shown(route)} is not allowed: use {_ROUTE_FORMS}")
    else:
        split = [{"version": check_version(route), "weight": WEIGHT_SUM}]
    body: dict[str, Any] = parse_traffic(split, shadow, "route").to_json()
    return {**body, "allow_incompatible": True} if allow else body


def _split_key(key: str) -> int:
    """Return the version of a split; the admin plane's form of a route is met here too."""
    try:
        return parse_version(key)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; a route is {_ROUTE_FORMS}") from error


def _aliases(item: Any) -> dict[str, int]:
    if not isinstance(item, dict):
        raise InvalidInput(f"{shown(item)} must be a table of aliases and versions")
    return {check_alias(alias): check_version(version) for alias, version in item.items()}


def _settings(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InvalidInput(f"{shown(item)} must be a table of settings: {', '.join(NAMES)}")
    return asdict(changed(ModelSettings(), item, "settings"))


def differences(wanted: WantedModel, present: Mapping[str, Any]) -> list[Difference]:
    """Return in what a model, as the admin plane shows it, is not as wanted."""
    found = []
    for key, value in (wanted.settings or {}).items():
        if value != present["settings"][key]:
            now = present["settings"][key]
            found.append(Difference(wanted.name, f"settings.{key}", now, value))
    aliases = present["aliases"]
    for alias, version in (wanted.aliases or {}).items():
        if aliases.get(alias) != version:
            now = aliases.get(alias)
            found.append(Difference(wanted.name, f"aliases.{alias}", now, version))
    if wanted.route is not None and not _is_route(wanted.route, present["route"]):
        found.append(Difference(wanted.name, "route", present["route"], wanted.route))
    if wanted.aliases is not None:
        found += [
            Difference(wanted.name, f"aliases.{alias}", version, None)
            for alias, version in aliases.items()
            if alias not in wanted.aliases
        ]
    return found


def _is_route(wanted: Mapping[str, Any], present: Mapping[str, Any] | None) -> bool:
    if present is None:
        return False
    if wanted.get("latest"):
        return bool(present["latest"])
    return not present["latest"] and all(wanted[key] == present[key] for key in ("split", "shadow"))
