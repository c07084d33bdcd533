"""Trees and forests, those of boosters too: the one operator, then the link function."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from models.convert.graph import InnerModel
from models.convert.predictors import sparse
from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source, library_of
from models.convert.predictors.targets import split_targets
from models.convert.sklearn_trees import Encoding, tree_model
from models.convert.trees import ensemble_node
from models.errors import ConversionRefused


def _tree(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    model = tree_model(estimator)
    if model is None:
        raise ConversionRefused(f"{type(estimator).__name__} has no trees")
    if model.encoding is not None:
        matrix = _encoded(compiler, model.encoding, source)
    else:
        matrix = compiler.matrix(source)
    if model.is_float32:
        matrix = compiler.cast(compiler.add("Cast", matrix, to=TensorProto.FLOAT))
    raw = compiler.graph.fresh("raw")
    compiler.graph.nodes.append(ensemble_node(model.forest, compiler.precision, matrix, raw))
    sums = compiler.cast(raw)
    if model.targets:
        return Predicted(targets=split_targets(compiler, sums, list(model.targets)))
    if model.classes is None:
        return Predicted(values=compiler.add("Exp", sums) if model.link == "exp" else sums)
    if model.link == "softmax":
        probabilities = compiler.add("Softmax", sums, axis=1)
    elif model.link == "sigmoid":
        margin = sums
        if model.slope != 1.0:
            margin = compiler.add("Mul", sums, compiler.number(model.slope))
        probabilities = compiler.both_sides(margin)
    else:
        return Predicted(index=compiler.best(raw), probabilities=sums)
    # The margin itself: probabilities of equal classes may round apart.
    index = compiler.is_positive(sums) if model.link == "sigmoid" else compiler.best(sums)
    return Predicted(index=index, probabilities=probabilities, scores=sums)


def _encoded(compiler: Compiler, encoding: Encoding, source: Source) -> str:
    """Return the matrix whose coded columns come first, with NaN for a category never seen."""
    parts = []
    for place, categories in encoding.coded:
        column = compiler.columns(source, [place])
        if column.kinds[0] == "text":
            parts.append(_text_codes(compiler, column.tensors[0], categories))
        else:
            parts.append(_number_codes(compiler, compiler.matrix(column), categories))
    if encoding.plain:
        parts.append(compiler.matrix(compiler.columns(source, encoding.plain)))
    return parts[0] if len(parts) == 1 else compiler.add("Concat", *parts, axis=1)


def _text_codes(compiler: Compiler, tensor: str, categories: tuple[Any, ...]) -> str:
    codes = compiler.add(
        "LabelEncoder",
        tensor,
        domain="ai.onnx.ml",
        keys_strings=[str(value) for value in categories],
        values_floats=[float(code) for code in range(len(categories))],
        default_float=float("nan"),
    )
    return compiler.cast(codes)


def _number_codes(compiler: Compiler, tensor: str, categories: tuple[Any, ...]) -> str:
    known = compiler.number(np.asarray(categories, np.float64)[None, :])
    hits = compiler.cast(compiler.add("Equal", tensor, known))
    codes = compiler.number(np.arange(len(categories))[:, None])
    is_known = compiler.add("Greater", compiler.summed(hits), compiler.number(0.0))
    code = compiler.add("MatMul", hits, codes)
    return compiler.add("Where", is_known, code, compiler.number(np.nan))


def _booster(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    library = importlib.import_module(f"models.convert.{library_of(estimator)}")
    table = source.sparse
    if table is not None and not table.has_zeros and library_of(estimator) == "xgboost":
        # What a sparse table does not hold is missing to it, not zero.
        matrix = sparse.dense(compiler, table, float("nan"))
    else:
        matrix = compiler.matrix(source)
    inner: InnerModel = library.add_inner_model(
        compiler.graph, estimator, matrix, compiler.precision
    )
    if not inner.probabilities:
        values = compiler.shaped(compiler.cast(inner.prediction), -1, inner.targets)
        return Predicted(values=values)
    if inner.is_multilabel:
        probabilities = compiler.cast(inner.probabilities)
        return Predicted(
            index=compiler.flags(probabilities, 0.5),
            probabilities=probabilities,
            scores=compiler.cast(inner.raw),
        )
    return Predicted(
        index=compiler.best(inner.probabilities),
        probabilities=compiler.cast(inner.probabilities),
        scores=compiler.cast(inner.raw),
    )


_TREES: Final = (
    "DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "ExtraTreeRegressor",
    "RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier",
    "ExtraTreesRegressor", "GradientBoostingClassifier", "GradientBoostingRegressor",
    "HistGradientBoostingClassifier", "HistGradientBoostingRegressor",
)  # fmt: skip
_BOOSTERS: Final = (
    "LGBMClassifier", "LGBMRegressor", "LGBMRanker",
    "XGBClassifier", "XGBRegressor", "XGBRanker", "XGBRFClassifier", "XGBRFRegressor",
    "CatBoost", "CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker",
)  # fmt: skip
HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(_TREES, _tree),
    **dict.fromkeys(_BOOSTERS, _booster),
}
