"""Made-up inputs: the same each time, and the same whatever the number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from models.signature import Signature, TensorSpec
from models.synthetic import MAX_ROWS, make_inputs, styles

TYPES = ("BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES")


@pytest.mark.parametrize("datatype", TYPES)
def test_fewer_rows_are_the_first_of_more(datatype: str) -> None:
    """A batch is compared with its single rows, so they must be the same rows."""
    signature = Signature(
        tuple(TensorSpec(name, datatype, (-1, 3, 5)) for name in "ab"),
        (TensorSpec("y", "FP32", (-1,)),),
    )
    for style in styles(signature):
        most = make_inputs(signature, style, MAX_ROWS)
        for rows in (1, 2, 7, 8):
            for name, array in make_inputs(signature, style, rows).items():
                assert array.flags.c_contiguous
                assert np.array_equal(array, most[name][:rows])
