"""The signature: what is well formed, and what a refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from models.signature import MAX_TENSOR_SPECS, Signature, TensorSpec, parse_signature
from registry.errors import InvalidInput

X: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
Y: dict[str, Any] = {"name": "y", "datatype": "INT64", "shape": [-1]}


def test_every_field_comes_back():
    """Reading what was written gives the same signature."""
    signature = Signature(
        (
            TensorSpec("x", "FP32", (-1, 2), columns=("a", "b")),
            TensorSpec("city", "BYTES", (-1, 1), categories=("Graz", "Wien"), missing="?"),
            TensorSpec("zone", "BYTES", (-1, 1), integers=True),
        ),
        (TensorSpec("p", "FP64", (-1, 2), labels=("no", 7), method="predict_proba"),),
    )
    assert parse_signature(signature.to_json()) == signature


def test_what_is_not_set_is_not_written():
    """A plain tensor has its three fields only."""
    assert TensorSpec("x", "FP32", ()).to_json() == {"name": "x", "datatype": "FP32", "shape": []}


def spec(**changes: Any) -> dict[str, Any]:
    return {"inputs": [X | changes], "outputs": [Y]}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "signature: expected an object, got list"),
        ({"inputs": [], "outputs": [Y], "extra": 1}, "signature: unknown field 'extra'"),
        ({"inputs": [X]}, "signature.outputs: expected a list, got NoneType"),
        ({"inputs": "x", "outputs": [Y]}, "signature.inputs: expected a list, got str"),
        ({"inputs": [X], "outputs": []}, "signature.outputs: at least one output is needed"),
        ({"inputs": [X, X], "outputs": [Y]}, "signature.inputs: the name 'x' stands twice"),
        ({"inputs": [3], "outputs": [Y]}, "signature.inputs[0]: expected an object, got int"),
        (spec(more=1), "signature.inputs[0]: unknown field 'more'"),
        (spec(name=""), "signature.inputs[0].name: '' must be a non-empty string"),
        (spec(name=None), "signature.inputs[0].name: None must be a non-empty string"),
        (spec(datatype="FLOAT"), "signature.inputs[0].datatype: 'FLOAT' is not one of BOOL, "),
        (spec(datatype=["FP32"]), "signature.inputs[0].datatype: ['FP32'] is not one of BOOL, "),
        (spec(shape=[-2]), "signature.inputs[0].shape: [-2] must be a list of integers from -1"),
        (spec(shape=[True]), "signature.inputs[0].shape: [True] must be a list of integers"),
        (spec(shape=None), "signature.inputs[0].shape: None must be a list of integers from -1"),
        (spec(shape=[1] * 9), "signature.inputs[0].shape: 9 dimensions, at most 8 are allowed"),
        (spec(integers=1), "signature.inputs[0].integers: 1 must be true or false"),
        (spec(integers=True), "signature.inputs[0].integers: true is for BYTES only, this is FP32"),
        (spec(columns=[1]), "signature.inputs[0].columns: must be a list of strings"),
        (spec(columns=["a"]), "signature.inputs[0].columns: 1 names do not fit shape [-1, 2]"),
        (spec(columns=["a", "b"], shape=[2]), "signature.inputs[0].columns: 2 names do not fit"),
        (spec(columns=["a", "a"]), "signature.inputs[0].columns: the name 'a' stands twice"),
        (spec(categories="ab"), "signature.inputs[0].categories: must be a list of strings"),
        (spec(labels=[True]), "signature.inputs[0].labels: must be a list of strings or integers"),
        (spec(labels=[0.5]), "signature.inputs[0].labels: must be a list of strings or integers"),
        (spec(missing=0), "signature.inputs[0].missing: 0 must be a string"),
        (spec(method=[]), "signature.inputs[0].method: [] must be a string"),
    ],
)
def test_a_refusal_names_the_field_and_the_value(document: object, said: str):
    """Whatever is not a signature is InvalidInput, and the message says where."""
    with pytest.raises(InvalidInput) as caught:
        parse_signature(document)
    assert str(caught.value).startswith(said)


def test_a_list_without_end_is_refused_by_its_length():
    """The bound is named before any entry is read."""
    document = {"inputs": [None] * (MAX_TENSOR_SPECS + 1), "outputs": [Y]}
    with pytest.raises(InvalidInput, match=r"signature\.inputs: 10001 entries, at most 10000"):
        parse_signature(document)
