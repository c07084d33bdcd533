"""``ramrack predict``: rows from a file to the server, its answers as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from registry.ident import shown
from serving.cli.options import DATA_URL_DEFAULT, AsJson, DataUrl, Name, data_client
from serving.cli.output import bar, count_text, note, print_json, print_table
from serving.cli.rows import STDIN, InputFile, read_input, shown_name
from serving.cli.values import routing_key, selector

if TYPE_CHECKING:
    from serving.client.data import DataClient

ROWS_A_REQUEST: Final = 500


def input_file(text: str) -> Path:
    """Return the file that a flag names, or refuse it as wrong usage."""
    path = Path(text)
    if path != STDIN and not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file"
        what = what if path.exists() else "does not exist"
        raise typer.BadParameter(f"{shown(text)} {what}: give a file, or - for standard input")
    return path


def predict(
    name: Name,
    *,
    input_path: Annotated[
        Path,
        typer.Option(
            "--input", "-i", metavar="FILE", parser=input_file,
            help="JSON (a V1 or V2 body, or a list of rows), CSV or Parquet; -: standard input.",
        ),
    ],
    version: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="VERSION", help="Number or alias; without it the route decides.",
            parser=selector,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--routing-key", metavar="KEY", parser=routing_key,
            help="Sent as x-routing-key: of a split, equal keys are answered by the same version.",
        ),
    ] = None,
    as_json: AsJson = False,
    url: DataUrl = DATA_URL_DEFAULT,
) -> None:  # fmt: skip
    """Predict the rows of a file and print the answers."""
    if version and key:
        raise typer.BadParameter("--version and --routing-key exclude each other: use one of them")
    chosen = version or ""
    with data_client(url) as client:
        source = read_input(input_path, lambda: client.metadata(name, chosen)["inputs"])
        if source.body is not None:
            _whole(client, name, chosen, source.body, key or "", as_json=as_json)
            return
        if not source.rows:
            # Nothing is asked of the model, so that it exists must be asked here.
            client.metadata(name, chosen)
        predictions, answered = _predictions(client, name, chosen, source, key or "")
    if as_json:
        print_json({"predictions": predictions, "model_versions": sorted(answered)})
        return
    if not predictions:
        note(f"{shown_name(input_path)} has no rows: there is nothing to predict")
        return
    print_table(*as_table(predictions))
    _print_count(len(predictions), name, answered)


def _predictions(
    client: DataClient, name: str, version: str, source: InputFile, key: str
) -> tuple[list[Any], set[str]]:
    """Return the answers in the order of the rows, and the versions that gave them."""
    predictions: list[Any] = []
    answered: set[str] = set()
    with bar("predicting") as shown_bar:
        for start in range(0, len(source.rows), ROWS_A_REQUEST):
            rows = source.rows[start : start + ROWS_A_REQUEST]
            response = client.predict(name, version, {"instances": rows}, key)
            predictions += response.json()["predictions"]
            answered.add(response.headers.get("x-ramrack-version", "?"))
            shown_bar.update(len(predictions), len(source.rows))
    return predictions, answered


def _whole(
    client: DataClient, name: str, version: str, body: dict[str, Any], key: str, *, as_json: bool
) -> None:
    """Send a body as it stands in the file, and print the answer in its own form."""
    is_v2 = isinstance(body.get("inputs"), list) and all(
        isinstance(item, dict) and "datatype" in item for item in body["inputs"]
    )
    response = (client.infer if is_v2 else client.predict)(name, version, body, key)
    answer = response.json()
    predictions = answer.get("predictions")
    if as_json:
        print_json(answer)
        return
    if isinstance(predictions, list):
        print_table(*as_table(predictions))
    else:
        print_json(answer)
    _print_count(rows_of(answer), name, {response.headers.get("x-ramrack-version", "?")})


def _print_count(rows: int | None, name: str, versions: set[str]) -> None:
    count = "answered" if rows is None else count_text(rows, "row")
    note(f"{count} by {name}, version {', '.join(sorted(versions))}")


def rows_of(answer: Mapping[str, Any]) -> int | None:
    """Return how many rows an answer of any form has; None where its form does not say."""
    predictions = answer.get("predictions")
    if isinstance(predictions, list):
        return len(predictions)
    outputs = answer.get("outputs")
    # V1 by column: one list, or an object of them. V2: a list of tensors with shapes.
    if isinstance(outputs, dict):
        outputs = next(iter(outputs.values()), None)
    if not isinstance(outputs, list):
        return None
    first = outputs[0] if outputs else None
    if isinstance(first, dict) and "datatype" in first:
        shape = first.get("shape")
        return shape[0] if isinstance(shape, list) and shape else None
    return len(outputs)


def as_table(predictions: Sequence[Any]) -> tuple[list[str], list[list[object]]]:
    """Return column names and rows: one column an output, or one for each value of a list."""
    first = predictions[0] if predictions else None
    if isinstance(first, dict):
        columns = list(first)
        return ["row", *columns], [
            [index, *(_shown(row.get(column)) for column in columns)]
            for index, row in enumerate(predictions)
        ]
    if isinstance(first, list) and not any(isinstance(value, list) for value in first):
        columns = [str(index) for index in range(len(first))]
        return ["row", *columns], [
            [index, *(_shown(value) for value in row)] for index, row in enumerate(predictions)
        ]
    return ["row", "prediction"], [[index, _shown(row)] for index, row in enumerate(predictions)]


def _shown(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(str(_shown(item)) for item in value)
    return value
