"""Traffic on the command line: words that are read into a route, and a route told in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from registry.errors import InvalidInput
from registry.ident import parse_version, shown
from registry.traffic import WEIGHT_SUM, Traffic
from registry.traffic_rules import parse_traffic

Shadow: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shadow",
        metavar="VERSION",
        help="A version that gets copies of the requests and never answers. May stand again.",
    ),
]
AllowIncompatible: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-incompatible",
        help="Mix versions although their inputs or outputs differ.",
    ),
]
LATEST: Final = "latest"


def route_body(
    words: Sequence[str], shadow: Sequence[str], *, is_latest: bool, is_mixed: bool
) -> dict[str, Any]:
    """Return the body of a route from ``3`` or ``3=90 4=10`` and shadows; empty for no wish."""
    if is_latest:
        return {"latest": True}
    if not words:
        return {}
    try:
        body: dict[str, Any] = _traffic(words, shadow).to_json()
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    return {**body, "allow_incompatible": True} if is_mixed else body


def _traffic(words: Sequence[str], shadow: Sequence[str]) -> Traffic:
    split = [_share(word, is_alone=len(words) == 1) for word in words]
    return parse_traffic(split, [parse_version(text) for text in shadow], "route")


def _share(word: str, *, is_alone: bool) -> dict[str, int]:
    version, mark, weight = word.partition("=")
    if word == LATEST:
        raise InvalidInput("latest is no version: use --latest to follow the highest READY one")
    if not mark and is_alone:
        return {"version": parse_version(word), "weight": 100}
    if not (weight.isascii() and weight.isdigit() and len(weight) <= 3):
        raise InvalidInput(
            f"{shown(word)} is not allowed: use VERSION=WEIGHT, such as 3=90 4=10, with whole "
            "weights that sum to 100"
        )
    if not 1 <= int(weight) <= WEIGHT_SUM:
        raise InvalidInput(
            f"{shown(word)}: weight {int(weight)} is not allowed: use 1 to {WEIGHT_SUM}, and leave "
            "out a version that gets nothing"
        )
    return {"version": parse_version(version), "weight": int(weight)}


def part_text(version: Mapping[str, Any]) -> str:
    """Return what part a version, as the admin plane shows it, has in its model's traffic."""
    if version.get("traffic"):
        return f"{version['traffic']} %"
    if version.get("is_shadow"):
        return "shadow"
    return "previous" if version.get("is_previous") else ""


def traffic_text(route: Mapping[str, Any]) -> str:
    """Return a route, or what it came from, as a person reads it."""
    parts = [f"version {part['version']} gets {part['weight']} %" for part in route["split"]]
    text = ", ".join(parts) or "no version gets traffic"
    if route.get("shadow"):
        text += f", shadowed by {', '.join(map(str, route['shadow']))}"
    return text + (" (follows latest)" if route.get("latest") else "")
