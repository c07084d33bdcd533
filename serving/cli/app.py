"""Puts the commands together. Modules are light: what is heavy is imported when it is used."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any

import typer

from serving.cli import (
    apply,
    backup,
    bench,
    doctor,
    importing,
    install_service,
    lifecycle,
    listing,
    predict,
    ps,
    push,
    releasing,
    restart,
    routing,
    serve,
    snippet,
    top,
    tune,
    upkeep,
)

app = typer.Typer(
    name="ramrack",
    help="Serve many versions of machine-learning models from RAM, on CPUs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"ramrack {metadata.version('ramrack')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    is_version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Serve many versions of machine-learning models from RAM, on CPUs."""


app.command("serve")(serve.serve)
app.command("push")(push.push)
app.command("import")(importing.import_models)
app.command("ls")(listing.ls)
app.command("ps")(ps.ps)
app.command("top")(top.top)
app.command("load")(lifecycle.load)
app.command("unload")(lifecycle.unload)
app.command("plan")(lifecycle.plan)
app.command("alias")(routing.alias)
app.command("route")(routing.route)
app.command("rollback")(routing.rollback)
app.command("release")(releasing.release)
app.command("settings")(releasing.settings)
app.command("apply")(apply.apply)
app.command("restart")(restart.restart)
app.command("rm")(upkeep.rm)
app.command("gc")(upkeep.gc)
app.command("verify")(upkeep.verify)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("events")(upkeep.events)
app.command("predict")(predict.predict)
app.command("snippet")(snippet.snippet)
app.command("bench")(bench.bench)
app.command("tune")(tune.tune)
app.command("doctor")(doctor.doctor)
app.command("install-service")(install_service.install_service)


def command() -> Any:
    """Return the command group as click sees it."""
    return typer.main.get_command(app)
