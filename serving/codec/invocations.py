"""The scoring protocol of MLflow: DataFrames, tensors or CSV in, ``{"predictions": ...}`` out.

MLflow answers what ``predict`` returns, so of a classifier this is the label. ``params`` may name
another output: ``{"params": {"output": "probabilities"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from models.servable import Array
from models.signature import Signature
from registry.errors import InvalidInput
from registry.ident import shown
from serving.codec import csv_rows, dataframe, output, v1
from serving.codec.limits import DEFAULT_LIMITS, Limits
from serving.codec.parse import kind_of, parse_object

_LABEL: Final = "label"
_OUTPUT: Final = "output"


@dataclass(frozen=True, slots=True)
class InvocationsCall(v1.PredictCall):
    """A request in MLflow's form. ``output``: the one that is answered; None: all, by name."""

    output: str | None = None


def decode_invocations(
    body: bytes,
    signature: Signature,
    limits: Limits = DEFAULT_LIMITS,
    *,
    is_csv: bool = False,
    is_batchable: bool = True,
) -> InvocationsCall:
    """Return the call in a request's body, or raise InvalidInput naming row, column and value."""
    document: Mapping[str, Any]
    wanted = None
    if is_csv:
        field, document = "csv", {"instances": csv_rows.rows_of(body, signature)}
    else:
        document = parse_object(body)
        wanted = _wanted(document.get("params"), signature)
        field = dataframe.field_of(document)
        if field:
            document = {"instances": dataframe.rows_of(document, field)}
        elif "instances" not in document and "inputs" not in document:
            raise InvalidInput(
                'body: one of "dataframe_split", "dataframe_records", "instances" and "inputs" '
                "is needed"
            )
    with dataframe.named(field):
        call = v1.decode_document(document, signature, limits, is_batchable=is_batchable)
    return InvocationsCall(
        call.inputs, call.rows, call.is_row_format, call.instances, call.unknown_columns,
        wanted or _usual(signature),
    )  # fmt: skip


def encode_invocations(
    call: InvocationsCall, arrays: Sequence[Array], signature: Signature
) -> bytes:
    """Return the answer's body. ``arrays``: all outputs in the order of the signature."""
    by_name = dict(zip((spec.name for spec in signature.outputs), arrays, strict=True))
    if call.output is not None:
        return output.dumped({"predictions": output.json_nested(by_name[call.output])})
    if call.is_row_format:
        return v1.encode_predict(call, arrays, signature)
    values = {name: output.json_nested(array) for name, array in by_name.items()}
    return output.dumped({"predictions": values})


def _usual(signature: Signature) -> str | None:
    names = [spec.name for spec in signature.outputs]
    if len(names) == 1:
        return names[0]
    return _LABEL if _LABEL in names else None


def _wanted(params: Any, signature: Signature) -> str | None:
    if params is None:
        return None
    if type(params) is not dict:
        raise InvalidInput(f"params: expected an object, got {kind_of(params)}")
    for key in params:
        if key != _OUTPUT:
            raise InvalidInput(
                f'params: {shown(key)} would change nothing here: "output" is the only parameter'
            )
    name = params.get(_OUTPUT)
    names = [spec.name for spec in signature.outputs]
    if name is None or (type(name) is str and name in names):
        return name
    raise InvalidInput(f"params.output: {shown(name)} is not one of {', '.join(names)}")
