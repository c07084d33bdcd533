"""``backup`` and ``restore``: a copy of the store on another disk, and the way back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from serving.cli.options import AsJson
from serving.cli.output import bar, count_text, note, print_json, size_text
from serving.cli.values import whole

_MOST: Final = 99_999_999


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backup.")],
    *,
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="Folder of the store.")
    ] = Path("ramrack-store"),
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="N", help="Keep the newest N snapshots.", parser=whole(1, _MOST)
        ),
    ] = 1,
    is_thorough: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read what was copied earlier, too, and mend what is damaged."
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Copy what is new in the store to another folder, also while a server runs on it.

    Run it where the server runs. Ends with 1 where the store itself has damaged objects.
    """
    from registry.backup import back_up

    with bar("copying objects") as shown:
        report = back_up(
            store, directory, keep=keep, is_thorough=is_thorough, progress=shown.update
        )
    if as_json:
        print_json(asdict(report))
    else:
        print(
            f"snapshot {report.snapshot} of {report.taken}: "
            f"{count_text(report.objects, 'object')}, {size_text(report.object_bytes)}; "
            f"copied {count_text(report.copied_objects, 'object')}, "
            f"{size_text(report.copied_bytes)}; freed {size_text(report.freed_bytes)}"
        )
    return _name_missing(
        report.missing, f"the store {store}",
        "push those versions again (`ramrack verify` finds them), then back up once more",
    )  # fmt: skip


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backup.")],
    *,
    store: Annotated[
        Path,
        typer.Option(
            "--store", metavar="DIR", help="Folder to make the store in: empty or missing."
        ),
    ] = Path("ramrack-store"),
    snapshot: Annotated[
        int | None,
        typer.Option("--snapshot", metavar="N", help="Not the newest one.", parser=whole(1, _MOST)),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Make a store of a backup: versions, aliases, routes, settings and the record of changes.

    A server that is started on it loads what was loaded. Ends with 1 where the backup has damaged
    objects; the versions that need them are FAILED until they are pushed again.
    """
    from registry.backup import restore as restore_store

    with bar("copying objects") as shown:
        report = restore_store(directory, store, snapshot=snapshot, progress=shown.update)
    if as_json:
        print_json(asdict(report))
    else:
        print(
            f"restored snapshot {report.snapshot} of {report.taken}: "
            f"{count_text(report.objects, 'object')}, {size_text(report.object_bytes)}"
        )
    return _name_missing(
        report.missing, f"the backup {directory}",
        "the versions that need them are FAILED until they are pushed again; the rest is restored",
    )  # fmt: skip


def _name_missing(digests: tuple[str, ...], where: str, way_out: str) -> int:
    for digest in digests:
        note(f"{where} has no intact copy of {digest}")
    if digests:
        note(way_out)
    return 1 if digests else 0
