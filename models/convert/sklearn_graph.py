"""The graph of a scikit-learn pipeline: skl2onnx inside, served inputs and outputs around it."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx

from models.convert.graph import Graph
from models.convert.sklearn_columns import Column, final_estimator
from models.convert.sklearn_imputer import imputer_converters
from models.convert.sklearn_trees import converters
from models.convert.trees import ML_DOMAIN, ML_OPSET, OPSET, Precision
from models.errors import ConversionRefused
from models.signature import Signature, TensorSpec

_INT64: Final = onnx.TensorProto.INT64
# Names of the served tensors are kept free of names that skl2onnx makes up.
_INNER: Final = "inner/"


@dataclass(frozen=True, slots=True)
class Frame:
    """How served inputs become the table that the native model takes.

    ``is_matrix``: one input of all used columns; else one input ``(rows, 1)`` for each.
    ``has_names``: the table is a DataFrame. ``is_split``: skl2onnx is given column by column.
    """

    columns: tuple[Column, ...]
    is_matrix: bool
    has_names: bool
    is_split: bool
    signature: Signature

    @property
    def used(self) -> tuple[Column, ...]:
        """Columns that are served."""
        return tuple(column for column in self.columns if column.is_used)


def build_graph(prepared: Any, frame: Frame, precision: Precision) -> onnx.ModelProto:
    """Return the graph of a pipeline, or raise ConversionRefused naming what cannot be converted.

    ``prepared``: a copy of the pipeline whose missing texts are already text.
    """
    inner = _convert(prepared, frame, precision)
    _rename(inner.graph)
    graph = Graph()
    for name, source in _sources(graph, inner, frame, precision).items():
        graph.add("Identity", source, output=name)
    graph.nodes.extend(inner.graph.node)
    graph.constants.extend(inner.graph.initializer)
    if is_booster(final_estimator(prepared)):
        _add_booster(graph, final_estimator(prepared), inner, frame, precision)
    else:
        for spec, result in zip(frame.signature.outputs, inner.graph.output, strict=False):
            _add_output(graph, spec, result)
    # skl2onnx declares the lowest set that its nodes were written for, and they mean that one.
    opset = max((e.version for e in inner.opset_import if not e.domain), default=OPSET)
    return graph.model(frame.signature, opset)


def _convert(prepared: Any, frame: Frame, precision: Precision) -> onnx.ModelProto:
    import skl2onnx
    from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator

    final = final_estimator(prepared)
    options = None
    if is_booster(final):  # only what comes before it is skl2onnx's
        prepared = prepared[:-1]
    elif any(spec.name == "probabilities" for spec in frame.signature.outputs):
        options = {id(final): {"zipmap": False}}
    elif type(final).__name__ == "LinearSVC":
        # Any option at all keeps a pipeline from asking for ZipMap, which LinearSVC refuses.
        options = {id(final): {"raw_scores": False}}
    if type(final).__name__ == "VotingClassifier":
        final.flatten_transform = False  # says nothing about predictions, but stops skl2onnx
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            converted = skl2onnx.convert_sklearn(
                prepared,
                initial_types=_initial_types(frame, precision),
                target_opset={"": OPSET, ML_DOMAIN: ML_OPSET},
                options=options,
                custom_conversion_functions=converters() | imputer_converters(),
                custom_parsers=_parsers(),
            )
    except (MissingConverter, MissingShapeCalculator) as error:
        first = str(error).strip().splitlines()[0]
        raise ConversionRefused(f"scikit-learn: no conversion is known: {first}") from error
    except ConversionRefused:
        raise
    # skl2onnx raises whatever its 140 converters meet: NameError, KeyError, IndexError and more.
    except Exception as error:
        kind = type(final).__name__
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConversionRefused(f"scikit-learn: {kind} cannot be converted: {reason}") from error
    model: onnx.ModelProto = converted
    return model


def _rename(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name:
                    names[i] = _INNER + name
    for constant in graph.initializer:
        constant.name = _INNER + constant.name


def is_booster(estimator: Any) -> bool:
    """Return whether an estimator is of a library whose trees are written here."""
    return _library(estimator) in ("lightgbm", "xgboost", "catboost")


def _library(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]


def _add_booster(
    graph: Graph, final: Any, inner: onnx.ModelProto, frame: Frame, precision: Precision
) -> None:
    if len(inner.graph.output) != 1:
        raise ConversionRefused(f"{len(inner.graph.output)} tensors reach {type(final).__name__}")
    family = importlib.import_module(f"models.convert.{_library(final)}")
    family.add_model(graph, final, _INNER + inner.graph.output[0].name, precision, frame.signature)


def _parsers() -> dict[type, Any]:
    from skl2onnx._parse import _parse_sklearn_simple_model
    from sklearn.svm import LinearSVC

    # Its own parser asks for the ZipMap option, which its converter does not know.
    return {LinearSVC: _parse_sklearn_simple_model}


def _initial_types(frame: Frame, precision: Precision) -> list[tuple[str, Any]]:
    from skl2onnx.common import data_types

    number = data_types.FloatTensorType
    if precision == "float64":
        number = data_types.DoubleTensorType
    kinds = {"number": number, "text": data_types.StringTensorType,
             "code": data_types.Int64TensorType}  # fmt: skip
    if frame.is_matrix and not frame.is_split:
        return [("inner", kinds[frame.used[0].kind]([None, len(frame.used)]))]
    return [(column.name, kinds[column.kind]([None, 1])) for column in frame.columns]


def _sources(
    graph: Graph, inner: onnx.ModelProto, frame: Frame, precision: Precision
) -> dict[str, str]:
    """Return for each input of the inner graph, renamed, the tensor that feeds it."""
    number = onnx.TensorProto.DOUBLE if precision == "float64" else onnx.TensorProto.FLOAT
    inner_names = [value.name for value in inner.graph.input]
    fresh = {name: _INNER + name for name in inner_names}
    if frame.is_matrix:
        matrix = frame.signature.inputs[0].name
        if frame.used[0].kind == "number":
            matrix = graph.add("Cast", matrix, to=number)
        if not frame.is_split:
            return {fresh[inner_names[0]]: matrix}
        return {
            fresh[inner_names[column.index]]: graph.add(
                "Gather", matrix, graph.constant(np.array([i], np.int64)), axis=1
            )
            for i, column in enumerate(frame.used)
        }
    sources = {}
    for column, spec in zip(frame.used, frame.signature.inputs, strict=True):
        is_number = column.kind == "number"
        source = graph.add("Cast", spec.name, to=number) if is_number else spec.name
        sources[fresh[inner_names[column.index]]] = source
    return sources


def _add_output(graph: Graph, spec: TensorSpec, result: onnx.ValueInfoProto) -> None:
    source = _INNER + result.name
    wanted = {"FP32": onnx.TensorProto.FLOAT, "INT64": _INT64}.get(spec.datatype)
    if wanted is not None and result.type.tensor_type.elem_type != wanted:
        source = graph.add("Cast", source, to=wanted)
    shape = [-1, *spec.shape[1:]]
    graph.add("Reshape", source, graph.constant(np.array(shape, np.int64)), output=spec.name)
