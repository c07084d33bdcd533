"""Adds nodes to the graph that skl2onnx is building, for converters in place of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from models.servable import Array


class Writer:
    """One converter's way into the graph. ``operator``: what is being converted."""

    def __init__(self, scope: Any, container: Any, operator: Any = None) -> None:
        self._scope = scope
        self._container = container
        self._operator = operator

    @property
    def is_double(self) -> bool:
        """Whether the operator's first input is double."""
        from skl2onnx.common.data_types import DoubleTensorType

        return isinstance(self._operator.inputs[0].type, DoubleTensorType)

    @property
    def dtype(self) -> type[np.floating]:
        """The precision of the operator's numbers."""
        return np.float64 if self.is_double else np.float32

    def matrix(self) -> str:
        """Return all inputs of the operator as one matrix."""
        from skl2onnx.operator_converters.common import concatenate_variables

        matrix = concatenate_variables(self._scope, self._operator.inputs, self._container)
        return str(matrix[0] if isinstance(matrix, list) else matrix)

    def numbers(self) -> str:
        """Return all inputs as one matrix in the operator's precision."""
        return self.cast(self.matrix())

    def cast(self, tensor: str) -> str:
        """Return a tensor in the operator's precision."""
        to = TensorProto.DOUBLE if self.is_double else TensorProto.FLOAT
        return self.node("Cast", tensor, to=to)

    def column(self, matrix: str, place: int) -> str:
        """Return one column of a matrix, ``(rows, 1)``."""
        return self.node("Gather", matrix, self.constant(np.array([place], np.int64)), axis=1)

    def result(self, tensor: str) -> None:
        """Make a tensor the operator's output, in the type that it is declared with."""
        from skl2onnx.common.data_types import guess_proto_type

        output = self._operator.outputs[0]
        self.node("Cast", tensor, output=output.full_name, to=guess_proto_type(output.type))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add one node and return its one output."""
        return self.node(op, *inputs, **attributes)

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add one node and return the name of its one output."""
        name = output or str(self._scope.get_unique_variable_name(op.lower()))
        self._container.add_node(
            op, list(inputs), [name], name=self._scope.get_unique_operator_name(op), **attributes
        )
        return name

    def number(self, values: Any) -> str:
        """Add a constant in the operator's precision."""
        return self.constant(np.asarray(values, dtype=self.dtype))

    def constant(self, values: Array) -> str:
        """Add a constant of numbers, or of text."""
        name = str(self._scope.get_unique_variable_name("constant"))
        is_text = values.dtype == object
        kind = TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(values.dtype)
        flat = [value.encode() for value in values] if is_text else values.ravel().tolist()
        self._container.add_initializer(name, kind, list(values.shape), flat)
        return name
