"""SimpleImputer for skl2onnx: numbers in double too, and the indicator of what was missing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from models.convert.sklearn_writer import Writer
from models.errors import ConversionRefused


def convert_imputer(scope: Any, operator: Any, container: Any) -> None:
    """Write a SimpleImputer, called by skl2onnx."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
    from skl2onnx.operator_converters.imputer_op import convert_sklearn_imputer

    imputer = operator.raw_operator
    write = Writer(scope, container, operator)
    if not isinstance(operator.inputs[0].type, FloatTensorType | DoubleTensorType):
        if imputer.add_indicator:
            raise ConversionRefused("SimpleImputer: add_indicator=True in a column of text")
        convert_sklearn_imputer(scope, operator, container)
        return
    fill = np.asarray(imputer.statistics_, dtype=np.float64)
    if np.isnan(fill).any():
        raise ConversionRefused(
            "SimpleImputer: a column had no value in training, so it is dropped: remove it first"
        )
    matrix = write.matrix()
    wanted = imputer.missing_values
    if isinstance(wanted, float) and math.isnan(wanted):
        is_missing = write.add("IsNaN", matrix)
    elif isinstance(wanted, int | float):
        is_missing = write.add("Equal", matrix, write.number(float(wanted)))
    else:
        raise ConversionRefused(f"SimpleImputer: missing_values={wanted!r} in a column of numbers")
    result = write.add("Where", is_missing, write.number(fill[None, :]), matrix)
    if imputer.add_indicator:
        flagged = np.asarray(imputer.indicator_.features_, np.int64)
        flags = write.add("Gather", is_missing, write.constant(flagged), axis=1)
        result = write.add("Concat", result, write.cast(flags), axis=1)
    write.result(result)


def shape_of_imputer(operator: Any) -> None:
    """Tell skl2onnx how many columns come out."""
    imputer = operator.raw_operator
    columns = len(imputer.statistics_)
    if imputer.add_indicator:
        columns += len(imputer.indicator_.features_)
    output = operator.outputs[0]
    output.type = type(operator.inputs[0].type)([None, columns])
