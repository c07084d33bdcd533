"""``ramrack tune``: the settings with the highest rate within a latency, on this machine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from registry.errors import InvalidInput
from serving.cli.interrupt import INTERRUPT
from serving.cli.load_run import check_installed
from serving.cli.made_requests import request_of
from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    AdminUrl,
    AsJson,
    Form,
    Name,
    Rows,
    admin_client,
)
from serving.cli.output import note, print_json, print_table
from serving.cli.predict import input_file
from serving.cli.values import real, version_number


def tune(
    name: Name,
    *,
    p99_ms: Annotated[
        float,
        typer.Option("--p99-ms", metavar="MS", help="What 99 of 100 answers must stay within.",
                     parser=real(0.1, 60_000)),
    ],
    minutes: Annotated[
        float,
        typer.Option("--minutes", metavar="N", parser=real(0.1, 600),
                     help="How long to search, once the version was loaded."),
    ] = 4.5,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR",
                     help="The store that has the model; it is only read. Without it that of the "
                     "settings of this folder.", exists=True, file_okay=False),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="VERSION", parser=version_number,
                     help="Number of the version; without it the highest."),
    ] = None,
    input_path: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", parser=input_file,
                     help="What to send, as for bench; without it requests are made up."),
    ] = None,
    form: Form = "v2",
    rows: Rows = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE",
                     help="Write what was found as a settings file; it must not exist yet."),
    ] = None,
    is_applying: Annotated[
        bool,
        typer.Option("--apply", help="Change the running server at --admin-url as well, as far "
                     "as that goes without a restart: the model's batching."),
    ] = False,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:  # fmt: skip
    """Find the settings with the highest rate within a latency, on servers of its own."""
    from serving.cli.tune_report import COLUMNS, document, settings_text
    from serving.cli.tune_report import rows as table_rows
    from serving.cli.tune_rig import rig
    from serving.cli.tune_run import Course
    from serving.cli.tune_space import candidates
    from serving.cli.tune_store import package_of, work_parent
    from serving.machine import read_machine

    check_installed()
    if output is not None and output.exists():
        raise typer.BadParameter(f"--output {output}: it exists; give another name")
    if output is not None and not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"--output {output}: there is no folder {output.parent}")
    if is_applying:
        _check_apply(admin_url, name)
    root = store or _store_of_settings()
    package, number = package_of(root, name, version)
    cores = read_machine().usable_cores
    note(f"{name} version {number}, {cores} cores, p99 within {p99_ms:g} ms; loading it into a "
         "server of our own, nothing that runs here is touched")  # fmt: skip
    began_s = time.monotonic()
    with INTERRUPT.also(signal.SIGTERM), rig(
        work_parent(root, package), package, p99_ms,
        lambda url: request_of(url, "", name, form=form, rows=rows, source=input_path),
    ) as servers:  # fmt: skip
        note(f"loaded after {servers.prepare():.1f} s; searching for {minutes:g} minutes at most")
        course = Course(servers, minutes * 60, note)
        verdict = course.run(candidates(cores, p99_ms))
    text = settings_text(name, p99_ms, verdict, cores)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        took = (time.monotonic() - began_s) / 60
        print_json(document(name, p99_ms, course.trials, verdict, took))
    else:
        print_table(COLUMNS, table_rows(course.trials, verdict))
        print(f"\n{text}", end="")
    note(verdict.words() + (f"; written to {output}" if output is not None else ""))
    if is_applying:
        _apply(admin_url, name, is_batching=verdict.chosen.batching,
               is_server=bool(verdict.chosen.server_settings()))  # fmt: skip


def _store_of_settings() -> Path:
    from serving.settings import CONFIG_NAME, load_settings

    config = Path(CONFIG_NAME)
    settings = load_settings(config if config.is_file() else None, os.environ, {})
    if not settings.store.is_dir():
        raise InvalidInput(f"there is no store at {settings.store}: name it with --store DIR")
    return settings.store


def _check_apply(admin_url: str, name: str) -> None:
    """Raise ClientError now rather than in five minutes."""
    with admin_client(admin_url) as client:
        client.settings(name)


def _apply(admin_url: str, name: str, *, is_batching: bool, is_server: bool) -> None:
    wanted = None if is_batching else False
    with admin_client(admin_url) as client:
        before = client.settings(name)["settings"].get("batching")
        if before != wanted:
            client.set_settings(name, {"batching": wanted}, "ramrack tune")
            note(f"changed on the running server: batching of {name} is "
                 f"{'as by default' if is_batching else 'off'}")  # fmt: skip
        else:
            note(f"the running server's batching of {name} is as it was found best already")
    if is_server:
        note("the other settings are read at a start: put them into its ramrack.toml")
