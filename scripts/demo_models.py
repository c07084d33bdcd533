"""The models of the demo: made by the zoo, with a request for each and the native answer to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

BULK_ROWS = 64
# One read in each page of 4 KiB brings the whole table into memory: 16 rows of 256 bytes a page.
ROWS_A_MIB, ROWS_A_PAGE = 4096, 16
# Few, so that what the runtime sets aside for a run stays small beside the table.
TOUCHES_A_REQUEST = 2048


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One model. ``body``: a V1 request; ``expected``: the native library's answer, by output."""

    name: str
    path: str
    sample: str | None
    next_path: str | None
    body: dict[str, Any]
    expected: dict[str, Any]

    def push_options(self) -> list[str]:
        """Return the options of a push that compares with the native library, if there is one."""
        return ["--sample", self.sample] if self.sample else []

    def with_rows(self, rows: int) -> bytes:
        """Return the request with as many rows, the given ones over and over."""
        if "instances" in self.body:
            return json.dumps({"instances": _repeated(self.body["instances"], rows)}).encode()
        inputs = {name: _repeated(values, rows) for name, values in self.body["inputs"].items()}
        return json.dumps({"inputs": inputs}).encode()

    def difference(self, answer: Mapping[str, Any]) -> float:
        """Return the largest |served - native| / max(1, |native|); a wrong label is infinity."""
        largest = 0.0
        for output, native in self.expected.items():
            served = _output(answer, output)
            for one, other in zip(_flat(served), _flat(native), strict=True):
                if isinstance(other, str):
                    largest = largest if one == other else float("inf")
                else:
                    largest = max(largest, abs(float(one) - other) / max(1.0, abs(other)))
        return largest


def train(folder: Path, recommender_mib: int) -> list[Exhibit]:
    """Train all models into ``folder``; the recommender is the last."""
    subprocess.run(
        [sys.executable, "-m", "models.zoo", folder, "--recommender-mib", str(recommender_mib)],
        cwd=Path(__file__).parent.parent, check=True, timeout=1800,
        # Ctrl-C reaches the whole foreground group; here it ends the demo, which ends this.
        start_new_session=True,
    )  # fmt: skip
    index = json.loads((folder / "index.json").read_text())
    return [
        Exhibit(name, entry["path"], entry["sample"], entry["next_path"],
                entry["example_request"]["body"], entry["expected"])
        for name, entry in index.items()
    ]  # fmt: skip


def whole_table(recommender_mib: int) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Yield binary V2 requests that together read every page of the recommender's table."""
    items = np.arange(0, recommender_mib * ROWS_A_MIB, ROWS_A_PAGE, dtype="<i8")
    for start in range(0, len(items), TOUCHES_A_REQUEST):
        piece = items[start : start + TOUCHES_A_REQUEST]
        users = np.zeros_like(piece)
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [len(piece)],
             "parameters": {"binary_data_size": piece.nbytes}}
            for name in ("user", "item")
        ]  # fmt: skip
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        yield (
            head + users.tobytes() + piece.tobytes(),
            {"inference-header-content-length": str(len(head))},
        )


def _repeated(values: Sequence[Any], count: int) -> list[Any]:
    return [values[index % len(values)] for index in range(count)]


def _output(answer: Mapping[str, Any], name: str) -> Any:
    """Return one output of a V1 answer, which names outputs only where there are several."""
    if "outputs" in answer:
        outputs = answer["outputs"]
        return outputs[name] if isinstance(outputs, dict) else outputs
    rows = answer["predictions"]
    return [row[name] if isinstance(row, dict) else row for row in rows]


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        return chain.from_iterable(_flat(value) for value in values)
    return iter((values,))
