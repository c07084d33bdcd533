"""``apply``: makes routes, aliases and settings what a file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from registry.errors import InvalidInput
from registry.known import unknown_model, unknown_version
from serving.cli.models_file import Difference, WantedModel, differences, read_models
from serving.cli.options import ADMIN_URL_DEFAULT, AdminUrl, AsJson, Reason, admin_client
from serving.cli.output import note, print_json
from serving.cli.traffic_words import traffic_text
from serving.client.errors import ClientError

if TYPE_CHECKING:
    from serving.client.admin import AdminClient


_FILE_HELP: Final = (
    "The models file, TOML: [models.NAME] tables with route, shadow, aliases, settings and "
    "allow_incompatible, such as route = { 3 = 90, 4 = 10 }."
)


def apply(
    file: Annotated[
        Path,
        typer.Option("-f", "--file", metavar="FILE", help=_FILE_HELP),
    ],
    *,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Print the difference, and change nothing.")
    ] = False,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Make routes, aliases and settings what a file says; print the difference first."""
    try:
        wanted = read_models(file)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    with admin_client(admin_url) as client:
        present = {model["name"]: model for model in client.models()}
        _refuse_missing(wanted, present)
        found = [item for one in wanted for item in differences(one, present[one.name])]
        if as_json:
            print_json({"changes": [asdict(item) for item in found], "dry_run": is_dry})
        for item in () if as_json else found:
            print(_text(item))
        if not found:
            note("nothing to do: everything is as the file says")
        _refuse_unready(found, present)
        if found and not is_dry:
            _carry_out(client, found, reason)
            note(f"done: {len(found)} of {len(found)}")


def _refuse_missing(wanted: Sequence[WantedModel], present: dict[str, Any]) -> None:
    for one in wanted:
        if one.name not in present:
            raise ClientError(f"nothing was changed: {unknown_model(one.name, present)}")
        known = {version["version"] for version in present[one.name]["versions"]}
        for version in one.versions:
            if version not in known:
                raise ClientError(
                    f"nothing was changed: {unknown_version(one.name, version, known)}"
                )


def _refuse_unready(found: Sequence[Difference], present: dict[str, Any]) -> None:
    """Raise before anything is changed where a change would be refused in the middle."""
    for item in found:
        states = {v["version"]: (v["state"], v["reason"]) for v in present[item.model]["versions"]}
        for version in _named(item):
            state, reason = states[version]
            if state != "READY":
                why = f": {reason}" if state == "FAILED" else ""
                raise ClientError(
                    f"nothing was changed: {item.model}/{version} is {state}{why}: load it first "
                    f"with `ramrack load {item.model} {version}`"
                )


def _named(item: Difference) -> list[int]:
    if item.what == "route":
        shares = item.wanted.get("split", ())
        return [*(share["version"] for share in shares), *item.wanted.get("shadow", ())]
    is_alias = item.what.startswith("aliases.") and item.wanted is not None
    return [item.wanted] if is_alias else []


def _carry_out(client: AdminClient, found: Sequence[Difference], reason: str) -> None:
    """Change everything; routes first and at once, so that a refusal of one changes nothing."""
    routes = {item.model: _guarded(item) for item in found if item.what == "route"}
    if routes:
        client.release(routes, reason)
    settings: dict[str, dict[str, Any]] = {}
    for item in found:
        part, _, key = item.what.partition(".")
        if part == "settings":
            settings.setdefault(item.model, {})[key] = item.wanted
        elif part == "aliases" and item.wanted is not None:
            client.set_alias(item.model, key, item.wanted, reason)
        elif part == "aliases":
            client.delete_alias(item.model, key, reason)
    for name, changes in settings.items():
        client.set_settings(name, changes, reason)


def _guarded(item: Difference) -> dict[str, Any]:
    """Return the wish for a route that is still as it was compared."""
    return item.wanted if item.now is None else {**item.wanted, "if_match": item.now["etag"]}


def _text(item: Difference) -> str:
    if item.what == "route":
        now = "none" if item.now is None else traffic_text(item.now)
        wanted = "latest" if item.wanted.get("latest") else traffic_text(item.wanted)
    else:
        now = "not set" if item.now is None else str(item.now)
        wanted = "not set" if item.wanted is None else str(item.wanted)
    return f"{item.model}: {item.what}: {now} -> {wanted}"
