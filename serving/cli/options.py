"""Options that several commands share, and the clients made from them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from registry.errors import InvalidInput
from registry.ident import check_model_name, parse_version

if TYPE_CHECKING:
    from serving.client.api import AdminClient, DataClient


def _model_name(text: str) -> str:
    try:
        return check_model_name(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error


def version_number(text: str) -> int:
    """Return a version number from the command line, or refuse it as wrong usage."""
    try:
        return parse_version(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error


Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the model.", parser=_model_name)
]
Version: TypeAlias = Annotated[
    int, typer.Argument(metavar="VERSION", help="Number of the version.", parser=version_number)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Reason: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for the record of changes.")
]
AdminUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--admin-url", metavar="URL", envvar="RAMRACK_ADMIN_URL", help="The server's admin plane."
    ),
]
DataUrl: TypeAlias = Annotated[
    str,
    typer.Option("--url", metavar="URL", envvar="RAMRACK_URL", help="The server's data plane."),
]
# Same as serving.client.api's, which would cost an HTTP library at every start.
ADMIN_URL_DEFAULT = "http://127.0.0.1:8081"
DATA_URL_DEFAULT = "http://127.0.0.1:8080"


def admin_client(url: str) -> AdminClient:
    """Return a client of the admin plane; the token is never on a command line."""
    from serving.client.api import AdminClient

    return AdminClient.connect(url, os.environ.get("RAMRACK_ADMIN_TOKEN", ""))


def data_client(url: str) -> DataClient:
    """Return a client of the data plane."""
    from serving.client.api import DataClient

    return DataClient.connect(url, os.environ.get("RAMRACK_TOKEN", ""))
