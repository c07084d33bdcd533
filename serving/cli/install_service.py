"""``install-service``: unit files for systemd, written or shown."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from serving.cli.output import note
from serving.cli.service_units import ADDRESS, ADMIN_ADDRESS, Service, units

_MAX_PORT: Final = 65535
SYSTEM_DIR: Final = Path("/etc/systemd/system")


def install_service(
    *,
    user_dir: Annotated[
        Path | None,
        typer.Option(
            "--user-dir", metavar="DIR", help=f"Folder for the units instead of {SYSTEM_DIR}."
        ),
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(
            "--program", metavar="PATH", help="What the service runs; default: this very command."
        ),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Where predictions are taken.")
    ] = ADDRESS,
    admin_address: Annotated[
        str, typer.Option("--admin-address", metavar="HOST:PORT", help="Where changes are taken.")
    ] = ADMIN_ADDRESS,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the units and write nothing.")
    ] = False,
) -> None:
    """Write units for systemd: the server as a service of its own user, and its two sockets."""
    service = Service(
        str(_checked_program(program)),
        _checked_address(address, "--address"),
        _checked_address(admin_address, "--admin-address"),
    )
    texts = units(service)
    if is_dry_run:
        for name, text in texts.items():
            print(f"# ---- {name}\n{text}")
        return
    folder = user_dir or SYSTEM_DIR
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    note("next: systemctl daemon-reload && systemctl enable --now ramrack")


def _checked_program(program: Path | None) -> Path:
    found = program
    if found is None:
        own = Path(sys.argv[0])
        named = shutil.which(own.name) if own.name == "ramrack" else None
        found = own if own.name == "ramrack" and own.is_file() else Path(named or "ramrack")
    if not found.is_absolute():
        found = Path.cwd() / found
    if not found.is_file():
        raise typer.BadParameter(f"{str(found)!r} is no file: say what to run with --program PATH")
    if any(c.isspace() or c in "%$\"'\\" for c in str(found)):
        raise typer.BadParameter(
            f"{str(found)!r}: a path without spaces, quotes, % and $ is needed"
        )
    return found


def _checked_address(text: str, option: str) -> str:
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= _MAX_PORT
    if not host or not is_port or any(c.isspace() for c in host):
        raise typer.BadParameter(f"{option} {text!r}: use HOST:PORT, such as 127.0.0.1:8080")
    return text
