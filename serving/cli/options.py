"""Options that several commands share, and the clients made from them.

Everything is checked while the command line is read, so that wrong usage costs no request.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from serving.cli.interrupt import INTERRUPT
from serving.cli.made_requests import FORMS
from serving.cli.values import (
    etag,
    model_name,
    one_of,
    real,
    reason_text,
    server_url,
    token_text,
    version_number,
    whole,
)

if TYPE_CHECKING:
    from serving.client.admin import AdminClient
    from serving.client.data import DataClient

# A week, which is what settings in seconds may be at most as well.
MAX_TIMEOUT_S = 604_800

Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the model.", parser=model_name)
]
Version: TypeAlias = Annotated[
    int, typer.Argument(metavar="VERSION", help="Number of the version.", parser=version_number)
]
Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait; the server goes on without us.",
        parser=real(0, MAX_TIMEOUT_S),
    ),
]
ConvertTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        "--convert-timeout",
        metavar="SECONDS",
        help="How long opening and converting one file may take before it is ended: damaged ones "
        "can go on for ever.",
        parser=real(1, MAX_TIMEOUT_S),
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Reason: TypeAlias = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", help="Why, for the record of changes.", parser=reason_text
    ),
]
Form: TypeAlias = Annotated[
    str,
    typer.Option(
        "--form",
        metavar="FORM",
        help="Of a made up request: v2, v1 or binary.",
        parser=one_of(*FORMS),
    ),
]
Rows: TypeAlias = Annotated[
    int,
    typer.Option("--rows", metavar="N", help="Rows of the request.", parser=whole(1, 1_000_000)),
]
IfMatch: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--if-match",
        metavar="ETAG",
        help="Change it only if it still has this etag, which --json shows.",
        parser=etag,
    ),
]
AdminUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--admin-url",
        metavar="URL",
        envvar="RAMRACK_ADMIN_URL",
        help="The server's admin plane.",
        parser=server_url,
    ),
]
DataUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="RAMRACK_URL",
        help="The server's data plane.",
        parser=server_url,
    ),
]
# Same as serving.client's, which would cost an HTTP library at every start.
ADMIN_URL_DEFAULT = "http://127.0.0.1:8081"
DATA_URL_DEFAULT = "http://127.0.0.1:8080"
# Same as models.convert's, for the same reason.
CONVERT_TIMEOUT_S = 3600.0


def admin_client(url: str) -> AdminClient:
    """Return a client of the admin plane; the token is never on a command line."""
    token = token_text("RAMRACK_ADMIN_TOKEN", os.environ)
    from serving.client.admin import AdminClient

    return AdminClient.connect(url, token, before_request=INTERRUPT.check)


def data_token() -> str:
    """Return the token for the data plane, empty without one."""
    return token_text("RAMRACK_TOKEN", os.environ)


def data_client(url: str) -> DataClient:
    """Return a client of the data plane."""
    token = data_token()
    from serving.client.data import DataClient

    return DataClient.connect(url, token, before_request=INTERRUPT.check)
