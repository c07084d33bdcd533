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
from serving.cli.output import bar, operation_progress, print_json


def restart(
    *,
    is_rolling: Annotated[
        bool, typer.Option("--rolling", help="One worker after the other; no request is lost.")
    ] = False,
    reason: Reason = "",
    timeout: Timeout = None,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Replace the workers by new ones with the same versions, while the server serves."""
    if not is_rolling:
        raise typer.BadParameter("say how: --rolling")
    with admin_client(admin_url) as client, bar("restarting the workers") as shown:
        operation = client.restart_workers(reason, timeout, operation_progress(shown))
        workers = client.workers()
    if as_json:
        print_json({"operation": operation, "workers": workers})
    else:
        print(f"{len(workers)} workers are new")
