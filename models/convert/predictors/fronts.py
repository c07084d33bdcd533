"""What comes before an estimator where texts are counted: tables that stay sparse, step by step.

skl2onnx knows no sparse tables, so here pipelines, column transformers and unions around a
vectoriser are taken apart; what is dense goes to skl2onnx, one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from models.convert.predictors import sparse
from models.convert.predictors.compiler import Compiler, Source, library_of
from models.convert.predictors.sparse import Sparse
from models.convert.sklearn_columns import parts_of, places_of
from models.convert.vectorizers import is_vectorizer
from models.errors import ConversionRefused

_Step = Callable[[Compiler, Any, Sparse], Sparse]


def is_ours(transformer: Any, source: Source) -> bool:
    """Return whether a transformer sees a sparse table or makes one."""
    return source.sparse is not None or any(is_vectorizer(part) for part in parts_of(transformer))


def transformed(compiler: Compiler, part: Any, source: Source) -> Source:
    """Return the table that a transformer makes of a table, or raise ConversionRefused."""
    kind = type(part).__name__
    if is_vectorizer(part):
        return _of(_counted(compiler, part))
    if kind == "Pipeline":
        for _, step in part.steps:
            source = _step(compiler, step, source)
        return source
    if kind == "ColumnTransformer":
        return _columns(compiler, part, source)
    if kind == "FeatureUnion":
        return _union(compiler, part, source)
    table = source.sparse
    if table is None or library_of(part) != "sklearn":
        return compiler.table(part, source)
    if kind == "TruncatedSVD":
        return _reduced(compiler, part, source)
    if kind in _STEPS:
        return _of(_STEPS[kind](compiler, part, table))
    if hasattr(part, "get_support"):
        return _of(sparse.picked(compiler, table, part.get_support(indices=True).tolist()))
    return compiler.table(part, source)


def _step(compiler: Compiler, step: Any, source: Source) -> Source:
    if step is None or isinstance(step, str):
        return source
    width = int(getattr(step, "n_features_in_", source.width))
    return compiler.transformed(step, source if source.names else replace(source, width=width))


def _of(table: Sparse) -> Source:
    return Source((), (), (), table.width, table)


def _counted(compiler: Compiler, part: Any) -> Sparse:
    tensor, width = compiler.counted[id(part)]
    table = sparse.counted(compiler, tensor, width)
    kind = type(part).__name__
    if kind == "TfidfVectorizer":
        return _tfidf(compiler, part._tfidf, table)  # noqa: SLF001 (all of its parameters are there)
    if kind == "HashingVectorizer":
        return sparse.normalised(compiler, table, part.norm)
    return table


def _columns(compiler: Compiler, part: Any, source: Source) -> Source:
    if not source.names:
        raise ConversionRefused("ColumnTransformer: the columns of this table have no places")
    tables, weights = [], part.transformer_weights or {}
    for name, transformer, chosen in part.transformers_:
        places = places_of(source.names, chosen)
        if not places or (isinstance(transformer, str) and transformer == "drop"):
            continue
        inner = compiler.columns(source, places)
        if isinstance(transformer, str):
            inner = Source((compiler.matrix(inner),), ("number",), (), len(places))
        else:
            inner = compiler.transformed(transformer, inner)
        found = part.output_indices_[name]
        inner = replace(inner, width=found.stop - found.start)
        tables.append(_weighted(compiler, inner, weights.get(name)))
    found = _side_by_side(compiler, tables)
    if found.sparse is not None and not part.sparse_output_:
        return _of(replace(found.sparse, has_zeros=True))
    return found


def _union(compiler: Compiler, part: Any, source: Source) -> Source:
    tables, weights = [], part.transformer_weights or {}
    for name, transformer in part.transformer_list:
        if isinstance(transformer, str) and transformer == "drop":
            continue
        inner = source
        if not isinstance(transformer, str):
            inner = compiler.transformed(transformer, source)
            if inner.width < 0:
                inner = replace(inner, width=len(transformer.get_feature_names_out()))
        tables.append(_weighted(compiler, inner, weights.get(name)))
    return _side_by_side(compiler, tables)


def _weighted(compiler: Compiler, source: Source, weight: float | None) -> Source:
    if weight is None:
        return source
    if source.sparse is not None:
        factors = np.full(source.width, float(weight))
        return replace(source, sparse=sparse.scaled(compiler, source.sparse, factors))
    matrix = compiler.add("Mul", compiler.matrix(source), compiler.number(float(weight)))
    return replace(source, tensors=(matrix,), kinds=("number",))


def _side_by_side(compiler: Compiler, tables: Sequence[Source]) -> Source:
    width = sum(source.width for source in tables)
    if any(source.sparse is not None for source in tables):
        return _of(sparse.joined(compiler, [
            source.sparse or sparse.of_matrix(compiler, compiler.matrix(source), source.width)
            for source in tables
        ]))  # fmt: skip
    matrices = [compiler.matrix(source) for source in tables]
    matrix = matrices[0] if len(matrices) == 1 else compiler.add("Concat", *matrices, axis=1)
    return Source((matrix,), ("number",), (), width)


def _reduced(compiler: Compiler, part: Any, source: Source) -> Source:
    rows = np.asarray(part.components_, np.float64)
    matrix = compiler.affine_of(source, rows, np.zeros(len(rows)))
    return Source((matrix,), ("number",), (), len(rows))


def _tfidf(compiler: Compiler, part: Any, table: Sparse) -> Sparse:
    if part.sublinear_tf:
        table = sparse.damped(compiler, table)
    if part.use_idf:
        table = sparse.scaled(compiler, table, part.idf_)
    return sparse.normalised(compiler, table, part.norm)


def _normalised(compiler: Compiler, part: Any, table: Sparse) -> Sparse:
    return sparse.normalised(compiler, table, part.norm)


def _by_largest(compiler: Compiler, part: Any, table: Sparse) -> Sparse:
    if getattr(part, "clip", False):
        raise ConversionRefused("MaxAbsScaler: clip=True over counted terms")
    return sparse.scaled(compiler, table, 1.0 / np.asarray(part.scale_, np.float64))


def _standard(compiler: Compiler, part: Any, table: Sparse) -> Sparse:
    # With a mean scikit-learn itself refuses a sparse table.
    if part.scale_ is None:
        return table
    return sparse.scaled(compiler, table, 1.0 / np.asarray(part.scale_, np.float64))


def _flags(compiler: Compiler, part: Any, table: Sparse) -> Sparse:
    return sparse.above(compiler, table, float(part.threshold))


_STEPS: Final[dict[str, _Step]] = {
    "Binarizer": _flags,
    "MaxAbsScaler": _by_largest,
    "Normalizer": _normalised,
    "StandardScaler": _standard,
    "TfidfTransformer": _tfidf,
}
