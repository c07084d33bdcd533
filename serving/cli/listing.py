"""``ls`` and ``ps``: what exists, and what is resident."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    DATA_URL_DEFAULT,
    AdminUrl,
    AsJson,
    DataUrl,
    admin_client,
    data_client,
)
from serving.cli.output import note, print_json, print_table, size_text
from serving.cli.values import model_name
from serving.client.errors import ClientError

_LS_COLUMNS = ("model", "version", "state", "aliases", "traffic", "size", "published", "reason")
_PS_COLUMNS = (
    "model", "version", "state", "aliases", "traffic", "weights", "held", "shared", "resident",
    "locked", "private", "requests", "failed", "reason",
)  # fmt: skip


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
        _traffic(version),
        size_text(version["memory"].get("disk_bytes")),
        version["published"],
        version["reason"],
    ]


def _traffic(version: dict[str, Any]) -> str:
    if version.get("traffic"):
        return f"{version['traffic']} %"
    if version.get("is_shadow"):
        return "shadow"
    return "previous" if version.get("is_previous") else ""


def ps(
    *,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
    url: DataUrl = DATA_URL_DEFAULT,
) -> None:
    """Show what is loaded: state, traffic, memory and requests."""
    with admin_client(admin_url) as client:
        models = client.models()
        memory = client.memory()
        workers = client.workers()
    counts = _request_counts(url)
    loaded = [
        version | {"requests": counts.get((version["model"], version["version"]))}
        for model in models
        for version in model["versions"]
        if version["state"] != "UNLOADED"
    ]
    if as_json:
        totals = {key: value for key, value in memory.items() if key != "versions"}
        print_json({"versions": loaded, "memory": totals, "workers": workers})
        return
    if loaded:
        print_table(_PS_COLUMNS, [_ps_row(version) for version in loaded])
    else:
        note("nothing is loaded: ramrack load NAME VERSION loads a version of `ramrack ls`")
    left_bytes = memory.get("unreleased_bytes")
    unreleased = f", {size_text(left_bytes)} not released by unloads" if left_bytes else ""
    up = sum(worker["state"].lower() in ("ready", "up", "serving") for worker in workers)
    note(
        f"memory: {size_text(memory['committed_bytes'])} committed of "
        f"{size_text(memory['budget_bytes'])}, {size_text(memory['free_bytes'])} free{unreleased}; "
        f"workers: {up} of {len(workers)} serve"
    )


def _request_counts(url: str) -> dict[tuple[str, int], dict[str, int]]:
    """Return successes and failures by version; nothing where the data plane does not answer."""
    try:
        with data_client(url) as client:
            statistics = client.statistics()
    except ClientError as error:
        note(f"no request counts: {error}")
        return {}
    counts = {}
    for entry in statistics:
        stats = entry["inference_stats"]
        counts[entry["name"], int(entry["version"])] = {
            "succeeded": stats["success"]["count"],
            "failed": stats["fail"]["count"],
        }
    return counts


def _ps_row(version: dict[str, Any]) -> list[object]:
    memory = version["memory"]
    requests = version["requests"] or {}
    return [
        version["model"],
        version["version"],
        version["state"],
        ", ".join(version["aliases"]),
        _traffic(version),
        size_text(memory.get("weight_bytes")),
        (version.get("weights") or {}).get("mode", "-"),
        size_text(memory.get("shared_bytes")),
        size_text(memory.get("resident_bytes")),
        size_text(memory.get("locked_bytes")),
        size_text(memory.get("private_bytes_per_worker")) + " a worker",
        requests.get("succeeded", "-"),
        requests.get("failed", "-"),
        version["reason"],
    ]
