"""``ramrack predict``: rows from a file to the server, its answers as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from serving.cli.options import DATA_URL_DEFAULT, AsJson, DataUrl, Name, data_client
from serving.cli.output import bar, note, print_json, print_table
from serving.cli.rows import InputFile, read_input

if TYPE_CHECKING:
    from serving.client.api import DataClient

ROWS_A_REQUEST: Final = 500


def predict(
    name: Name,
    *,
    input_path: Annotated[
        Path,
        typer.Option(
            "--input", "-i", metavar="FILE", exists=True, dir_okay=False,
            help="JSON (a V1 or V2 body, or a list of rows), CSV or Parquet.",
        ),
    ],
    version: Annotated[
        str,
        typer.Option(
            "--version", metavar="VERSION", help="Number or alias; without it the route decides."
        ),
    ] = "",
    as_json: AsJson = False,
    url: DataUrl = DATA_URL_DEFAULT,
) -> None:  # fmt: skip
    """Predict the rows of a file and print the answers."""
    with data_client(url) as client:
        source = read_input(input_path, lambda: client.metadata(name, version)["inputs"])
        if source.body is not None:
            _whole(client, name, version, source.body, as_json=as_json)
            return
        predictions: list[Any] = []
        answered: set[str] = set()
        with bar("predicting") as shown:
            for rows in _pieces(source):
                response = client.predict(name, version, {"instances": rows})
                predictions += response.json()["predictions"]
                answered.add(response.headers.get("x-ramrack-version", "?"))
                shown.update(len(predictions), len(source.rows))
    if as_json:
        print_json({"predictions": predictions, "model_versions": sorted(answered)})
        return
    columns, table = as_table(predictions)
    print_table(columns, table)
    note(f"{len(predictions)} rows by {name}, version {', '.join(sorted(answered)) or '-'}")


def _pieces(source: InputFile) -> Iterator[list[Any]]:
    for start in range(0, len(source.rows), ROWS_A_REQUEST):
        yield source.rows[start : start + ROWS_A_REQUEST]


def _whole(
    client: DataClient, name: str, version: str, body: dict[str, Any], *, as_json: bool
) -> None:
    """Send a body as it stands in the file, and print the answer in its own form."""
    is_v2 = isinstance(body.get("inputs"), list) and all(
        isinstance(item, dict) and "datatype" in item for item in body["inputs"]
    )
    response = (client.infer if is_v2 else client.predict)(name, version, body)
    answer = response.json()
    predictions = answer.get("predictions")
    if as_json or not isinstance(predictions, list):
        print_json(answer)
        return
    print_table(*as_table(predictions))


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
