"""What runs count of their inputs: missing values, and categories that training never saw."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson
import pytest

from models.servable import Array
from models.signature import Signature, TensorSpec
from serving.codec.packed_rows import Inputs
from serving.codec.v2_plan import V2Plan
from serving.data.batch_calls import submit
from serving.data.batch_run import compute
from serving.data.batcher import Batcher, BatchLimits
from serving.data.input_look import InputLook
from tests.fakes import FakeCounters, FakeServable

NAN = float("nan")
INF = float("inf")


def look(*specs: TensorSpec) -> InputLook:
    return InputLook(Signature(specs, ()))


def texts(*values: str) -> Array:
    return np.array([[value] for value in values], dtype=object)


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64)]
)
@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ([[1.0, 2.0]], 0),
        ([[NAN]], 1),
        ([[2.0]], 0),
        ([[NAN, 1.0], [NAN, NAN]], 3),
        ([[INF, -INF], [60000.0, -60000.0]], 0),
        ([[INF, NAN], [-INF, 0.0]], 1),
    ],
)
def test_nan_is_a_missing_number(
    datatype: str, dtype: type, values: list[list[float]], missing: int
) -> None:
    """Each NaN counts once; infinity and what overflows when squared do not."""
    array = np.array(values, dtype)
    table = look(TensorSpec("x", datatype, (-1, array.shape[1])))
    assert table.count({"x": array}) == (missing, 0)
    assert table.count({"x": np.asfortranarray(array)}) == (missing, 0)
    assert table.count({"x": np.full((4, 4), 3e38, np.float32)}) == (0, 0)


def test_no_rows_lack_nothing() -> None:
    """An empty table has no missing value, and an input that was left out none either."""
    table = look(TensorSpec("x", "FP32", (-1, 3)), TensorSpec("y", "FP32", (-1, 3)))
    assert table.count({"x": np.zeros((0, 3), np.float32)}) == (0, 0)


def test_text_is_missing_by_its_word_and_unseen_without_a_category() -> None:
    """The word for a missing value is never an unseen category, whatever else is."""
    city = TensorSpec("city", "BYTES", (-1, 1), categories=("Graz", "Linz"), missing="")
    free = TensorSpec("note", "BYTES", (-1, 1), missing="?")
    open_ = TensorSpec("name", "BYTES", (-1, 1))
    table = look(city, free, open_)
    inputs = {
        "city": texts("Graz", "", "Wien", "Linz", "graz"),
        "note": texts("a", "?", "b", "?", ""),
        "name": texts("", "", "", "", ""),
    }
    assert table.count(inputs) == (3, 2)


def test_numbers_with_categories_are_held_to_them() -> None:
    """Codes are compared as numbers; a list of words, or of a whole matrix, says nothing."""
    codes = TensorSpec("code", "INT64", (-1, 1), categories=("1", "2", "10"))
    odd = TensorSpec("odd", "INT64", (-1, 1), categories=("a", "b"))
    matrix = TensorSpec("m", "INT64", (-1, 2), categories=("1",))
    table = look(codes, odd, matrix)
    inputs = {
        "code": np.array([[1], [10], [3], [-1]]),
        "odd": np.array([[7]]),
        "m": np.array([[7, 8]]),
    }
    assert table.count(inputs) == (0, 2)


async def test_a_run_counts_what_its_inputs_lack() -> None:
    """The rows of all requests of a run are looked at, once."""
    counters = FakeCounters()
    with ThreadPoolExecutor(1) as executor:
        batcher = Batcher(
            FakeServable(), name="m/1", is_batchable=True,
            limits=BatchLimits(queue_rows=64, max_batch_rows=8, max_run_s=10),
            counters=counters, executor=executor,
        )  # fmt: skip
        rows = [np.array([[value]], np.float32) for value in (NAN, 1.0, NAN)]
        calls = [submit(batcher, {"x": row}, 1, None, 2**62) for row in rows]
        await asyncio.gather(*calls)
        await batcher.close(10)
    assert sum(counters.batches) == 3
    assert (counters.missing_values, counters.unseen_categories) == (2, 0)


@pytest.mark.parametrize("is_binary", [False, True])
def test_missing_numbers_are_counted_however_a_request_was_read(is_binary: bool) -> None:
    """Where the text around the numbers is known, alone or with others, none is passed over."""
    servable = FakeServable()
    signature = servable.signature
    spec = signature.inputs[0]
    plan, found = V2Plan(signature, "m", 1), []
    for values in ([1.0] * 4, [2.0] * 4, [None, 1.0, None, 1.0], [3.0] * 4):
        item = {"name": spec.name, "datatype": spec.datatype, "shape": [1, 4]}
        numbers = np.array([NAN if value is None else value for value in values], np.float32)
        if is_binary:
            item["parameters"] = {"binary_data_size": numbers.nbytes}
            head = orjson.dumps({"inputs": [item]})
            found.append(read(plan, head + numbers.tobytes(), len(head)))
        else:
            found.append(read(plan, orjson.dumps({"inputs": [{**item, "data": values}]}), None))
    looked = InputLook(signature)
    alone = [compute(servable, [one], 1, is_rowwise=True, look=looked)[1] for one in found]
    assert [timing[4] for timing in alone] == [0, 0, 2, 0]
    (_, timing) = compute(servable, found, 4, is_rowwise=True, look=looked)
    assert timing[4:] == (2, 0)


def read(plan: V2Plan, body: bytes, json_bytes: int | None) -> Inputs:
    known = plan.read(body) if json_bytes is None else plan.read_binary(body, json_bytes)
    return known[1] if known is not None else plan.decode(body, json_bytes).inputs
