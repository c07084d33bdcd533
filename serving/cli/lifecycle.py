"""``load``, ``unload`` and ``plan``: versions into memory and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        operation = client.load(
            name, version, reason=reason, timeout_s=timeout, progress=operation_progress(shown)
        )
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
    """Say what a load would need, and change nothing."""
    with admin_client(admin_url) as client:
        answer = client.plan(name, version)
    if as_json:
        print_json(answer)
        return
    is_estimated = answer.get("is_estimated", False)
    private = size_text(answer.get("private_bytes_per_worker"))
    rows = [
        ("needs", ("at least " if is_estimated else "") + size_text(answer["needs_bytes"])),
        ("of it graph and weights that are not here yet", size_text(answer.get("new_bytes"))),
        (
            "of it private, each worker",
            "not known before the first load" if is_estimated else private,
        ),
        ("free", size_text(answer["free_bytes"])),
        ("fits", "yes" if answer["fits"] else "no"),
    ]
    rows += [
        (
            f"an unload of {item['model']}/{item['version']} gives",
            size_text(item.get("frees_bytes")),
        )
        for item in answer.get("would_evict", [])
    ]
    print_table(("load of " + f"{name}/{version}", ""), rows)

    if not answer["fits"]:
        note(_way_out(answer))


def _way_out(plan: Mapping[str, Any]) -> str:
    if not plan.get("would_evict"):
        return (
            "nothing can be unloaded: every loaded version is routed, aliased, or what a rollback "
            "goes back to; raise memory_budget"
        )
    enough = "" if plan.get("fits_after_evicting") else ", which is not enough by itself"
    return f"nothing is unloaded by itself: ramrack unload makes that room{enough}"
