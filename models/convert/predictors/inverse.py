"""The way back from a transformed target."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.convert.predictors.compiler import Compiler
from models.convert.predictors.functions import name_of, write_function
from models.errors import ConversionRefused


def inverse(compiler: Compiler, transformer: Any, values: str) -> str:
    """Return ``transformer.inverse_transform(values)``, or refuse the transformer by name."""
    kind = type(transformer).__name__
    if kind == "FunctionTransformer":
        function = transformer.inverse_func
        result = write_function(compiler, function, values)
        if result is None:
            raise ConversionRefused(
                f"TransformedTargetRegressor: inverse_func {name_of(function)!r} is a Python "
                "function that is not known here: only plain functions of NumPy are"
            )
        return result
    scale, shift = _affine(transformer, kind)
    return compiler.add(
        "Add", compiler.add("Mul", values, compiler.number(scale)), compiler.number(shift)
    )


def _affine(transformer: Any, kind: str) -> tuple[Any, Any]:
    if kind == "StandardScaler":
        scale = transformer.scale_ if transformer.scale_ is not None else 1.0
        mean = transformer.mean_ if transformer.with_mean else 0.0
        return np.atleast_1d(scale), np.atleast_1d(mean)
    if kind == "MinMaxScaler":
        return 1.0 / transformer.scale_, -transformer.min_ / transformer.scale_
    if kind == "RobustScaler":
        scale = transformer.scale_ if transformer.with_scaling else 1.0
        centre = transformer.center_ if transformer.with_centering else 0.0
        return np.atleast_1d(scale), np.atleast_1d(centre)
    if kind == "MaxAbsScaler":
        return np.atleast_1d(transformer.scale_), 0.0
    raise ConversionRefused(f"TransformedTargetRegressor: transformer {kind} is not supported")
