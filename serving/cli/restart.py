"""``restart``: new workers, or a new server, in place of those that serve."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    AdminUrl,
    AsJson,
    Reason,
    Timeout,
    admin_client,
)
from serving.cli.output import bar, count_text, operation_progress, print_json, working


def restart(
    *,
    is_rolling: Annotated[
        bool, typer.Option("--rolling", help="One worker after the other; no request is lost.")
    ] = False,
    is_upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="The whole server, by the release that is installed now; no request is lost.",
        ),
    ] = False,
    reason: Reason = "",
    timeout: Timeout = None,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Replace the workers, or all of the server, while it serves; versions stay loaded."""
    if is_rolling == is_upgrade:
        raise typer.BadParameter("say how: either --rolling or --upgrade")
    if is_upgrade:
        _upgrade(reason, timeout, as_json=as_json, admin_url=admin_url)
        return
    with admin_client(admin_url) as client, bar("restarting the workers") as shown:
        operation = client.restart_workers(reason, timeout, operation_progress(shown))
        workers = client.workers()
    if as_json:
        print_json({"operation": operation, "workers": workers})
    else:
        pids = ", ".join(str(worker["pid"]) for worker in workers)
        are = "is" if len(workers) == 1 else "are"
        print(f"{count_text(len(workers), 'worker')} {are} new: process {pids}")


def _upgrade(reason: str, timeout: float | None, *, as_json: bool, admin_url: str) -> None:
    with admin_client(admin_url) as client, working("the new release takes over"):
        workers = client.upgrade(reason, timeout)
    if as_json:
        print_json({"workers": workers})
    else:
        print(f"the new release serves with {count_text(len(workers), 'worker')}")
