"""The Open Inference Protocol V2: an infer request to tensors, and tensors to its answer.

Unknown fields and parameters are ignored, as the protocol wants; what is known must be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from registry.ident import shown
from serving.codec import binary, shapes, tensors
from serving.codec.classification import best_classes
from serving.codec.limits import DEFAULT_LIMITS, Limits, checked_count
from serving.codec.output import dumped, json_elements, v2_datatype
from serving.codec.parse import kind_of, parse_object, shown_json

_SHARED_MEMORY: Final = "shared_memory_region"
_MAX_COUNT: Final = 2**63 - 1
# Whole numbers that a library takes for their digits fit into INT64.
_INTEGERS: Final = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32"})


@dataclass(frozen=True, slots=True)
class OutputWish:
    """One output that the caller wants. ``classification``: the best k classes; 0 is off."""

    name: str
    is_binary: bool = False
    classification: int = 0


@dataclass(slots=True)
class InferCall:
    """A request that is right in all that can be known without running the graph.

    ``id``: as it was sent, None if it was not. ``inputs``: by name, as the signature wants them.
    ``rows``: see ``shapes.checked_rows``. ``outputs``: in the order of the answer.
    ``timeout_us``: None if the request names none. ``priority``: 0 is the default, 1 the highest.
    """

    id: str | None
    inputs: Mapping[str, Array]
    rows: int
    outputs: tuple[OutputWish, ...]
    timeout_us: int | None = None
    priority: int = 0

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the wanted outputs, in the order of the answer."""
        return tuple(wish.name for wish in self.outputs)


def decode_infer(
    body: bytes,
    json_length: int | None,
    signature: Signature,
    limits: Limits = DEFAULT_LIMITS,
    *,
    is_batchable: bool = True,
) -> InferCall:
    """Return the call in a request's body, or raise InvalidInput naming what is wrong.

    ``json_length``: the value of the length header; None if there is no such header (the whole
    body is JSON), 0 for a raw request (the whole body is the one tensor).
    ``is_batchable``: False allows inputs whose free first dimensions differ.
    """
    if json_length is None:
        document, tail = parse_object(body), memoryview(b"")
    elif json_length == 0:
        return _raw_call(body, signature, limits)
    elif 0 < json_length <= len(body):
        view = memoryview(body)
        document, tail = parse_object(view[:json_length]), view[json_length:]
    else:
        raise InvalidInput(
            f"header {binary.LENGTH_HEADER}: {json_length} is not allowed: "
            f"use 0 to the size of the body, {len(body)} bytes"
        )
    return decode_document(document, tail, signature, limits, is_batchable=is_batchable)


def decode_document(
    document: dict[str, Any],
    tail: memoryview,
    signature: Signature,
    limits: Limits,
    *,
    is_batchable: bool,
) -> InferCall:
    """Return the call in a document that is parsed already; ``tail``: the binary part after it."""
    call_id = document.get("id")
    if call_id is not None and type(call_id) is not str:
        raise InvalidInput(f"id: expected a string, got {kind_of(call_id)}")
    parameters = _parameters(document, "parameters")
    inputs = _Inputs(signature, tail, limits).read(document)
    wants_binary = _flag(parameters, "binary_data_output", "parameters")
    return InferCall(
        id=call_id,
        inputs=inputs,
        rows=shapes.checked_rows(inputs, signature, is_batchable=is_batchable),
        outputs=_wishes(document.get("outputs"), signature, wants_binary, limits),
        timeout_us=_count(parameters, "timeout", "parameters") or None,
        priority=_count(parameters, "priority", "parameters"),
    )


def encode_infer(
    call: InferCall, model: str, version: int, arrays: Sequence[Array], signature: Signature
) -> tuple[bytes, int | None]:
    """Return the answer's body, and the value of the length header (None: the body is pure JSON).

    ``arrays``: one for each wish of the call, in its order.
    """
    specs = {spec.name: spec for spec in signature.outputs}
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for wish, result in zip(call.outputs, arrays, strict=True):
        array = result
        if wish.classification:
            array = best_classes(array, specs[wish.name], wish.classification)
        entry: dict[str, Any] = {
            "name": wish.name,
            "datatype": v2_datatype(array),
            "shape": list(array.shape),
        }
        if wish.is_binary:
            blobs.append(binary.to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            entry["data"] = json_elements(array)
        outputs.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if call.id is not None:
        document["id"] = call.id
    document["outputs"] = outputs
    head = dumped(document)
    if not blobs and not any(wish.is_binary for wish in call.outputs):
        return head, None
    return b"".join((head, *blobs)), len(head)


class _Inputs:
    """Reads the inputs of one document; owns the position in the binary part of the body."""

    def __init__(self, signature: Signature, tail: memoryview, limits: Limits) -> None:
        self._signature = signature
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._tail = tail
        self._position = 0
        self._limits = limits
        self._bytes = 0

    def read(self, document: dict[str, Any]) -> dict[str, Array]:
        items = document.get("inputs")
        if type(items) is not list:
            found = kind_of(items) if "inputs" in document else "nothing"
            raise InvalidInput(f"inputs: expected a list, got {found}")
        if len(items) > self._limits.max_tensors:
            raise InvalidInput(
                f"inputs: {len(items)} entries, at most {self._limits.max_tensors} are allowed"
            )
        table = self._table(items)
        arrays: dict[str, Array] = {}
        for index, item in enumerate(items):
            name, array = self._tensor(item, index, arrays)
            arrays[name] = array
        if self._position != len(self._tail):
            raise InvalidInput(
                f"body: {len(self._tail) - self._position} bytes are left after the binary inputs"
            )
        if table is not None:
            return {table.name: shapes.assembled(table, arrays)}
        for name in self._specs:
            if name not in arrays:
                raise InvalidInput(f"input {shown(name)} is missing: the model needs it")
        return arrays

    def _table(self, items: list[Any]) -> TensorSpec | None:
        """Take columns as inputs where a table was not sent under its own name."""
        table = shapes.table_spec(self._signature)
        if table is None or not table.columns:
            return None
        sent = [item.get("name") for item in items if type(item) is dict]
        names = {name for name in sent if type(name) is str}
        if names.isdisjoint(table.columns) or not shapes.is_by_column(table, names):
            return None
        self._specs = {column: shapes.column_spec(table, column) for column in table.columns}
        return table

    def _tensor(self, item: Any, index: int, seen: dict[str, Array]) -> tuple[str, Array]:
        if type(item) is not dict:
            raise InvalidInput(f"inputs[{index}]: expected an object, got {kind_of(item)}")
        name = item.get("name")
        if type(name) is not str:
            raise InvalidInput(f"inputs[{index}].name: expected a string, got {kind_of(name)}")
        spec = self._specs.get(name)
        if spec is None:
            raise InvalidInput(
                f"input {shown(name)} is unknown: the model takes {_listed(self._specs)}"
            )
        if name in seen:
            raise InvalidInput(f"input {shown(name)} stands twice")
        where = f"input {shown(name)}"
        datatype = item.get("datatype")
        as_digits = spec.integers and type(datatype) is str and datatype in _INTEGERS
        if as_digits:
            spec = replace(spec, datatype=str(datatype))
        elif datatype != spec.datatype:
            takes = f"{spec.datatype} and INT64" if spec.integers else spec.datatype
            raise InvalidInput(
                f"{where}: datatype {shown_json(datatype)} is not allowed: the model takes {takes}"
            )
        shape = self._shape(item.get("shape"), where)
        fitted = shapes.fitted_shape(shape, spec, where)
        count = self._reserved(fitted, spec, where)
        parameters = _parameters(item, f"{where}: parameters")
        if _SHARED_MEMORY in parameters:
            raise InvalidInput(f"{where}: shared memory is not supported: send the data")
        if "binary_data_size" in parameters:
            if "data" in item:
                raise InvalidInput(f"{where}: data and binary_data_size exclude each other")
            size = _count(parameters, "binary_data_size", where)
            flat = binary.from_bytes(self._taken(size, where), spec.datatype, count, where)
        else:
            flat = self._from_json(item, spec, shape, count, where)
        if as_digits:
            flat = tensors.digits_of(flat)
        return name, flat.reshape(fitted)

    def _from_json(
        self, item: dict[str, Any], spec: TensorSpec, shape: tuple[int, ...], count: int, where: str
    ) -> Array:
        if "data" not in item:
            raise InvalidInput(f"{where}: data is missing")
        values = tensors.flatten(item["data"], shape, f"{where}: data", self._limits.max_nesting)
        if len(values) != count:
            raise InvalidInput(
                f"{where}: {len(values)} elements in data, but shape {list(shape)} takes {count}"
            )
        return tensors.from_flat(
            values, spec.datatype, lambda i: f"{where}: element {i}", spec.missing
        )

    def _shape(self, value: Any, where: str) -> tuple[int, ...]:
        if type(value) is not list:
            raise InvalidInput(f"{where}: shape must be a list, got {kind_of(value)}")
        if len(value) > self._limits.max_dimensions:
            raise InvalidInput(
                f"{where}: {len(value)} dimensions, at most {self._limits.max_dimensions} "
                "are allowed"
            )
        for size in value:
            if type(size) is not int or size < 0:
                raise InvalidInput(
                    f"{where}: shape holds {shown_json(size)}: only integers from 0 are allowed"
                )
        return tuple(value)

    def _reserved(self, shape: tuple[int, ...], spec: TensorSpec, where: str) -> int:
        item_bytes = numpy_dtype(spec.datatype).itemsize
        count = checked_count(shape, item_bytes, where, self._limits)
        self._bytes += count * item_bytes
        if self._bytes > self._limits.max_tensor_bytes:
            raise InvalidInput(
                f"{where}: all inputs together take {self._bytes} bytes, "
                f"at most {self._limits.max_tensor_bytes} are allowed"
            )
        return count

    def _taken(self, size: int, where: str) -> memoryview:
        end = self._position + size
        if end > len(self._tail):
            raise InvalidInput(
                f"{where}: binary_data_size is {size}, but only "
                f"{len(self._tail) - self._position} bytes are left in the body"
            )
        view = self._tail[self._position : end]
        self._position = end
        return view


def _raw_call(body: bytes, signature: Signature, limits: Limits) -> InferCall:
    """Take the whole body as the one input: its one free dimension follows from the size.

    Where two are free, the first is one row.
    """
    if len(signature.inputs) != 1:
        raise InvalidInput(
            f"raw request: the model takes {len(signature.inputs)} inputs, a raw one is for one"
        )
    spec = signature.inputs[0]
    where = f"input {shown(spec.name)}"
    shape = list(spec.shape)
    if shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1
    if shape.count(-1) > 1:
        raise InvalidInput(f"{where}: a raw request allows one free dimension, not {spec.shape}")
    if spec.datatype == "BYTES":
        shape = [1 if size == -1 else size for size in shape]
        array = tensors.from_flat([""], "BYTES", lambda _: where)
        array[0] = binary.text_or_bytes(body)
        count = 1
    else:
        item_bytes = numpy_dtype(spec.datatype).itemsize
        if -1 in shape:
            known = checked_count(tuple(n for n in shape if n != -1), item_bytes, where, limits)
            shape[shape.index(-1)] = len(body) // (known * item_bytes) if known else 0
        count = checked_count(tuple(shape), item_bytes, where, limits)
        array = binary.from_bytes(memoryview(body), spec.datatype, count, where)
    if spec.datatype == "BYTES" and any(size != 1 for size in shape):
        raise InvalidInput(f"{where}: a raw request carries one BYTES element, not {spec.shape}")
    inputs = {spec.name: array.reshape(shape)}
    wishes = tuple(OutputWish(output.name, is_binary=True) for output in signature.outputs)
    return InferCall(None, inputs, shapes.checked_rows(inputs, signature), wishes)


def _wishes(
    value: Any, signature: Signature, wants_binary: bool, limits: Limits
) -> tuple[OutputWish, ...]:
    if value is None or value == []:
        return tuple(OutputWish(spec.name, wants_binary) for spec in signature.outputs)
    if type(value) is not list:
        raise InvalidInput(f"outputs: expected a list, got {kind_of(value)}")
    if len(value) > limits.max_tensors:
        raise InvalidInput(
            f"outputs: {len(value)} entries, at most {limits.max_tensors} are allowed"
        )
    specs = {spec.name: spec for spec in signature.outputs}
    wishes: dict[str, OutputWish] = {}
    for index, item in enumerate(value):
        if type(item) is not dict:
            raise InvalidInput(f"outputs[{index}]: expected an object, got {kind_of(item)}")
        name = item.get("name")
        if type(name) is not str or name not in specs:
            raise InvalidInput(
                f"outputs[{index}]: output {shown_json(name)} is unknown: "
                f"the model has {_listed(specs)}"
            )
        if name in wishes:
            raise InvalidInput(f"output {shown(name)} stands twice")
        wishes[name] = _wish(item, specs[name], wants_binary)
    return tuple(wishes.values())


def _wish(item: dict[str, Any], spec: TensorSpec, wants_binary: bool) -> OutputWish:
    where = f"output {shown(spec.name)}"
    parameters = _parameters(item, f"{where}: parameters")
    if not parameters:
        return OutputWish(spec.name, wants_binary)
    if _SHARED_MEMORY in parameters:
        raise InvalidInput(f"{where}: shared memory is not supported: take the data")
    classes = _count(parameters, "classification", where)
    if classes and spec.datatype == "BYTES":
        raise InvalidInput(f"{where}: classification needs numbers, but the output is BYTES")
    return OutputWish(
        spec.name, _flag(parameters, "binary_data", where, default=wants_binary), classes
    )


def _parameters(item: dict[str, Any], where: str) -> dict[str, Any]:
    value = item.get("parameters")
    if value is None:
        return {}
    if type(value) is not dict:
        raise InvalidInput(f"{where}: expected an object, got {kind_of(value)}")
    return value


def _flag(parameters: dict[str, Any], key: str, where: str, *, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if type(value) is not bool:
        raise InvalidInput(f"{where}: {key} must be true or false, got {shown_json(value)}")
    return value


def _count(parameters: dict[str, Any], key: str, where: str) -> int:
    value = parameters.get(key, 0)
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise InvalidInput(f"{where}: {key} must be an integer from 0, got {shown_json(value)}")
    return value


def _listed(names: dict[str, TensorSpec]) -> str:
    """Return at most ten names, for a message that stays readable."""
    quoted = [shown(name) for name in list(names)[:10]]
    return ", ".join(quoted) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
