"""The V2 codec of one version: what its requests and answers look like is worked out once.

A request of the usual form (each input once, flat data, JSON) is read in one pass against the plan;
anything else, and whatever is wrong, goes the long way of ``v2.decode_document``, which says what.
Both ways give the same arrays, and ``encode`` gives the bytes of ``v2.encode_infer``.

Microseconds for FP32 on one core of an EPYC, the best of 7 (rows x columns):

| step | 1x30 | 64x30 |
| --- | --- | --- |
| orjson.loads of the body | 1.0 | 39 |
| types of the elements: set(map(type, data)) | 0.7 | 34 |
| types, by looking for the letters of true, false and null in the bytes | 0.5 | 5 |
| list to array: struct.pack, which raises where a number becomes infinite | 0.7 | 12 |
| list to array: np.array | 0.8 | 30 |
| list to array: np.fromiter | 0.6 | 23 |
| list to array: array.array | 1.0 | 27 |
| np.fromstring on the bytes: no loads, but takes what is no JSON | 6.4 | 546 |
| array to JSON: orjson.dumps | 0.7 | 30 |

FP64 and INT64 are within a tenth of these, but np.fromstring reads INT64 in 1.3 and 26.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.ident import shown
from serving.codec import tensors, v2
from serving.codec.limits import DEFAULT_LIMITS, Limits
from serving.codec.output import v2_datatype
from serving.codec.packed_rows import PackedInput, PackedRows, arrays_of
from serving.codec.parse import parse_object
from serving.codec.row_texts import AnswerHeads, RowTexts, form_of
from serving.codec.v2 import InferCall, OutputWish
from serving.codec.v2_templates import BinaryHeads, V2Templates

# What stands before the numbers of an output of one datatype and shape.
_Head: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], bytes]
_MAX_MEMOS: Final = 64
_NUMBERS: Final = frozenset({int, float})
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY


class _InputPlan:
    """What is expected of one input, and how its numbers become an array."""

    __slots__ = ("datatype", "dims", "dtype", "locate", "max_elements", "missing", "name",
                 "pack_row", "per_row", "rest")  # fmt: skip

    def __init__(self, spec: TensorSpec, limits: Limits, inputs: int) -> None:
        self.name = spec.name
        self.datatype = spec.datatype
        self.missing = spec.missing
        self.dims = len(spec.shape)
        self.rest = list(spec.shape[1:])
        self.per_row = 1
        for size in self.rest:
            self.per_row *= size
        # Row by row is how tables are asked: the format of one row is parsed once.
        code = tensors.PACK_CODES.get(spec.datatype)
        self.pack_row = struct.Struct(f"<{self.per_row}{code}").pack if code else None
        self.dtype = numpy_dtype(spec.datatype).newbyteorder("<")
        item_bytes = self.dtype.itemsize
        self.max_elements = limits.max_tensor_bytes // (item_bytes * inputs)
        self.locate: Callable[[int], str] = lambda i: f"input {shown(spec.name)}: element {i}"

    def array(self, data: list[Any], shape: list[int], body: bytes) -> Array:
        """Return the elements in ``data``, exact, or raise InvalidInput naming the wrong one."""
        if self.pack_row is not None and data:
            is_row = shape[0] == 1
            # struct takes a boolean for a number, and only that.
            if set(map(type, data)) <= _NUMBERS if is_row else _has_no_word(body, len(data)):
                try:
                    pack = self.pack_row if is_row else self._pack(len(data))
                    return np.ndarray(shape, self.dtype, pack(*data))
                except (OverflowError, struct.error):
                    pass  # named below
        return tensors.from_flat(data, self.datatype, self.locate, self.missing).reshape(shape)

    def _pack(self, count: int) -> Callable[..., bytes]:
        return partial(struct.pack, f"<{count}{tensors.PACK_CODES[self.datatype]}")


def _has_no_word(body: bytes, count: int) -> bool:
    """Whether the one list of data in a body certainly holds neither true, false nor null."""
    start = body.find(b'"data"')
    end = body.find(b"]", start)
    return (
        0 <= start < end
        and body.find(b'"data"', end) < 0
        and body.find(b"u", start, end) < 0
        and body.find(b"l", start, end) < 0
        # As many elements as were parsed: it is that list, and not another one.
        and body.count(b",", start, end) == count - 1
    )


class V2Plan:
    """Decodes requests to one version, and encodes its answers."""

    def __init__(
        self,
        signature: Signature,
        model: str,
        version: int,
        *,
        is_batchable: bool = True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._signature = signature
        self._limits = limits
        self._is_batchable = is_batchable
        self._model = model
        self._version = version
        # The wishes of a request that names none; its identity says that all are wanted, as JSON.
        self.all_outputs = tuple(OutputWish(spec.name) for spec in signature.outputs)
        self._inputs: dict[str, _InputPlan] = {}
        if all(_is_plain(spec) for spec in signature.inputs):
            count = len(signature.inputs)
            self._inputs = {s.name: _InputPlan(s, limits, count) for s in signature.inputs}
        self._templates: V2Templates[InferCall] = V2Templates(self._forms(is_whole=True))
        start = {"model_name": model, "model_version": str(version)}
        self._start = orjson.dumps(start)[:-1]
        self._memos: dict[tuple[int, ...], list[_Head]] = {}
        self._heads: AnswerHeads | None = None
        # Reads a request whose text is known but for its numbers: the call without its inputs,
        # which many share, and the inputs.
        self.read = self._templates.read
        self._binary_heads: BinaryHeads[InferCall] = BinaryHeads(self._forms(is_whole=False))

    def _forms(self, *, is_whole: bool) -> dict[str, tuple[str, PackedInput]]:
        return {
            name: (plan.datatype, PackedInput(name, plan.dtype, tuple(plan.rest), is_whole))
            for name, plan in self._inputs.items()
        }

    def decode(self, body: bytes, json_length: int | None) -> InferCall:
        """Return the call in a request's body, as ``v2.decode_infer`` does."""
        if json_length is None:
            if (read := self.read(body)) is not None:
                return replace(read[0], inputs=arrays_of(read[1]))
            document = parse_object(body)
            if self._inputs and (call := self._usual(document, body)) is not None:
                self._templates.learn(body, document, call.rows, replace(call, inputs={}))
                return call
            return v2.decode_document(
                document,
                memoryview(b""),
                self._signature,
                self._limits,
                is_batchable=self._is_batchable,
            )
        if (read := self.read_binary(body, json_length)) is not None:
            return replace(read[0], inputs=arrays_of(read[1]))
        call = v2.decode_infer(
            body, json_length, self._signature, self._limits, is_batchable=self._is_batchable
        )
        if json_length:
            head, empty = body[:json_length], replace(call, inputs={})
            self._binary_heads.learn(head, call.inputs, call.rows, empty)
        return call

    def read_binary(self, body: bytes, json_length: int) -> tuple[InferCall, PackedRows] | None:
        """Read as ``read`` does a request whose JSON part is known and its inputs are bytes."""
        return self._binary_heads.read(body, json_length)

    def _usual(self, document: dict[str, Any], body: bytes) -> InferCall | None:
        """Read a document of the usual form; None where it has another."""
        items = document.get("inputs")
        if type(items) is not list or len(items) != len(self._inputs):
            return None
        if document.get("outputs") or document.get("parameters"):
            return None
        call_id = document.get("id")
        if call_id is not None and type(call_id) is not str:
            return None
        arrays: dict[str, Array] = {}
        rows = -1
        for item in items:
            if type(item) is not dict or "parameters" in item:
                return None
            name, shape, data = item.get("name"), item.get("shape"), item.get("data")
            plan = self._inputs.get(name) if type(name) is str else None
            if plan is None or name in arrays or item.get("datatype") != plan.datatype:
                return None
            if type(shape) is not list or type(data) is not list or len(shape) != plan.dims:
                return None
            for size in shape:
                if type(size) is not int:
                    return None
            count = shape[0] * plan.per_row
            if shape[1:] != plan.rest or not 0 <= count <= plan.max_elements or len(data) != count:
                return None
            if rows not in (-1, shape[0]) or (data and type(data[0]) is list):
                return None
            rows = shape[0]
            arrays[plan.name] = plan.array(data, shape, body)
        return InferCall(call_id, arrays, rows, self.all_outputs)

    def texts(self, arrays: Sequence[Array], rows: int) -> RowTexts | None:
        """Return the texts of a run's outputs, for answers to ``all_outputs``; None: has none."""
        forms = []
        for array in arrays:
            form = form_of(array, rows)
            if form is None:
                return None
            forms.append(form)
        heads = self._heads
        if heads is None or heads.forms != tuple(forms):
            names = [wish.name for wish in self.all_outputs]
            heads = self._heads = AnswerHeads(self._start, names, tuple(forms))
        return RowTexts(heads, arrays)

    def with_id(self, body: bytes, call_id: str) -> bytes:
        """Return an answer that was written without an id with the one of its request."""
        start = self._start
        return b'%b,"id":%b%b' % (start, orjson.dumps(call_id), body[len(start) :])

    def encode(self, call: InferCall, arrays: Sequence[Array]) -> tuple[bytes, int | None]:
        """Return the answer's body and the length of its JSON part (None: all of it)."""
        if call.outputs is not self.all_outputs:
            return v2.encode_infer(call, self._model, self._version, arrays, self._signature)
        if memo := self._memos.get(arrays[0].shape) if arrays else None:
            parts: list[bytes] = []
            for (dtype, shape, head), array in zip(memo, arrays, strict=True):
                if array.shape != shape or array.dtype != dtype:
                    break
                parts += (head, orjson.dumps(array.ravel(), option=_NUMPY))
            else:
                parts.append(b"}]}")
                body = b"".join(parts)
                if call.id is None:
                    return body, None
                return self.with_id(body, call.id), None
        self._remember(arrays)
        return v2.encode_infer(call, self._model, self._version, arrays, self._signature)

    def _remember(self, arrays: Sequence[Array]) -> None:
        """Prepare what the next answer of these shapes has around its numbers."""
        if not arrays or any(array.dtype.kind in "OUS" for array in arrays):
            return
        if len(self._memos) >= _MAX_MEMOS:
            self._memos.clear()
        memo = self._memos[arrays[0].shape] = []
        before = self._start + b',"outputs":['
        for wish, array in zip(self.all_outputs, arrays, strict=True):
            entry = {
                "name": wish.name,
                "datatype": v2_datatype(array),
                "shape": list(array.shape),
            }
            head = before + orjson.dumps(entry)[:-1] + b',"data":'
            memo.append((array.dtype, array.shape, head))
            before = b"},"


def _is_plain(spec: TensorSpec) -> bool:
    """Whether only the rows of an input are free, so that one shape check says all."""
    return bool(spec.shape) and spec.shape[0] == -1 and all(size > 0 for size in spec.shape[1:])
