"""``ls``: what exists."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli.options import ADMIN_URL_DEFAULT, AdminUrl, AsJson, admin_client
from serving.cli.output import fits, note, print_json, print_table, size_text
from serving.cli.traffic_words import part_text
from serving.cli.values import model_name

_MINUTE = len("2026-12-01T13:30")
_LS_COLUMNS = ("model", "version", "state", "aliases", "traffic", "size", "published", "reason")


def ls(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only this model.", parser=model_name),
    ] = None,
    *,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """List every version that the server has."""
    with admin_client(admin_url) as client:
        models = client.models() if name is None else [client.model(name)]
    if as_json:
        print_json({"models": models})
        return
    versions = [version for model in models for version in model["versions"]]
    rows = [_ls_row(version) for version in versions]
    if not rows:
        note("no models yet: ramrack push NAME FILE brings the first")
    elif fits(_LS_COLUMNS, rows):
        print_table(_LS_COLUMNS, rows)
    else:
        _print_narrow(versions)


def _print_narrow(versions: list[dict[str, Any]]) -> None:
    """Print what a narrow terminal has room for: half a time on each of two lines is no time."""
    rows = [_ls_row(version)[:-1] for version in versions]
    for row in rows:
        row[-1] = str(row[-1])[:_MINUTE].replace("T", " ")
    print_table(_LS_COLUMNS[:-1], rows)
    for version in versions:
        if version["state"] not in ("READY", "UNLOADED"):
            where = f"{version['model']}/{version['version']}"
            note(f"{where} is {version['state']}: {version['reason']}")


def _ls_row(version: dict[str, Any]) -> list[object]:
    return [
        version["model"],
        version["version"],
        version["state"],
        ", ".join(version["aliases"]),
        part_text(version),
        size_text(version["memory"].get("disk_bytes")),
        version["published"],
        version["reason"],
    ]
