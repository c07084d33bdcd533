"""What is answered of a row that has several labels, or a class for each of several targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from models.convert.graph import class_labels
from models.convert.sklearn_columns import final_estimator
from models.errors import ConversionRefused
from models.servable import Array
from models.signature import TensorSpec

_STEM: Final = "probabilities_"


def target_output(place: int) -> str:
    """Return the name of the output with the probabilities of one target."""
    return f"{_STEM}{place}"


def target_of(output: str) -> int | None:
    """Return the target whose probabilities an output has; None: it is no such output."""
    text = output.removeprefix(_STEM)
    return int(text) if text != output and text.isdecimal() else None


def is_several(classes: Any, predicted: Array | None) -> bool:
    """Return whether one row gets several labels. ``predicted``: of one row."""
    # One column is what CatBoost predicts for several classes.
    is_wide = classes is not None and predicted is not None and predicted[:1].size > 1
    return isinstance(classes, list) or is_wide


def several_outputs(
    estimator: Any, classes: Any, predicted: Array | None, ask: Callable[[str], Any]
) -> tuple[TensorSpec, ...]:
    """Return the outputs; ``ask`` returns what a method answers for one row, None: it has none."""
    name = type(final_estimator(estimator)).__name__
    if predicted is None or predicted.ndim != 2:
        raise ConversionRefused(f"{name}: what it predicts of several targets is not known here")
    width = predicted.shape[1]
    targets = _targets(name, classes, width)
    datatype = "BYTES" if isinstance(targets[0][0], str) else "INT64"
    label = TensorSpec("label", datatype, (-1, width), method="predict")
    asked = ask("predict_proba")
    if isinstance(asked, list):
        if len(asked) != width:
            raise ConversionRefused(f"{name}: {len(asked)} tables of probabilities for {width}")
        tables = (
            TensorSpec(
                target_output(place), "FP32", (-1, len(labels)), labels=labels,
                method="predict_proba",
            )
            for place, labels in enumerate(targets)
        )  # fmt: skip
        return label, *tables
    names = _names(classes, width)
    for output, method in (("probabilities", "predict_proba"), ("scores", "decision_function")):
        found = ask(method)
        if found is not None and getattr(found, "shape", None) == (1, width):
            return label, TensorSpec(output, "FP32", (-1, width), labels=names, method=method)
    return (label,)


def _targets(name: str, classes: Any, width: int) -> list[tuple[str | int, ...]]:
    """Return the labels of each target; where rows have several labels, 0 and 1."""
    if not isinstance(classes, list):
        return [(0, 1)] * width
    labels = [class_labels(one) for one in classes]
    if len(labels) != width:
        raise ConversionRefused(f"{name}: {width} targets are predicted, {len(labels)} are known")
    if len({isinstance(label, str) for one in labels for label in one}) != 1:
        raise ConversionRefused(
            f"{name}: targets with texts and targets with numbers cannot be one output: give the "
            "classes of all targets as texts, or train a model for each"
        )
    return labels


def _names(classes: Any, width: int) -> tuple[str | int, ...]:
    """Return what the labels are called, or their places."""
    if isinstance(classes, list) or len(classes) != width:
        return tuple(range(width))
    return class_labels(classes)
