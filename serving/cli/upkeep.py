"""``rm``, ``gc``, ``verify`` and ``events``: the store's housekeeping and its record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from registry.ident import shown
from serving.cli.change_words import change_text
from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    AdminUrl,
    AsJson,
    Name,
    Reason,
    Version,
    admin_client,
)
from serving.cli.output import (
    bar,
    count_text,
    note,
    print_json,
    print_table,
    size_text,
    working,
)
from serving.cli.values import model_name, whole

# The server gives no more at once.
MAX_EVENTS: Final = 1000
_MAX_SEQ: Final = 2**53 - 1


def rm(
    name: Name,
    version: Version,
    *,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Delete a version that is not loaded, routed or aliased; its number is never used again."""
    with admin_client(admin_url) as client:
        answer = client.delete_version(name, version, reason)
    if as_json:
        print_json(answer)
    else:
        print(f"{name}/{version} is deleted; ramrack gc gives the disk space back")


def gc(
    *, reason: Reason = "", as_json: AsJson = False, admin_url: AdminUrl = ADMIN_URL_DEFAULT
) -> None:
    """Free the space of objects that belong to no version; pushes may go on meanwhile."""
    with admin_client(admin_url) as client, working("dropping unused objects"):
        answer = client.gc(reason)
    if as_json:
        print_json(answer)
    else:
        print(f"dropped {count_text(answer['objects'], 'object')}, {size_text(answer['bytes'])}")


def verify(
    *,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", metavar="DIR", exists=True, file_okay=False,
            help="Check this folder itself; no server is needed.",
        ),
    ] = None,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> int:  # fmt: skip
    """Compare every object with its digest; changes nothing, ends with 1 if any is damaged."""
    if store is None:
        with admin_client(admin_url) as client, working("reading every object"):
            answer = client.verify()
    else:
        answer = _verify_store(store)
    damaged = answer["damaged"]
    if as_json:
        print_json(answer)
    else:
        print(f"checked {count_text(answer['objects'], 'object')}, {size_text(answer['bytes'])}")
        for entry in damaged:
            note(f"damaged: {entry['digest']}: {entry['reason']}")
    return 1 if damaged else 0


def _verify_store(root: Path) -> dict[str, Any]:
    from registry.store import Store

    with Store.open_read_only(root) as store, bar("reading every object") as shown:
        total_bytes = store.usage().object_bytes
        report = store.verify(lambda done: shown.update(done, total_bytes))
    damaged = [{"digest": name, "reason": reason} for name, reason in report.damaged.items()]
    return {"objects": report.objects, "bytes": report.bytes, "damaged": damaged}


def events(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Only this model.", parser=model_name),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            metavar="SEQ",
            parser=whole(0, _MAX_SEQ),
            help="The first ones after this number; without it the newest.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            metavar="N",
            help=f"At most so many, 1 to {MAX_EVENTS}.",
            parser=whole(1, MAX_EVENTS),
        ),
    ] = 50,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:
    """Show the record of every change: when, who, what, why."""
    with admin_client(admin_url) as client:
        answer = client.events(since, model or "", limit)
    if as_json:
        print_json(answer)
        return
    rows = [_event_row(event) for event in answer["events"]]
    if rows:
        print_table(("seq", "time", "who", "what", "model", "change", "reason"), rows)
    else:
        of_model = f" of model {shown(model)}" if model else ""
        note(f"no changes are recorded{of_model}" + (f" after number {since}" if since else ""))


def _event_row(event: dict[str, Any]) -> list[object]:
    model = event.get("model") or ""
    if event.get("version"):
        model += f"/{event['version']}"
    change = change_text(event.get("before"), event.get("after"))
    return [
        event["seq"], event["time"], event["who"], event["kind"], model, change, event["reason"],
    ]  # fmt: skip
