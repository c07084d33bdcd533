"""Transformers for skl2onnx, in place of its own where those are inexact or incomplete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from models.convert.predictors.functions import name_of, write_function
from models.convert.sklearn_imputer import convert_imputer, shape_of_imputer
from models.convert.sklearn_products import (
    convert_product,
    convert_selection,
    shape_of_product,
    shape_of_selection,
)
from models.convert.sklearn_quantiles import convert_quantiles
from models.convert.sklearn_scaling import convert_normalizer, convert_power, shape_as_fed
from models.convert.sklearn_splines import convert_splines, shape_of_splines
from models.convert.sklearn_trees import converters
from models.convert.sklearn_writer import Writer
from models.convert.trees import ML_DOMAIN
from models.errors import ConversionRefused

Converter = Callable[[Any, Any, Any], None]


def transform_converters() -> dict[type, Converter]:
    """Return what skl2onnx takes as ``custom_conversion_functions``."""
    from sklearn import feature_selection, impute, preprocessing

    return (
        converters()
        | dict.fromkeys(_products(), convert_product)
        | {
            feature_selection.SequentialFeatureSelector: convert_selection,
            impute.KNNImputer: _refused_imputer,
            impute.SimpleImputer: convert_imputer,
            preprocessing.FunctionTransformer: _function,
            preprocessing.KBinsDiscretizer: _bins,
            preprocessing.Normalizer: convert_normalizer,
            preprocessing.OneHotEncoder: _one_hot,
            preprocessing.PolynomialFeatures: _polynomial,
            preprocessing.PowerTransformer: convert_power,
            preprocessing.QuantileTransformer: convert_quantiles,
            preprocessing.SplineTransformer: convert_splines,
        }
    )


def transform_shapes() -> dict[type, Callable[[Any], None]]:
    """Return what skl2onnx takes as ``custom_shape_calculators``."""
    from sklearn import feature_selection, impute, preprocessing

    return dict.fromkeys(_products(), shape_of_product) | {
        feature_selection.SequentialFeatureSelector: shape_of_selection,
        impute.KNNImputer: _shape_as_fed,
        impute.SimpleImputer: shape_of_imputer,
        preprocessing.FunctionTransformer: _shape_of_function,
        preprocessing.KBinsDiscretizer: _shape_of_bins,
        preprocessing.Normalizer: shape_as_fed,
        preprocessing.OneHotEncoder: _shape_of_one_hot,
        preprocessing.PowerTransformer: shape_as_fed,
        preprocessing.QuantileTransformer: shape_as_fed,
        preprocessing.SplineTransformer: shape_of_splines,
    }


def _products() -> tuple[type, ...]:
    from sklearn import decomposition, kernel_approximation, random_projection

    return (
        decomposition.FactorAnalysis, decomposition.FastICA, kernel_approximation.Nystroem,
        kernel_approximation.RBFSampler, random_projection.SparseRandomProjection,
    )  # fmt: skip


def _refused_imputer(_scope: Any, operator: Any, _container: Any) -> None:
    raise ConversionRefused(
        f"{type(operator.raw_operator).__name__}: it looks rows of training up, which is not "
        "supported: use SimpleImputer, or trees that take missing values"
    )


def _function(scope: Any, operator: Any, container: Any) -> None:
    transformer = operator.raw_operator
    write = Writer(scope, container, operator)
    if transformer.kw_args:
        raise ConversionRefused(f"FunctionTransformer: kw_args of {name_of(transformer.func)!r}")
    matrix = write.matrix()
    if transformer.func is not None:
        matrix = write.cast(matrix)
    result = write_function(write, transformer.func, matrix)
    if result is None:
        raise ConversionRefused(
            f"FunctionTransformer: {name_of(transformer.func)!r} is a Python function, which "
            "cannot be served: use a plain function of NumPy (np.log1p, ...), or compute the "
            "column before the model"
        )
    write.node("Identity", result, output=operator.outputs[0].full_name)


def _shape_as_fed(operator: Any) -> None:
    operator.outputs[0].type = type(operator.inputs[0].type)([None, None])


def _shape_of_function(operator: Any) -> None:
    width = sum(variable.type.shape[1] or 0 for variable in operator.inputs)
    kind = type(operator.inputs[0].type)
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    if operator.raw_operator.func is not None and kind is Int64TensorType:
        kind = FloatTensorType
    operator.outputs[0].type = kind([None, width or None])


def _polynomial(scope: Any, operator: Any, container: Any) -> None:
    write = Writer(scope, container, operator)
    powers = np.asarray(operator.raw_operator.powers_, np.int64)
    matrix = write.numbers()
    # One column of ones beside the table stands for a factor that is not there.
    ones = write.add("Add", write.add("Mul", write.column(matrix, 0), write.number(0.0)),
                     write.number(1.0))  # fmt: skip
    table = write.add("Concat", matrix, ones, axis=1)
    factors = [np.repeat(np.arange(powers.shape[1]), row) for row in powers]
    depth = max((len(row) for row in factors), default=0)
    result = ""
    for place in range(max(depth, 1)):
        chosen = [int(row[place]) if place < len(row) else powers.shape[1] for row in factors]
        part = write.add("Gather", table, write.constant(np.array(chosen, np.int64)), axis=1)
        result = part if not result else write.add("Mul", result, part)
    write.result(result)


def _bins(scope: Any, operator: Any, container: Any) -> None:
    model = operator.raw_operator
    write = Writer(scope, container, operator)
    if not write.is_double:
        raise ConversionRefused("KBinsDiscretizer: its edges are compared in double only")
    matrix = write.numbers()
    parts = []
    for place, edges in enumerate(model.bin_edges_):
        inner = write.number(np.asarray(edges[1:-1], np.float64)[None, :])
        column = write.column(matrix, place)
        if len(edges) <= 2:
            code = write.add("Mul", column, write.number(0.0))
        else:
            passed = write.cast(write.add("GreaterOrEqual", column, inner))
            axis = write.constant(np.array([1], np.int64))
            code = write.add("ReduceSum", passed, axis, keepdims=1)
        if model.encode != "ordinal":
            places = write.number(np.arange(model.n_bins_[place])[None, :])
            code = write.cast(write.add("Equal", code, places))
        parts.append(code)
    write.result(parts[0] if len(parts) == 1 else write.add("Concat", *parts, axis=1))


def _shape_of_bins(operator: Any) -> None:
    model = operator.raw_operator
    width = len(model.n_bins_) if model.encode == "ordinal" else int(np.sum(model.n_bins_))
    operator.outputs[0].type = _number_type(operator)([None, width])


def _number_type(operator: Any) -> Any:
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
    return DoubleTensorType if is_double else FloatTensorType


def _is_grouping(encoder: Any) -> bool:
    """Return whether rare or unknown categories share a column, which skl2onnx gets wrong."""
    groups = getattr(encoder, "infrequent_categories_", None)
    has_rare = groups is not None and any(group is not None for group in groups)
    return has_rare or encoder.handle_unknown in ("infrequent_if_exist", "warn")


def _one_hot(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.operator_converters.one_hot_encoder import convert_sklearn_one_hot_encoder

    encoder = operator.raw_operator
    if not _is_grouping(encoder):
        convert_sklearn_one_hot_encoder(scope, operator, container)
        return
    if encoder.handle_unknown == "error":
        raise ConversionRefused(
            "OneHotEncoder: rare categories with handle_unknown='error' are not supported: use "
            "handle_unknown='infrequent_if_exist'"
        )
    write = Writer(scope, container, operator)
    matrix = write.matrix()
    parts = [_grouped(write, encoder, matrix, place) for place in range(len(encoder.categories_))]
    write.result(parts[0] if len(parts) == 1 else write.add("Concat", *parts, axis=1))


def _grouped(write: Writer, encoder: Any, matrix: str, place: int) -> str:
    """Return the columns of one encoded column: a one where its category, or its group, is."""
    categories = encoder.categories_[place].tolist()
    groups = getattr(encoder, "infrequent_categories_", None)
    rare = groups[place] if groups is not None else None
    rare_set = set(rare.tolist()) if rare is not None else set()
    common = [value for value in categories if value not in rare_set]
    width = len(common) + bool(rare_set)
    codes = {value: code for code, value in enumerate(common)}
    values = [codes.get(value, len(common)) for value in categories]
    is_grouping = encoder.handle_unknown in ("infrequent_if_exist", "warn") and bool(rare_set)
    is_text = isinstance(categories[0], str)
    if not is_text and encoder.categories_[place].dtype.kind not in "iu":
        raise ConversionRefused("OneHotEncoder: rare categories of numbers with a fraction")
    attributes: dict[str, Any] = {
        "keys_strings" if is_text else "keys_int64s": categories,
        "values_int64s": values,
        "default_int64": len(common) if is_grouping else -1,
    }
    column = write.column(matrix, place)
    code = write.node("LabelEncoder", column, op_domain=ML_DOMAIN, op_version=2, **attributes)
    kept = np.arange(width)
    if encoder.drop_idx_ is not None and encoder._drop_idx_after_grouping[place] is not None:  # noqa: SLF001
        kept = np.delete(kept, encoder._drop_idx_after_grouping[place])  # noqa: SLF001
    flags = write.add("Equal", code, write.constant(kept.astype(np.int64)[None, :]))
    return write.add("Cast", flags, to=1)


def _shape_of_one_hot(operator: Any) -> None:
    from skl2onnx.common.data_types import FloatTensorType
    from skl2onnx.shape_calculators.one_hot_encoder import (
        calculate_sklearn_one_hot_encoder_output_shapes,
    )

    encoder = operator.raw_operator
    if not _is_grouping(encoder):
        calculate_sklearn_one_hot_encoder_output_shapes(operator)
        return
    width = int(sum(encoder._n_features_outs))  # noqa: SLF001
    operator.outputs[0].type = FloatTensorType([None, width])
