"""``ps``: what is resident, what it holds, and how busy it was while the command looked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    DATA_URL_DEFAULT,
    AdminUrl,
    AsJson,
    admin_client,
)
from serving.cli.output import (
    fits,
    note,
    print_json,
    print_table,
    size_text,
    terminal_columns,
)
from serving.cli.traffic_words import part_text
from serving.cli.values import real, server_url

COLUMNS: Final = (
    "model", "version", "state", "aliases", "traffic", "req/s", "p50 ms", "p99 ms", "err/s",
    "requests", "failed", "weights", "held", "unique", "shared", "shared with", "resident",
    "locked", "private", "reason",
)  # fmt: skip
_RATES: Final = ("requests_per_s", "p50_ms", "p99_ms", "refused_per_s", "failed_per_s")
_MOST_S: Final = 3600


def ps(
    *,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="S", parser=real(0, _MOST_S),
            help="How long to look for the rates and latencies; 0: none are shown.",
        ),
    ] = 1.0,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
    # All of it comes from the admin plane; scripts may give both addresses to every command.
    _url: Annotated[
        str, typer.Option("--url", envvar="RAMRACK_URL", parser=server_url, hidden=True)
    ] = DATA_URL_DEFAULT,
) -> None:  # fmt: skip
    """Show what is loaded: state, traffic, rates and latencies, requests, memory."""
    from serving.cli.top_reading import compared, read

    with admin_client(admin_url) as client:
        before = after = read(client)
        if seconds:
            time.sleep(seconds)
            after = read(client)
    seen = compared(before, after)
    rates = {(one["model"], one["version"]): one for one in seen["versions"]}
    loaded = []
    for version in after.versions:
        key = version["model"], version["version"]
        counts = after.counts.get(key)
        rate = {name: rates[key][name] if seconds else None for name in _RATES}
        loaded.append(version | {"requests": _counted(counts.by_code if counts else {}), **rate})
    if as_json:
        totals = {key: value for key, value in after.memory.items() if key != "versions"}
        print_json({"seconds": seen["seconds"], "versions": loaded, "memory": totals,
                    "workers": after.workers})  # fmt: skip
        return
    if not loaded:
        note("nothing is loaded: ramrack load NAME VERSION loads a version of `ramrack ls`")
    elif fits(COLUMNS, rows := [_row(version) for version in loaded]):
        print_table(COLUMNS, rows)
    else:
        _print_narrow(seen, loaded)
    _note_totals(after.memory, after.workers)


def _counted(by_code: Mapping[str, int]) -> dict[str, int]:
    succeeded = by_code.get("200", 0)
    return {"succeeded": succeeded, "failed": sum(by_code.values()) - succeeded}


def _row(version: Mapping[str, Any]) -> list[object]:
    memory = version["memory"]
    is_measured = version["requests_per_s"] is not None
    errors = version["refused_per_s"] + version["failed_per_s"] if is_measured else None
    return [
        version["model"],
        version["version"],
        version["state"],
        ", ".join(version["aliases"]),
        part_text(version),
        _number(version["requests_per_s"]),
        _number(version["p50_ms"]),
        _number(version["p99_ms"]),
        _number(errors),
        version["requests"]["succeeded"],
        version["requests"]["failed"],
        size_text(memory.get("weight_bytes")),
        (version.get("weights") or {}).get("mode", "-"),
        size_text(memory.get("unique_bytes")),
        size_text(memory.get("shared_bytes")),
        _shared_with(memory),
        size_text(memory.get("resident_bytes")),
        size_text(memory.get("locked_bytes")),
        size_text(memory.get("private_bytes_per_worker")) + " a worker",
        _reason(version),
    ]


def _reason(version: Mapping[str, Any]) -> str:
    """Return why a version does not serve; of one that does, why it holds its weights so."""
    if version["state"] != "READY":
        return str(version["reason"])
    return str((version.get("weights") or {}).get("reason", ""))


def _shared_with(memory: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{other['model']}/{other['version']}" for other in memory.get("shared_with", ())
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _print_narrow(seen: Mapping[str, Any], loaded: Sequence[Mapping[str, Any]]) -> None:
    """Print the columns of ``top``, which fit 80, and below what they leave out."""
    from serving.cli.top_view import narrow

    print(narrow(seen["versions"], terminal_columns()))
    # What is wrong stands last, next to the prompt.
    for version in sorted(loaded, key=lambda one: one["state"] != "READY"):
        name = f"{version['model']}/{version['version']}"
        if version["state"] != "READY":
            note(f"{name} is {version['state']}: {version['reason']}")
        elif told := _memory_text(version):
            note(f"{name} {told}")


def _memory_text(version: Mapping[str, Any]) -> str:
    """Return how a version holds its weights and with whom it shares them, empty if unknown."""
    memory, weights = version["memory"], version.get("weights")
    held = f"is {weights['mode']}: {weights['reason']}" if weights else ""
    others = _shared_with(memory)
    shares = (
        f"shares {size_text(memory.get('shared_bytes'))} with {others}, "
        f"{size_text(memory.get('unique_bytes'))} are its own"
    )
    return "; ".join(filter(None, (held, shares if others else "")))


def _note_totals(memory: Mapping[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
    left_bytes = memory.get("unreleased_bytes")
    unreleased = f", {size_text(left_bytes)} not released by unloads" if left_bytes else ""
    up = sum(worker["state"].lower() in ("ready", "up", "serving") for worker in workers)
    note(
        f"memory: {size_text(memory['committed_bytes'])} committed of "
        f"{size_text(memory['budget_bytes'])}, {size_text(memory['free_bytes'])} free{unreleased}; "
        f"workers: {up} of {len(workers)} serve"
    )
