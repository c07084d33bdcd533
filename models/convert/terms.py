"""Models that count the terms of texts: what is counted for them, and the package they go in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from models.convert.onnx_file import About, package_onnx
from models.convert.sklearn_columns import Column
from models.convert.vectorizers import term_input
from models.errors import ConversionRefused, InputRefused, LoadFailed, RunFailed
from models.package import BytesObject, Package
from models.parity import Answer, Inputs, graph_answer
from models.runtime.term_counts import open_counter
from models.runtime.terms import TermsServable
from models.servable import Array
from models.signature import Signature, TensorSpec
from models.terms_form import TermInput, TermsForm
from registry.manifest import TensorEntry

_CHUNK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Counted:
    """What is counted for a model: ``vectorizers`` and ``inputs`` side by side, and their objects.

    ``graph``: what the graph takes and gives; no outputs before they are known.
    """

    vectorizers: tuple[Any, ...]
    inputs: tuple[TermInput, ...]
    objects: tuple[BytesObject, ...]
    graph: Signature

    @property
    def tensors(self) -> dict[int, tuple[str, int]]:
        """By the id of each vectoriser its tensor and the number of its columns."""
        pairs = zip(self.vectorizers, self.inputs, strict=True)
        return {id(part): (item.tensor, item.columns) for part, item in pairs}

    def giving(self, outputs: tuple[TensorSpec, ...]) -> Counted:
        """Return the same with the outputs of the graph."""
        return replace(self, graph=Signature(self.graph.inputs, outputs))


def counted_of(columns: Sequence[Column], served: Sequence[TensorSpec]) -> Counted | None:
    """Return what is counted of the used columns, None where nothing is.

    ``served``: the input of each. Raises ConversionRefused.
    """
    vectorizers: list[Any] = []
    inputs: list[TermInput] = []
    objects: list[BytesObject] = []
    for column, spec in zip(columns, served, strict=False):
        for part in column.vectorizers:
            item, vocabulary = term_input(part, spec.name, f"ramrack/terms_{len(inputs)}")
            vectorizers.append(part)
            inputs.append(item)
            objects.append(vocabulary)
    if not inputs:
        return None
    passed = [
        spec for column, spec in zip(columns, served, strict=True)
        if column.is_plain or not column.vectorizers
    ]  # fmt: skip
    tensors = [TensorSpec(item.tensor, "INT64", (-1, -1, 2)) for item in inputs]
    graph = Signature((*passed, *tensors), ())
    return Counted(tuple(vectorizers), tuple(inputs), tuple(objects), graph)


def counted_answer(model: onnx.ModelProto, counted: Counted, served: Signature) -> Answer:
    """Return what a graph answers to texts, counted as the server will count them."""
    counters = []
    try:
        for item, vocabulary in zip(counted.inputs, counted.objects, strict=True):
            counters.append(open_counter(item, vocabulary.data.splitlines()))
    except LoadFailed as error:
        raise ConversionRefused(str(error)) from error
    graph = _Graph(counted.graph, graph_answer(model))
    form = TermsForm(counted.inputs, {"name": "onnx"}, counted.graph, _is_dense(model))
    servable = TermsServable(counters, graph, form, served)
    names = [spec.name for spec in served.outputs]

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        parts = []
        for chunk in _chunks(inputs):
            try:
                parts.append(servable.run(chunk))
            except (InputRefused, RunFailed) as error:
                raise ConversionRefused(str(error)) from error
        return {name: np.concatenate([p[i] for p in parts]) for i, name in enumerate(names)}

    return answer


def package_counted(name: str, model: onnx.ModelProto, counted: Counted, about: About) -> Package:
    """Return the package of a graph and what is counted for it. The graph is used up.

    ``about.signature``: what is served.
    """
    is_dense = _is_dense(model)
    inner = package_onnx(name, model, replace(about, signature=counted.graph))
    form = TermsForm(counted.inputs, inner.manifest.runtime, counted.graph, is_dense)
    objects = {item.digest: item for item in counted.objects}
    entries = [TensorEntry(item.digest, item.size_bytes) for item in objects.values()]
    served = about.signature or counted.graph
    manifest = replace(
        inner.manifest,
        tensors=(*inner.manifest.tensors, *entries),
        signature=served.to_json(),
        runtime=form.to_json(),
    )
    return Package(manifest, (*inner.objects, *objects.values()))


def _is_dense(model: onnx.ModelProto) -> bool:
    """Return whether a graph makes a table of the counts (``predictors.sparse.dense`` does)."""
    return any(node.op_type == "ScatterElements" for node in model.graph.node)


def _chunks(inputs: Inputs) -> Iterator[Inputs]:
    rows = min(len(array) for array in inputs.values())
    for start in range(0, rows, _CHUNK_ROWS):
        yield {name: array[start : start + _CHUNK_ROWS] for name, array in inputs.items()}


class _Graph:
    """A graph that is not packed yet, as a servable."""

    def __init__(self, signature: Signature, answer: Answer) -> None:
        self.signature = signature
        self._answer = answer

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs``, all for None."""
        names = outputs or [spec.name for spec in self.signature.outputs]
        found = self._answer(dict(inputs))
        return [found[name] for name in names]

    def terminate(self) -> None:
        """Do nothing: a push waits for its end."""

    def close(self) -> None:
        """Do nothing: the session goes with the answer."""
