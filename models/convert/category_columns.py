"""Columns of a booster as inputs of their own: numbers, and categories by the codes of training.

LightGBM and XGBoost code the categories of pandas alike: the place of each in the list of training,
and none for what training did not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from models.convert.graph import Graph
from models.convert.trees import ML_DOMAIN
from models.parity import Inputs, edge_matrix
from models.servable import Array
from models.signature import Signature, TensorSpec

if TYPE_CHECKING:
    from models.convert.sample import Sample

_SEED: Final = 20_240_131
_UNSEEN: Final = "a value that no training row had"


def column_spec(name: str, categories: Sequence[object] | None) -> TensorSpec:
    """Return the input ``(rows, 1)`` of a column; ``categories`` None for a plain number."""
    if categories is None:
        return TensorSpec(name, "FP32", (-1, 1))
    known = tuple(str(value) for value in categories)
    if not isinstance(categories[0], str):
        return TensorSpec(name, "INT64", (-1, 1), categories=known)
    # A category that training did not know goes where a missing one goes, so any text that is no
    # category can stand for missing.
    missing = next(text for text in ("", "__missing__", _UNSEEN) if text not in known)
    return TensorSpec(name, "BYTES", (-1, 1), categories=known, missing=missing)


def add_columns(graph: Graph, specs: Sequence[TensorSpec]) -> str:
    """Add the matrix ``(rows, columns)`` that the trees see, and return its name."""
    return graph.add("Concat", *(_add_column(graph, spec) for spec in specs), axis=1)


def _add_column(graph: Graph, spec: TensorSpec) -> str:
    if spec.categories is None:
        return spec.name
    is_text = spec.datatype == "BYTES"
    attributes: dict[str, Any] = {
        "keys_strings" if is_text else "keys_int64s": (
            list(spec.categories) if is_text else [int(value) for value in spec.categories]
        ),
        "values_floats": [float(code) for code in range(len(spec.categories))],
        "default_float": float("nan"),
    }
    return graph.add("LabelEncoder", spec.name, domain=ML_DOMAIN, **attributes)


def rows_to_compare(signature: Signature, edges: list[Array], sample: Sample | None) -> Inputs:
    """Return the rows of a proof: the sample, and every threshold with its neighbours.

    ``edges``: for each feature its hard values. The signature has one matrix named ``input``, or an
    input for each feature.
    """
    rng = np.random.default_rng(_SEED)
    given = sample.inputs(signature) if sample is not None else None
    if [spec.shape[1] for spec in signature.inputs] != [1] * len(edges):
        base = given["input"] if given is not None else None
        made = edge_matrix(edges, base, rng)
        return {"input": made if base is None else np.concatenate([base, made])}
    made = edge_matrix(edges, None, rng)
    rows: Inputs = {}
    for index, spec in enumerate(signature.inputs):
        values = made[:, index : index + 1]
        if spec.categories is not None:
            values = _category_rows(spec, len(made), rng)
        rows[spec.name] = values if given is None else np.concatenate([given[spec.name], values])
    return rows


def _category_rows(spec: TensorSpec, rows: int, rng: np.random.Generator) -> Array:
    known = spec.categories or ()
    if spec.datatype == "BYTES":
        texts = [*known, _UNSEEN, spec.missing or ""]
        return np.array([[texts[i]] for i in rng.integers(0, len(texts), size=rows)], dtype=object)
    numbers = np.array([*(int(value) for value in known), -1, 2**40], dtype=np.int64)
    return rng.choice(numbers, size=rows)[:, None]
