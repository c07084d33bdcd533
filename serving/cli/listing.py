"""``ls``: what exists."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli.options import ADMIN_URL_DEFAULT, AdminUrl, AsJson, admin_client
from serving.cli.output import note, print_json, print_table, size_text
from serving.cli.traffic_words import part_text
from serving.cli.values import model_name

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
    rows = [_ls_row(version) for model in models for version in model["versions"]]
    if not rows:
        note("no models yet: ramrack push NAME FILE brings the first")
        return
    print_table(_LS_COLUMNS, rows)


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
