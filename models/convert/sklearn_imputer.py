"""SimpleImputer for skl2onnx, for numbers in double too: the operator knows only float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from models.errors import ConversionRefused


def imputer_converters() -> dict[type, Callable[[Any, Any, Any], None]]:
    """Return the converter for ``skl2onnx.convert_sklearn(custom_conversion_functions=...)``."""
    from sklearn.impute import SimpleImputer

    return {SimpleImputer: _convert}


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
    from skl2onnx.operator_converters.common import concatenate_variables
    from skl2onnx.operator_converters.imputer_op import convert_sklearn_imputer

    imputer = operator.raw_operator
    if imputer.add_indicator:
        raise ConversionRefused("SimpleImputer: add_indicator=True is not supported")
    if not isinstance(operator.inputs[0].type, FloatTensorType | DoubleTensorType):
        convert_sklearn_imputer(scope, operator, container)
        return
    fill = np.asarray(imputer.statistics_, dtype=np.float64)
    if np.isnan(fill).any():
        raise ConversionRefused(
            "SimpleImputer: a column had no value in training, so it is dropped: remove it first"
        )
    is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
    kind = TensorProto.DOUBLE if is_double else TensorProto.FLOAT
    matrix = concatenate_variables(scope, operator.inputs, container)
    matrix = matrix[0] if isinstance(matrix, list) else matrix

    def name(stem: str) -> str:
        return str(scope.get_unique_variable_name(stem))

    def add(op: str, inputs: list[str], output: str) -> str:
        container.add_node(op, inputs, [output], name=scope.get_unique_operator_name(op))
        return output

    filled = name("fill")
    container.add_initializer(filled, kind, [1, len(fill)], fill.tolist())
    wanted = imputer.missing_values
    if isinstance(wanted, float) and math.isnan(wanted):
        is_missing = add("IsNaN", [matrix], name("is_missing"))
    elif isinstance(wanted, int | float):
        marker = name("marker")
        container.add_initializer(marker, kind, [], [float(wanted)])
        is_missing = add("Equal", [matrix, marker], name("is_missing"))
    else:
        raise ConversionRefused(f"SimpleImputer: missing_values={wanted!r} in a column of numbers")
    add("Where", [is_missing, filled, matrix], operator.outputs[0].full_name)
