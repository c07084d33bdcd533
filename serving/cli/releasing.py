"""``release`` and ``settings``: routes of several models at once, and what is set for one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any

import typer

from registry.errors import InvalidInput
from registry.ident import check_model_name, shown
from registry.model_settings import ModelSettings, changed
from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    AdminUrl,
    AsJson,
    IfMatch,
    Name,
    Reason,
    admin_client,
)
from serving.cli.output import print_json, print_table
from serving.cli.traffic_words import LATEST, AllowIncompatible, route_body, traffic_text
from serving.cli.values import etag


def release(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=TRAFFIC...",
            help="Models with a version, latest, or a split: fraud=4 search=7:90,8:10.",
        ),
    ],
    *,
    shadow: Annotated[
        list[str] | None,
        typer.Option(
            "--shadow", metavar="NAME=VERSION", help="A shadow of a model. May stand again."
        ),
    ] = None,
    is_mixed: AllowIncompatible = False,
    if_match: Annotated[
        list[str] | None,
        typer.Option(
            "--if-match",
            metavar="NAME=ETAG",
            help="Change nothing unless the route of this model still has this etag, which "
            "`ramrack route NAME --json` shows. May stand again.",
        ),
    ] = None,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Set the routes of several models at the same moment, all of them or none."""
    routes = _routes(words, shadow or (), is_mixed=is_mixed)
    for name, tag in _etags(if_match or (), routes).items():
        routes[name]["if_match"] = tag
    with admin_client(admin_url) as client:
        answer = client.release(routes, reason)
    if as_json:
        print_json({"routes": answer})
        return
    for route in answer:
        print(f"{route['model']}: {traffic_text(route)}")


def _routes(words: Sequence[str], shadows: Sequence[str], *, is_mixed: bool) -> dict[str, Any]:
    wanted = _pairs(words, "TRAFFIC")
    names = [name for name, _ in wanted]
    beside = _pairs(shadows, "VERSION")
    _refuse_others("--shadow", [name for name, _ in beside], names)
    routes: dict[str, Any] = {}
    for name, text in wanted:
        if name in routes:
            raise typer.BadParameter(f"model {shown(name)} stands twice")
        is_latest = text == LATEST
        shadow = [version for other, version in beside if other == name]
        if is_latest and shadow:
            raise typer.BadParameter(f"{name}: --shadow does not go with latest")
        shares = text.replace(":", "=").split(",")
        try:
            routes[name] = route_body(shares, shadow, is_latest=is_latest, is_mixed=is_mixed)
        except typer.BadParameter as error:
            raise typer.BadParameter(f"{name}: {error.message}") from error
    return routes


def _etags(words: Sequence[str], routes: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in _pairs(words, "ETAG"):
        if name in found:
            raise typer.BadParameter(f"--if-match: model {shown(name)} stands twice")
        found[name] = etag(text)
    _refuse_others("--if-match", found, routes)
    return found


def _refuse_others(option: str, named: Iterable[str], released: Collection[str]) -> None:
    for name in named:
        if name not in released:
            raise typer.BadParameter(
                f"{option}: model {shown(name)} is not in this release: it has "
                f"{', '.join(sorted(released))}"
            )


def _pairs(words: Sequence[str], what: str) -> list[tuple[str, str]]:
    pairs = []
    for word in words:
        name, mark, text = word.partition("=")
        try:
            check_model_name(name)
        except InvalidInput as error:
            raise typer.BadParameter(f"{shown(word)}: {error}") from error
        if not mark or not text:
            raise typer.BadParameter(f"{shown(word)} is not allowed: use NAME={what}")
        pairs.append((name, text))
    return pairs


def settings(
    name: Name,
    *,
    pairs: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting. May stand again."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="KEY", help="A setting that goes back to the server's own."
        ),
    ] = None,
    if_match: IfMatch = None,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Show what is set for one model, or change it."""
    changes = _changes(pairs or (), unset or ())
    with admin_client(admin_url) as client:
        if changes:
            answer = client.set_settings(name, changes, reason, if_match)
        else:
            answer = client.settings(name)
    if as_json:
        print_json(answer)
        return
    rows = [(key, "the server's own" if value is None else json.dumps(value))
            for key, value in answer["settings"].items()]  # fmt: skip
    print_table(("setting", "value"), rows)


def _changes(pairs: Sequence[str], unset: Sequence[str]) -> dict[str, Any]:
    changes: dict[str, Any] = dict.fromkeys(unset)
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark:
            raise typer.BadParameter(f"--set: {shown(pair)} is not allowed: use KEY=VALUE")
        if key in changes:
            raise typer.BadParameter(f"--set: {shown(key)} stands twice")
        try:
            changes[key] = json.loads(text)
        except (ValueError, RecursionError):
            changes[key] = text
    try:
        changed(ModelSettings(), changes, "--set")
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    return changes
