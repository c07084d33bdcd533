"""``alias``, ``route`` and ``rollback``: which version answers."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    AdminUrl,
    AsJson,
    IfMatch,
    Name,
    Reason,
    admin_client,
)
from serving.cli.output import note, print_json, print_table
from serving.cli.traffic_words import AllowIncompatible, Shadow, route_body, traffic_text
from serving.cli.values import alias_name, version_number


def alias(
    name: Name,
    alias: Annotated[
        str | None,
        typer.Argument(metavar="ALIAS", help="The movable name.", parser=alias_name),
    ] = None,
    version: Annotated[
        int | None,
        typer.Argument(
            metavar="VERSION", help="The version it names from now on.", parser=version_number
        ),
    ] = None,
    *,
    is_deleted: Annotated[bool, typer.Option("--delete", help="Remove the alias.")] = False,
    if_match: IfMatch = None,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Show a model's aliases, or set or delete one."""
    _check_alias_usage(alias, version, is_deleted=is_deleted)
    with admin_client(admin_url) as client:
        if alias is None:
            model = client.model(name)
            aliases = model["aliases"]
            if as_json:
                etags = model.get("alias_etags", {})
                print_json({"model": name, "aliases": aliases, "etags": etags})
            elif aliases:
                print_table(("alias", "version"), sorted(aliases.items()))
            else:
                note(f"{name} has no aliases")
            return
        if version is None:
            answer = client.delete_alias(name, alias, reason, if_match)
        else:
            answer = client.set_alias(name, alias, version, reason, if_match)
    if as_json:
        print_json(answer)
    elif version is None:
        print(f"{name}: alias {alias} is gone")
    else:
        print(f"{name}: alias {alias} names version {version}")


def _check_alias_usage(alias: str | None, version: int | None, *, is_deleted: bool) -> None:
    if is_deleted and (alias is None or version is not None):
        raise typer.BadParameter("--delete takes NAME and ALIAS only")
    if alias is not None and version is None and not is_deleted:
        raise typer.BadParameter("give a VERSION for the alias, or --delete")


def route(
    name: Name,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VERSION[=WEIGHT]...",
            help="The version that gets all traffic, or several with their percent: 3=90 4=10.",
        ),
    ] = None,
    *,
    shadow: Shadow = None,
    is_latest: Annotated[
        bool, typer.Option("--latest", help="Follow the highest READY version.")
    ] = False,
    is_mixed: AllowIncompatible = False,
    is_history: Annotated[
        bool, typer.Option("--history", help="Show the routes that were.")
    ] = False,
    is_deleted: Annotated[
        bool,
        typer.Option(
            "--delete", help="Remove the route, so that its versions can be unloaded and removed."
        ),
    ] = False,
    if_match: IfMatch = None,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Show where requests without a version go, or split them over READY versions."""
    if bool(words) + is_latest + is_history + is_deleted > 1:
        raise typer.BadParameter("VERSION, --latest, --history and --delete exclude each other")
    if shadow and not words:
        raise typer.BadParameter("--shadow goes with the versions that answer: 3 --shadow 5")
    body = route_body(words or (), shadow or (), is_latest=is_latest, is_mixed=is_mixed)
    with admin_client(admin_url) as client:
        if is_history:
            _print_history(client.route_history(name), as_json=as_json)
            return
        if is_deleted:
            _print_deleted(client.delete_route(name, reason, if_match), as_json=as_json)
            return
        answer = client.set_route(name, body, reason, if_match) if body else client.route(name)
    _print_route(answer, as_json=as_json)


def rollback(
    name: Name,
    *,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="VERSION",
            help="Not what was before, but this version alone.",
            parser=version_number,
        ),
    ] = None,
    if_match: IfMatch = None,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Restore the whole traffic before the present one, split and shadows, in one call."""
    with admin_client(admin_url) as client:
        answer = client.rollback(name, to, reason, if_match)
    _print_route(answer, as_json=as_json)


def _print_route(route: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(route)
        return
    text = f"{route['model']}: {traffic_text(route)}"
    previous = route.get("previous")
    if isinstance(previous, dict):
        text += f"; before that {traffic_text(previous)}"
    print(text)


def _print_deleted(answer: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    print(f"{answer['model']}: the route is gone; requests that name no version are refused")


def _print_history(history: list[dict[str, object]], *, as_json: bool) -> None:
    if as_json:
        print_json({"history": history})
        return
    rows = [(entry.get("time"), entry.get("who"), traffic_text(entry), entry.get("reason"))
            for entry in history]  # fmt: skip
    print_table(("time", "who", "route", "reason"), rows)
