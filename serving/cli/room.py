"""What a load needs of the memory budget, and the commands that make room for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serving.cli.output import size_text


def need_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a load needs and what there is, each with its name."""
    is_estimated = plan.get("is_estimated", False)
    private = size_text(plan.get("private_bytes_per_worker"))
    rows = [
        ("needs", ("at least " if is_estimated else "") + size_text(plan["needs_bytes"])),
        ("of it graph and weights that are not here yet", size_text(plan.get("new_bytes"))),
        (
            f"of it private, each of {plan.get('workers', '?')} workers",
            "not known before the first load" if is_estimated else private,
        ),
        ("free", size_text(plan["free_bytes"])),
        ("budget", size_text(plan.get("budget_bytes"))),
    ]
    if not plan["fits"]:
        rows.append(("lacks", size_text(plan["needs_bytes"] - plan["free_bytes"])))
    return rows


def way_out(plan: Mapping[str, Any], again: str = "") -> list[str]:
    """Return lines with the commands that make room, and ``again``, the command to repeat then."""
    evictions: Sequence[Mapping[str, Any]] = plan.get("would_evict", ())
    more = "start the server with a larger --memory-budget"
    budget = plan.get("budget_bytes")
    if budget is not None and plan["needs_bytes"] > budget:
        return [f"it needs more than the whole budget, so no unload makes room: {more}"]
    if not evictions:
        return [
            (
                "nothing can be unloaded: every other loaded version is routed, aliased, or what a "
                f"rollback goes back to (`ramrack ps` shows them); {more}"
            )
        ]
    commands = [f"ramrack unload {item['model']} {item['version']}" for item in evictions]
    widest = max(map(len, commands))
    lines = ["nothing is unloaded by itself; these versions answer nobody, so unload them:"]
    lines += [
        f"  {command:<{widest}}   gives {size_text(item.get('frees_bytes'))}"
        for command, item in zip(commands, evictions, strict=True)
    ]
    if not plan.get("fits_after_evicting"):
        return [*lines, f"that is not enough by itself: {more} as well"]
    return [*lines, f"then try again: {again}" if again else "then try again"]


def refusal(plan: Mapping[str, Any]) -> list[str]:
    """Return what stands below the text of a load that did not fit."""
    rows = need_rows(plan)
    widest = max(len(name) for name, _ in rows)
    again = f"ramrack load {plan['model']} {plan['version']}" if "model" in plan else ""
    return [*(f"  {name:<{widest}}   {value}" for name, value in rows), *way_out(plan, again)]
