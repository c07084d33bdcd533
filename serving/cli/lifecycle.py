"""``load``, ``unload`` and ``plan``: versions into memory and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    AdminUrl,
    AsJson,
    Name,
    Reason,
    Timeout,
    Version,
    admin_client,
)
from serving.cli.output import bar, note, operation_progress, print_json, print_table, size_text
from serving.cli.room import need_rows, way_out
from serving.client.errors import ClientError

# States of versions whose memory is counted, and how that is said.
_HOLDING: Final[Mapping[str, str]] = {
    "READY": "READY",
    "DRAINING": "being unloaded, and holds this until it is",
}
_MOST_NAMED: Final = 8


def load(
    name: Name,
    version: Version,
    *,
    reason: Reason = "",
    timeout: Timeout = None,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Load a version; the first loaded one of a model also becomes its route."""
    with admin_client(admin_url) as client, bar(f"loading {name}/{version}") as shown:
        try:
            operation = client.load(
                name, version, reason=reason, timeout_s=timeout, progress=operation_progress(shown)
            )
        except ClientError as error:
            if as_json and "plan" in error.document:
                print_json({"error": str(error), "plan": error.document["plan"]})
            raise
        details = client.version(name, version)
    if as_json:
        print_json({"operation": operation, "version": details})
        return
    took = details.get("load_s")
    print(
        f"{name}/{version} is {details['state']}"
        + (f", loaded in {took:.2f} s" if took is not None else "")
        + (f", gets {details['traffic']} % of the traffic" if details.get("traffic") else "")
    )


def unload(
    name: Name,
    version: Version,
    *,
    reason: Reason = "",
    timeout: Timeout = None,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Take a version out of memory; one that is routed or aliased is refused."""
    with admin_client(admin_url) as client, bar(f"unloading {name}/{version}") as shown:
        operation = client.unload(
            name, version, reason=reason, timeout_s=timeout, progress=operation_progress(shown)
        )
    if as_json:
        print_json({"operation": operation})
    else:
        print(f"{name}/{version} is unloaded")


def plan(
    name: Name,
    version: Version,
    *,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Say what a load would need, or what a loaded version holds; changes nothing."""
    with admin_client(admin_url) as client:
        answer = client.plan(name, version)
        state = answer.get("state", "")
        held = client.version(name, version)["memory"] if state in _HOLDING else None
    if as_json:
        print_json(answer)
        return
    if held is not None:
        print(f"{name}/{version} is {_HOLDING[state]}: it is in the sum of `ramrack ps` already")
        print_table(("it holds", ""), _held_rows(answer, held))
        return
    rows = [*need_rows(answer), ("fits", "yes" if answer["fits"] else "no")]
    under_way = ", which is under way" if state == "LOADING" else ""
    print_table((f"load of {name}/{version}{under_way}", ""), rows)
    if state == "FAILED":
        # How it comes back, by itself or not, stands there too.
        note(f"{name}/{version} is {state}: {answer.get('state_reason', '')}")
    if not answer["fits"]:
        for line in way_out(answer, f"ramrack load {name} {version}"):
            note(line)


def _held_rows(plan: Mapping[str, Any], memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    others = [f"{item['model']}/{item['version']}" for item in memory.get("shared_with", ())]
    listed = ", ".join(others[:_MOST_NAMED]) + (" and others" if len(others) > _MOST_NAMED else "")
    rows = [("graph and weights, once for all workers", size_text(memory.get("object_bytes")))]
    if others:
        rows.append((f"of it shared with {listed}", size_text(memory.get("shared_bytes"))))
    return [
        *rows,
        (
            f"private, each of {plan.get('workers', '?')} workers",
            size_text(memory.get("private_bytes_per_worker")),
        ),
        ("a load would need", "nothing more"),
        ("free", size_text(plan["free_bytes"])),
        ("budget", size_text(plan.get("budget_bytes"))),
    ]
