"""``ramrack import``: takes over what another server serves."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from registry.ident import shown
from serving.cli.interrupt import INTERRUPT
from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    CONVERT_TIMEOUT_S,
    AdminUrl,
    AsJson,
    ConvertTimeout,
    Reason,
    admin_client,
)
from serving.cli.output import bar, note, print_json, print_table, working

if TYPE_CHECKING:
    from models.convert.triton.repository import TritonModel, TritonVersion
    from models.package import Package
    from serving.client.admin import AdminClient

_COLUMNS: Final = ("model", "backend", "folder", "result", "why")
# Refusals of the server that are about one version, not about the server.
_OF_ONE_VERSION: Final = (400, 409, 413)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. ``version``: the number that the server gave it."""

    model: str
    backend: str
    folder: str
    result: str
    why: str = ""
    version: int | None = None

    @property
    def is_refused(self) -> bool:
        """Whether this is what makes the command fail."""
        return self.result == "refused"


def _kind(text: str) -> str:
    if text != "triton":
        raise typer.BadParameter(f"{shown(text)} is not known: only triton is")
    return text


def import_models(
    kind: Annotated[
        str, typer.Argument(metavar="triton", parser=_kind, help="What wrote the folder.")
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The model repository."),
    ],
    *,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be taken, and change nothing.")
    ] = False,
    timeout_s: ConvertTimeout = CONVERT_TIMEOUT_S,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> int:
    """Take over a model repository of Triton: each version is pushed, none is loaded."""
    del kind
    from models.convert.triton.repository import read_repository

    models = read_repository(folder)
    if is_dry_run:
        lines = [line for model in models for line in _planned(model)]
    else:
        with INTERRUPT.told(lambda: "stopped; what was pushed stays, and is not sent again"):
            lines = _run(models, admin_url, _How(reason, timeout_s))
    if as_json:
        print_json({"versions": [asdict(line) for line in lines]})
    else:
        print_table(_COLUMNS, [_row(line) for line in lines])
        _say_what_next(lines)
    return int(any(line.is_refused for line in lines))


@dataclass(frozen=True, slots=True)
class _How:
    """Why, for the record of changes, and how long the conversion of a file may take."""

    reason: str
    timeout_s: float


def _run(models: Sequence[TritonModel], admin_url: str, how: _How) -> list[Line]:
    with admin_client(admin_url) as client:
        client.check_push()
        return [line for model in models for line in _taken(client, model, how)]


def _planned(model: TritonModel) -> list[Line]:
    """Return what a run would do with a model, one line a version."""
    if model.refusal:
        return [Line(model.name, model.backend, "", "refused", model.refusal)]
    words = [f"{key}={value}".lower() for key, value in model.settings.items()]
    why = "; ".join((*words, *model.notes))
    return [
        Line(model.name, model.backend, str(version.number), "refused", version.refusal)
        if version.refusal
        else Line(model.name, model.backend, str(version.number), "would be pushed", why)
        for version in model.versions
    ]


def _taken(client: AdminClient, model: TritonModel, how: _How) -> list[Line]:
    """Push the versions of a model, oldest first; one that is refused does not stop the others."""
    lines = []
    for planned, version in zip(_planned(model), model.versions or (None,), strict=True):
        if version is None or planned.is_refused:
            lines.append(planned)
            continue
        INTERRUPT.check()
        lines.append(_pushed(client, model, version, planned, how))
    if model.settings and any(line.version is not None for line in lines):
        before = client.settings(model.name)["settings"]
        if any(before.get(key) != value for key, value in model.settings.items()):
            client.set_settings(model.name, dict(model.settings), how.reason)
    return lines


def _pushed(
    client: AdminClient, model: TritonModel, version: TritonVersion, planned: Line, how: _How
) -> Line:
    from models.errors import ConversionRefused
    from registry.errors import InvalidInput
    from serving.client.errors import ClientError
    from serving.client.push import push_package

    def refused(error: Exception) -> Line:
        return Line(model.name, model.backend, planned.folder, "refused", str(error))

    try:
        # What a conversion writes must stay until it has been sent.
        with tempfile.TemporaryDirectory(prefix="ramrack-import-") as folder:
            package = _converted(model, version, Path(folder), how.timeout_s)
            with bar(f"sending {model.name}/{version.number}") as shown_bar:
                result = push_package(
                    client, package, reason=how.reason,
                    progress=lambda sent, total, _: shown_bar.update(sent, total),
                    before_registration=INTERRUPT.check,
                )  # fmt: skip
    except (ConversionRefused, InvalidInput) as error:
        return refused(error)
    except ClientError as error:
        if error.status not in _OF_ONE_VERSION:
            raise
        return refused(error)
    word = "pushed as" if result.created else "was there as"
    return Line(
        model.name, model.backend, planned.folder, f"{word} {model.name}/{result.version}",
        planned.why, result.version,
    )  # fmt: skip


def _converted(
    model: TritonModel, version: TritonVersion, folder: Path, timeout_s: float
) -> Package:
    from models.convert import ConvertOptions, convert
    from models.convert.triton.labels import labelled
    from models.errors import ConversionRefused

    file = version.file
    if file is None:
        raise ConversionRefused(version.refusal)
    meta: Any = {"triton_version": str(version.number)}
    options = ConvertOptions(meta=meta, folder=folder, is_apart=True, timeout_s=timeout_s)
    with working(f"converting {model.name}/{version.number}"):
        package = convert(model.name, file, options, before_pickle=lambda: _warn_of_code(file))
    return labelled(package, model.labels)


def _warn_of_code(path: Path) -> None:
    note(f"note: opening {path.name} runs code from that file; import only folders you trust")


def _row(line: Line) -> list[object]:
    return [line.model, line.backend, line.folder, line.result, line.why]


def _say_what_next(lines: Sequence[Line]) -> None:
    newest = {line.model: line.version for line in lines if line.version is not None}
    if newest:
        note("to serve the newest of each:")
    for name, version in newest.items():
        print(f"ramrack load {name} {version}")
    refused = sum(line.is_refused for line in lines)
    if refused:
        note(f"{refused} of {len(lines)} were refused; the table says why")
