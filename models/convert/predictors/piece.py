"""One transformer or estimator written by skl2onnx, as a piece of a larger graph."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass
from typing import Any, Final

import onnx

from models.convert.graph import Graph
from models.convert.sklearn_transforms import transform_converters, transform_shapes
from models.convert.trees import ML_DOMAIN, ML_OPSET, OPSET, Precision
from models.errors import ConversionRefused

_PLAIN_OPSET: Final = frozenset({"GaussianMixture", "BayesianGaussianMixture"})
_NO_ZIPMAP: Final = {"zipmap": False}


@dataclass(frozen=True, slots=True)
class Piece:
    """What a piece is fed with; the fields are those of a ``Source``."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    tensors: tuple[str, ...]
    width: int
    precision: Precision


def add_piece(graph: Graph, estimator: Any, piece: Piece, prefix: str) -> list[str]:
    """Add what skl2onnx makes of ``estimator`` and return the names of its outputs.

    ``prefix`` keeps its names apart from all others. Raises ConversionRefused with the reason.
    """
    model = _convert(estimator, piece)
    inner = model.graph
    for node in inner.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name:
                    names[i] = prefix + name
        node.name = prefix + node.name
    for constant in inner.initializer:
        constant.name = prefix + constant.name
    for value, tensor in zip(inner.input, piece.tensors, strict=True):
        if tensor:
            graph.nodes.append(onnx.helper.make_node("Identity", [tensor], [prefix + value.name]))
    graph.nodes.extend(inner.node)
    graph.constants.extend(inner.initializer)
    return [prefix + value.name for value in inner.output]


def _convert(estimator: Any, piece: Piece) -> onnx.ModelProto:
    # Mixtures in double compare the opset with a number, which a table of opsets is not.
    is_plain = type(estimator).__name__ in _PLAIN_OPSET
    return _converted(estimator, piece, OPSET if is_plain else {"": OPSET, ML_DOMAIN: ML_OPSET})


def _converted(estimator: Any, piece: Piece, target_opset: int | dict[str, int]) -> onnx.ModelProto:
    import skl2onnx
    from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator

    name = type(estimator).__name__
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            converted = skl2onnx.convert_sklearn(
                estimator,
                initial_types=_initial_types(piece),
                target_opset=target_opset,
                options={id(estimator): _NO_ZIPMAP} if _has_zipmap(estimator) else None,
                custom_conversion_functions=transform_converters(),
                custom_shape_calculators=transform_shapes(),
            )
    except (MissingConverter, MissingShapeCalculator) as error:
        missing = _missing(str(error)) or name
        raise ConversionRefused(f"scikit-learn: no conversion is known for {missing}") from error
    except ConversionRefused:
        raise
    # skl2onnx raises whatever its 140 converters meet: NameError, KeyError, IndexError and more.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConversionRefused(f"scikit-learn: {name} cannot be converted: {reason}") from error
    model: onnx.ModelProto = converted
    return model


def _has_zipmap(estimator: Any) -> bool:
    return hasattr(estimator, "predict_proba") and hasattr(estimator, "classes_")


def _missing(message: str) -> str:
    """Return the class that skl2onnx complains of."""
    _, _, rest = message.partition("<class '")
    return rest.partition("'")[0].rpartition(".")[2]


def _initial_types(piece: Piece) -> list[tuple[str, Any]]:
    from skl2onnx.common import data_types

    number = data_types.FloatTensorType
    if piece.precision == "float64":
        number = data_types.DoubleTensorType
    kinds = {"number": number, "text": data_types.StringTensorType,
             "code": data_types.Int64TensorType}  # fmt: skip
    if not piece.names:
        width = piece.width if piece.width >= 0 else None
        return [("inner", kinds[piece.kinds[0]]([None, width]))]
    return [
        (name, kinds[kind]([None, 1])) for name, kind in zip(piece.names, piece.kinds, strict=True)
    ]
