"""``ramrack serve``: settings from all sources, then the server until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from registry.errors import InvalidInput
from serving.settings import CONFIG_NAME, Settings, load_settings


def serve(
    *,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Folder of the store.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address of the data plane.")
    ] = None,
    port: Annotated[
        str | None,
        typer.Option("--port", metavar="PORT", help="Port of the data plane; 0: any free one."),
    ] = None,
    admin_host: Annotated[
        str | None,
        typer.Option("--admin-host", metavar="ADDRESS", help="Address of the admin plane."),
    ] = None,
    admin_port: Annotated[
        str | None,
        typer.Option(
            "--admin-port", metavar="PORT", help="Port of the admin plane; 0: any free one."
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option("--workers", metavar="N", help="Worker processes; 0: one a usable core."),
    ] = None,
    threads_per_worker: Annotated[
        str | None,
        typer.Option(
            "--threads-per-worker", metavar="N", help="Threads of one run; 0: cores by workers."
        ),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option("--memory-budget", metavar="SIZE", help="Memory for versions, such as 12GiB."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM certificate.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM key of the certificate.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="FORMAT", help="json or text.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="RAMRACK_CONFIG",
            help=f"Settings file; {CONFIG_NAME} of this folder if it is there.",
        ),
    ] = None,
) -> int:
    """Start the server and stay until Ctrl-C or SIGTERM."""
    flags = {
        "store": store,
        "host": host,
        "port": port,
        "admin_host": admin_host,
        "admin_port": admin_port,
        "workers": workers,
        "threads_per_worker": threads_per_worker,
        "memory_budget": memory_budget,
        "tls_cert": None if tls_cert is None else str(tls_cert),
        "tls_key": None if tls_key is None else str(tls_key),
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = _settings(config, flags)
    from serving.bootstrap import run

    return run(settings)


def _settings(config: Path | None, flags: Mapping[str, object]) -> Settings:
    if config is None and Path(CONFIG_NAME).is_file():
        config = Path(CONFIG_NAME)
    try:
        return load_settings(config, os.environ, flags)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
