"""The short way through the V2 codec against the long one: the same arrays, bytes and refusals."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.servable import numpy_dtype
from models.signature import DATATYPES, Signature, TensorSpec
from registry.errors import InvalidInput
from serving.codec import v2
from serving.codec.packed_rows import arrays_of, joined
from serving.codec.v2_plan import V2Plan

pytestmark = pytest.mark.slow
EXAMPLES = settings(max_examples=300, deadline=None)
SCALARS: Any = st.one_of(
    st.integers(-3, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([None, True, False, "1", "", 2**63, 2**64 - 1, -(2**63), 1e39, 1e3, 65504.5]),
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[Signature, dict[str, Any], bool]:
    """A signature and a request that nearly fits it: of the usual form, but for what was drawn."""
    datatypes = draw(st.lists(st.sampled_from(DATATYPES), min_size=1, max_size=2))
    columns = [draw(st.lists(st.integers(1, 3), max_size=2)) for _ in datatypes]
    specs = tuple(
        TensorSpec(name, datatype, (-1, *rest))
        for name, datatype, rest in zip(("x", "data"), datatypes, columns, strict=False)
    )
    rows = draw(st.sampled_from([1, 1, 2, 0, 3]))
    items: list[Any] = []
    for spec in specs:
        count = rows * int(np.prod(spec.shape[1:]))
        usual: Any = st.text(max_size=3) if spec.datatype == "BYTES" else st.integers(0, 1)
        if spec.datatype in ("FP32", "FP64"):
            usual = st.one_of(usual, st.floats(-1e30, 1e30))
        elements = draw(st.sampled_from([usual, usual, usual, SCALARS]))
        data = draw(st.lists(elements, min_size=count, max_size=count))
        items.append(
            {"name": spec.name, "datatype": spec.datatype, "shape": [rows, *spec.shape[1:]],
             "data": data}
        )  # fmt: skip
    document: dict[str, Any] = {"inputs": items}
    for key, value in draw(
        st.lists(
            st.sampled_from(
                [
                    ("id", "a"),
                    ("id", 5),
                    ("outputs", []),
                    ("outputs", [{"name": "y"}]),
                    ("outputs", 3),
                    ("parameters", {"timeout": 5}),
                    ("parameters", {}),
                    ("more", "data"),
                    ("more", ["data"]),
                ]
            ),
            max_size=2,
        )
    ):
        document[key] = value
    item = items[draw(st.integers(0, len(items) - 1))]
    for key, value in draw(
        st.lists(
            st.sampled_from(
                [
                    ("name", "z"),
                    ("name", ["x"]),
                    ("name", "x"),
                    ("datatype", "FP32"),
                    ("datatype", None),
                    ("shape", [1]),
                    ("shape", [1.0, 2]),
                    ("shape", [True, 2]),
                    ("shape", [-1, 2]),
                    ("shape", "1"),
                    ("data", [[1, 2]]),
                    ("data", [1, [2]]),
                    ("data", {}),
                    ("parameters", {}),
                    ("parameters", {"binary_data_size": 4}),
                ]
            ),
            max_size=1,
        )
    ):
        item[key] = value
    return Signature(specs, (TensorSpec("y", "FP32", (-1,)),)), document, draw(st.booleans())


def outcome(decode: Any) -> Any:
    """Return what a way of decoding gives, in a form that can be compared."""
    try:
        call = decode()
    except InvalidInput as error:
        return str(error)
    arrays = {
        name: (a.dtype.str, a.shape, a.tolist() if a.dtype.hasobject else a.tobytes())
        for name, a in call.inputs.items()
    }
    return call.id, arrays, call.rows, call.outputs, call.timeout_us, call.priority


@EXAMPLES
@given(documents())
def test_both_ways_read_the_same(case: tuple[Signature, dict[str, Any], bool]) -> None:
    """Whatever the form of a request, the plan changes neither its arrays nor its refusal."""
    signature, document, has_spaces = case
    body = json.dumps(document, separators=None if has_spaces else (",", ":")).encode()
    plan = V2Plan(signature, "m", 3)
    wanted = outcome(lambda: v2.decode_infer(body, None, signature))
    for _ in range(2):
        # The second time its text is known, if it is of the usual form.
        assert outcome(lambda: plan.decode(body, None)) == wanted


NUMBERS: Any = st.one_of(
    st.integers(-(2**64), 2**65),
    st.integers(-3, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
TEXTS: Any = st.one_of(
    st.lists(NUMBERS, min_size=2, max_size=2).map(json.dumps),
    st.lists(st.one_of(NUMBERS, SCALARS), max_size=4).map(json.dumps),
    st.sampled_from(
        ["[1,2]]", "[[1,2]", "[[1],[2]]", "[1],[2]", "[1,2", "1,2]", "", " [ 1 , 2 ] ", "[1,2],",
         "[1e400,2]", "[01,2]", "[-0,-0.0]", '["]",1]', '[1,2],"data":[3,4]', '{"a":[1,2]}',
         "[1,2]}", "\ufeff[1,2]", '"ab"', '[1,2],"parameters":{"binary_data_size":8}', "[NaN,1]",
         "[1e3,2]", "[2.5,1]"]
    ),
    st.text("[]{},:\"0123456789.eE+-truefalsn ", max_size=9),
)  # fmt: skip


@EXAMPLES
@given(
    st.sampled_from(DATATYPES),
    st.integers(1, 2),
    st.lists(TEXTS, min_size=2, max_size=2),
    st.sampled_from([0, 2100]),
)
def test_whatever_stands_where_the_numbers_stood(
    datatype: str, inputs: int, texts: list[str], padding: int
) -> None:
    """With the text around it known, anything between is read as if it was seen the first time.

    Long texts, here by spaces, are read in another way than short ones.
    """
    specs = tuple(TensorSpec(name, datatype, (-1, 2)) for name in ("x", "data")[:inputs])
    signature = Signature(specs, (TensorSpec("y", "FP32", (-1,)),))
    plan = V2Plan(signature, "m", 3)
    one = '"1"' if datatype == "BYTES" else "1"

    def body(lists: list[str]) -> bytes:
        items = ",".join(
            f'{{"name":"{spec.name}","datatype":"{datatype}","shape":[1,2],"data":{text}}}'
            for spec, text in zip(specs, lists, strict=False)
        )
        return f'{{"id":"a","inputs":[{items}]}}'.encode("utf-8", "surrogatepass")

    plan.decode(body([f"[{one},{one}]"] * 2), None)
    padded = [text[:1] + " " * padding + text[1:] for text in texts]
    for lists in ([padded[0], f"[{one},{one}]"], padded):
        asked = body(lists)
        wanted = outcome(partial(v2.decode_infer, asked, None, signature))
        assert outcome(partial(plan.decode, asked, None)) == wanted


@EXAMPLES
@given(
    st.lists(st.sampled_from(DATATYPES), min_size=1, max_size=2),
    st.integers(0, 3),
    st.booleans(),
    st.integers(-2, 2),
    st.binary(min_size=64, max_size=64),
)
def test_a_known_head_takes_any_bytes(
    datatypes: list[str], rows: int, wants_binary: bool, surplus: int, tail: bytes
) -> None:
    """Binary inputs after a JSON part that was seen before are read, and refused, as the first."""
    specs = tuple(
        TensorSpec(name, kind, (-1, 2)) for name, kind in zip("ab", datatypes, strict=False)
    )
    signature = Signature(specs, (TensorSpec("y", "FP32", (-1,)),))
    elements = [
        b"\x02\0\0\0ab" if kind == "BYTES" else bytes(numpy_dtype(kind).itemsize)
        for kind in datatypes
    ]
    sizes = [len(element) * 2 * rows for element in elements]
    items = [
        {"name": spec.name, "datatype": spec.datatype, "shape": [rows, 2],
         "parameters": {"binary_data_size": size}}
        for spec, size in zip(specs, sizes, strict=True)
    ]  # fmt: skip
    document = {"inputs": items, "parameters": {"binary_data_output": wants_binary}}
    head = json.dumps(document).encode()
    plan = V2Plan(signature, "m", 3)
    good = b"".join(element * 2 * rows for element in elements)
    plan.decode(head + good, len(head))
    for body in (head + good, head + tail[: max(0, sum(sizes) + surplus)]):
        wanted = outcome(partial(v2.decode_infer, body, len(head), signature))
        assert outcome(partial(plan.decode, body, len(head))) == wanted


@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize("padding", range(8))
def test_a_large_tensor_behind_a_known_head_is_not_copied(rows: int, padding: int) -> None:
    """Where it lies aligned it shares the body's memory; the numbers are right in any place."""
    spec = TensorSpec("x", "FP64", (-1, 4))
    plan = V2Plan(Signature((spec,), (spec,)), "m", 1)
    numbers = np.arange(rows * 4, dtype=np.float64).reshape(rows, 4)
    item = {"name": "x", "datatype": "FP64", "shape": [rows, 4],
            "parameters": {"binary_data_size": numbers.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [item]}).encode() + b" " * padding
    body = head + numbers.tobytes()
    plan.decode(body, len(head))
    read = plan.read_binary(body, len(head))
    assert read is not None
    found = arrays_of(read[1])["x"]
    assert np.array_equal(found, numbers)
    assert found.flags.aligned
    is_large_and_aligned = rows > 1 and not len(head) % 8
    assert np.shares_memory(found, np.frombuffer(body, np.uint8)) is is_large_and_aligned
    both = joined([read[1], read[1]])
    assert both is not None
    assert np.array_equal(both["x"], np.concatenate([numbers, numbers]))


def test_columns_that_follow_as_bytes_are_no_table() -> None:
    """What is put together from columns is read the long way each time."""
    table = TensorSpec("x", "FP32", (-1, 2), columns=("a", "b"))
    plan = V2Plan(Signature((table,), (table,)), "m", 1)
    items = [
        {"name": name, "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
        for name in ("a", "b")
    ]
    head = json.dumps({"inputs": items}).encode()
    body = head + np.array([1, 2, 3, 4], dtype=np.float32).tobytes()
    for _ in range(2):
        assert plan.decode(body, len(head)).inputs["x"].tolist() == [[1, 3], [2, 4]]


def test_a_known_text_is_not_read_again() -> None:
    """Requests like the first are read by their numbers, of whatever form the first one was."""
    spec = TensorSpec("x", "FP32", (-1, 2))
    plan = V2Plan(Signature((spec,), (spec,)), "m", 1)
    items = '"inputs":[{"name":"x","shape":[%d,2],"datatype":"FP32","data": %s}]'
    for rows, first, second in ((1, "[1,2]", "[3, 4]"), (2, "[1,2,3,4]", "[5,6,7,8]")):
        known = "{" + items % (rows, first) + ',"id":"a"}'
        asked = "{" + items % (rows, second) + ',"id":"a"}'
        assert plan.read(known.encode()) is None
        for _ in range(3):
            plan.decode(known.encode(), None)
        read = plan.read(asked.encode())
        assert read is not None
        assert (read[0].id, read[0].rows, read[1][1]) == ("a", rows, rows)
        assert plan.read(asked.replace('"a"', '"b"').encode()) is None


@EXAMPLES
@given(
    st.lists(
        st.tuples(st.sampled_from(["FP32", "INT64", "BOOL", "FP64", "FP16"]),
                  hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)),
        min_size=1, max_size=3,
    ),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.data(),
)  # fmt: skip
def test_answers_of_a_run_are_written_as_each_alone(
    kinds: list[tuple[str, tuple[int, ...]]], sizes: list[int], data: st.DataObject
) -> None:
    """What is written once for all who share a run gives each the bytes of its own answer."""
    rows = sum(sizes)
    arrays = [
        data.draw(hnp.arrays(numpy_dtype(datatype), (rows, *rest))) for datatype, rest in kinds
    ]
    outputs = tuple(TensorSpec(f"y{index}", "FP32", (-1,)) for index, _ in enumerate(arrays))
    signature = Signature((TensorSpec("x", "FP32", (-1,)),), outputs)
    plan = V2Plan(signature, "m", 3)
    texts = plan.texts(arrays, rows)
    if texts is None:
        assert any(array.size == 0 for array in arrays)
        return
    call = v2.InferCall("caller", {}, 1, plan.all_outputs)
    start = 0
    for size in sizes:
        own = [array[start : start + size] for array in arrays]
        body = plan.with_id(texts.body(start, start + size), "caller")
        assert (body, None) == v2.encode_infer(call, "m", 3, own, signature)
        assert texts.row_bytes * size == sum(array.nbytes for array in own)
        start += size


@st.composite
def answers(draw: st.DrawFn) -> list[Any]:
    """Outputs of one run, some of them strided as a slice of a batch may be."""
    arrays = []
    for datatype in draw(st.lists(st.sampled_from(DATATYPES), min_size=1, max_size=3)):
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        if datatype == "BYTES":
            array: Any = draw(hnp.arrays(object, shape, elements=st.text(max_size=3)))
        else:
            array = draw(hnp.arrays(numpy_dtype(datatype), shape))
        arrays.append(array[::2] if array.ndim and draw(st.booleans()) else array)
    return arrays


@EXAMPLES
@given(answers(), st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]))))
def test_both_ways_write_the_same(arrays: list[Any], call_id: str | None) -> None:
    """The first answer of its shapes goes the long way, the next the short one: equal bytes."""
    outputs = tuple(TensorSpec(f"y{index}", "FP32", (-1,)) for index, _ in enumerate(arrays))
    signature = Signature((TensorSpec("x", "FP32", (-1,)),), outputs)
    plan = V2Plan(signature, 'm"', 3)
    call = v2.InferCall(call_id, {}, 1, plan.all_outputs)
    wanted = v2.encode_infer(call, 'm"', 3, arrays, signature)
    for _ in range(2):
        assert plan.encode(call, arrays) == wanted


@pytest.mark.parametrize("word", ["true", "false", "null"])
@pytest.mark.parametrize("place", [0, 150, 299])
def test_a_word_among_many_numbers_is_seen(word: str, place: int) -> None:
    """In a large list too: null is NaN, a boolean is refused with its place."""
    numbers = ["1.5"] * 300
    numbers[place] = word
    body = (
        '{"inputs":[{"name":"x","datatype":"FP32","shape":[10,30],"data":['
        + ", ".join(numbers) + "]}]}"
    ).encode()  # fmt: skip
    spec = TensorSpec("x", "FP32", (-1, 30))
    plan = V2Plan(Signature((spec,), (spec,)), "m", 1)
    if word == "null":
        flat = plan.decode(body, None).inputs["x"].ravel()
        assert np.flatnonzero(np.isnan(flat)).tolist() == [place]
    else:
        with pytest.raises(InvalidInput, match=f"element {place}: {word} is not allowed"):
            plan.decode(body, None)


def test_a_list_that_only_looks_like_the_data_fools_nobody() -> None:
    """A name or another list called data does not stand for the one that is read."""
    spec = TensorSpec("data", "FP32", (-1, 2))
    plan = V2Plan(Signature((spec,), (spec,)), "m", 1)
    body = (
        b'{"more":{"data":[1,2,3,4]},"inputs":[{"name":"data","shape":[2,2],'
        b'"datatype":"FP32","d\\u0061ta":[1,true,3,4]}]}'
    )
    with pytest.raises(InvalidInput, match="element 1: true is not allowed"):
        plan.decode(body, None)
