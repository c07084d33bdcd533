"""Several classes at once: an estimator for each target, and chains in which one sees the others.

scikit-learn answers them in two ways, and so does what is written here: a list of probabilities,
one table a target, or one matrix with the probability of each label.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.graph import class_labels
from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source, Target
from models.errors import ConversionRefused


def _multi_output(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    targets = []
    for member in estimator.estimators_:
        found = compiler.predict(member, source)
        if not found.index:
            raise ConversionRefused(f"{type(member).__name__}: it gives no class of one target")
        targets.append(Target(found.index, class_labels(member.classes_), found.probabilities))
    return Predicted(targets=tuple(targets))


def _chain(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    """Write each estimator of a chain over the table and what those before it say of the row."""
    matrix = compiler.matrix(source)
    method = getattr(estimator, "chain_method_", "predict")
    seen: list[str] = []
    links: list[Target] = []
    scores: list[str] = []
    for member in estimator.estimators_:
        labels = class_labels(member.classes_)
        if len(labels) != 2 or isinstance(labels[0], str):
            raise ConversionRefused(
                f"ClassifierChain: a target with the classes {list(labels)[:5]}: only two numbers "
                "are supported, for that is all that its probabilities are of"
            )
        width = source.width + len(seen) if source.width >= 0 else -1
        table = compiler.joined([matrix, *seen])
        found = compiler.predict(member, Source((table,), ("number",), (), width))
        positive = compiler.gather(found.probabilities, [1]) if found.probabilities else ""
        given = {
            "predict": _numbers(compiler, found.index, labels),
            "predict_proba": positive,
            "decision_function": found.scores,
        }
        if not given.get(method):
            raise ConversionRefused(f"ClassifierChain: chain_method {method!r} is not supported")
        seen.append(given[method])
        links.append(Target(found.index, labels, positive))
        scores.append(found.scores)
    order = np.argsort(estimator.order_)
    targets = [links[place] for place in order]
    has_all = all(target.probabilities for target in targets)
    return Predicted(
        targets=tuple(targets),
        probabilities=compiler.joined([t.probabilities for t in targets]) if has_all else "",
        scores=compiler.joined([scores[place] for place in order]) if all(scores) else "",
    )


def _numbers(compiler: Compiler, index: str, labels: tuple[str | int, ...]) -> str:
    """Return the labels themselves as a column of numbers."""
    table = compiler.number(np.array(labels, np.float64))
    return compiler.shaped(compiler.add("Gather", table, index, axis=0), -1, 1)


def split_targets(
    compiler: Compiler, table: str, labels: list[tuple[str | int, ...]]
) -> tuple[Target, ...]:
    """Return the targets whose probabilities lie side by side in ``table``."""
    targets = []
    start = 0
    for one in labels:
        part = compiler.gather(table, range(start, start + len(one)))
        targets.append(Target(compiler.best(part), one, part))
        start += len(one)
    return tuple(targets)


HANDLERS: Final[dict[str, Handler]] = {
    "ClassifierChain": _chain,
    "MultiOutputClassifier": _multi_output,
}
