"""A small writer of ONNX graphs, and what the converters share: inputs, labels, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.convert.trees import IR_VERSION, ML_DOMAIN, ML_OPSET, OPSET, Precision
from models.errors import ConversionRefused
from models.parity import Answer, Inputs, Parity, compare, graph_answer
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.manifest import JsonObject

if TYPE_CHECKING:
    from models.convert.terms import Counted

ONNX_TYPES: Final = {
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "INT64": TensorProto.INT64,
    "BYTES": TensorProto.STRING,
    "BOOL": TensorProto.BOOL,
}
# Beyond this share of the tolerance a float32 graph is tried again in float64.
_HEADROOM: Final = 0.5


@dataclass(frozen=True, slots=True)
class NativeModel:
    """A model file in a format of its library that runs no code, and how the server opens it."""

    data: bytes
    runtime: JsonObject
    signature: Signature


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model with its proof, ready to be packed.

    ``why_native``: for a native model, the reason and the graph's figures. ``counted``: what is
    counted of texts for the graph, None for nothing.
    """

    model: onnx.ModelProto | NativeModel
    signature: Signature
    parity: Parity
    precision: Precision | Literal["native"]
    framework: str
    libraries: JsonObject
    why_native: JsonObject = field(default_factory=dict)
    counted: Counted | None = None


@dataclass(frozen=True, slots=True)
class InnerModel:
    """Tensors of a booster inside another model: predictions, or probabilities of a classifier.

    ``raw``: sums of the trees, ``(rows, targets)``. ``prediction``: as many numbers for each row,
    in any shape; "" for a classifier. ``probabilities``: ``(rows, classes)``, "" for a regressor.
    ``is_multilabel``: they are of labels, of which a row may have several.
    """

    raw: str
    targets: int
    prediction: str = ""
    probabilities: str = ""
    is_multilabel: bool = False


@dataclass(slots=True)
class Graph:
    """Nodes and constants, gathered in the order in which they compute."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    _count: int = 0

    def add(
        self, op: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Add one node and return the name of its one output: ``output``, or a fresh name."""
        output = output or self.fresh(op)
        self.nodes.append(
            helper.make_node(op, list(inputs), [output], name=output, domain=domain, **attributes)
        )
        return output

    def add_two(self, op: str, *inputs: str, **attributes: Any) -> tuple[str, str]:
        """Add one node with two outputs and return their names."""
        names = (self.fresh(op), self.fresh(op))
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attributes))
        return names

    def constant(self, value: Array) -> str:
        """Add a constant and return its name."""
        name = self.fresh("constant")
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def fresh(self, stem: str) -> str:
        """Return a name that no other tensor has."""
        self._count += 1
        return f"ramrack/{stem.lower()}_{self._count}"

    def model(self, signature: Signature, opset: int = OPSET) -> onnx.ModelProto:
        """Return the model with the inputs and outputs of ``signature``.

        Raises ConversionRefused where a name stands on both sides, which ONNX cannot say.
        """
        taken = {spec.name for spec in signature.inputs}
        for spec in signature.outputs:
            if spec.name in taken:
                raise ConversionRefused(
                    f"column {spec.name!r} has the name of an output: rename it before training"
                )
        graph = helper.make_graph(
            self.nodes,
            "model",
            [value_info(spec) for spec in signature.inputs],
            [value_info(spec) for spec in signature.outputs],
            self.constants,
        )
        return finish(helper.make_model(graph), opset)


def finish(model: onnx.ModelProto, opset: int = OPSET) -> onnx.ModelProto:
    """Set what identical models must have equal: versions and producer."""
    del model.opset_import[:]
    model.opset_import.extend(
        [helper.make_opsetid("", opset), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
    )
    model.ir_version = IR_VERSION
    model.producer_name = "ramrack"
    model.producer_version = ""
    return model


def value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    """Return the declaration of one input or output; every -1 in front is ``rows``."""
    shape = ["rows" if n == -1 and i == 0 else n if n >= 0 else None
             for i, n in enumerate(spec.shape)]  # fmt: skip
    return helper.make_tensor_value_info(spec.name, ONNX_TYPES[spec.datatype], shape)


def class_labels(classes: Sequence[object]) -> tuple[str | int, ...]:
    """Return class labels as the signature carries them: text, or integers."""
    labels: list[str | int] = []
    for label in classes:
        value = label.item() if isinstance(label, np.generic) else label
        if isinstance(value, str):
            labels.append(value)
        elif isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
            labels.append(int(value))
        else:
            raise ConversionRefused(
                f"class label {value!r}: only text and whole numbers can be served"
            )
    return tuple(labels)


def label_array(labels: Sequence[str | int]) -> Array:
    """Return labels as a constant: int64, or text."""
    is_text = any(isinstance(label, str) for label in labels)
    return np.array(labels, dtype=object if is_text else np.int64)


def classification_outputs(
    labels: Sequence[str | int], method: str = "predict_proba"
) -> tuple[TensorSpec, TensorSpec]:
    """Return the specs of ``label`` and ``probabilities``."""
    datatype = "BYTES" if isinstance(labels[0], str) else "INT64"
    return (
        TensorSpec("label", datatype, (-1,), method="predict"),
        TensorSpec("probabilities", "FP32", (-1, len(labels)), labels=tuple(labels), method=method),
    )


def multilabel_outputs(names: Sequence[str | int]) -> tuple[TensorSpec, TensorSpec]:
    """Return the specs of ``label`` and ``probabilities`` where a row may have several labels.

    ``label`` has a 0 or 1 for each of ``names``, ``probabilities`` how probable each is by itself.
    """
    width = len(names)
    return (
        TensorSpec("label", "INT64", (-1, width), method="predict"),
        TensorSpec(
            "probabilities", "FP32", (-1, width), labels=tuple(names), method="predict_proba"
        ),
    )


def flagged(probabilities: Array) -> Array:
    """Return which labels a row has: those more probable than not."""
    return (probabilities > 0.5).astype(np.int64)


def add_flags(graph: Graph, probabilities: str, output: str) -> None:
    """Add which labels a row has, as ``flagged``."""
    half = graph.constant(np.array(0.5, np.float32))
    above = graph.add("Greater", probabilities, half)
    graph.add("Cast", above, output=output, to=TensorProto.INT64)


def add_label(graph: Graph, probabilities: str, labels: Sequence[str | int], output: str) -> None:
    """Add the label with the highest probability; the first of equals, as numpy's argmax."""
    index = graph.add("ArgMax", probabilities, axis=1, keepdims=0)
    graph.add("Gather", graph.constant(label_array(labels)), index, output=output, axis=0)


def most_exact(
    build: Callable[[Precision], onnx.ModelProto],
    native: Answer,
    inputs: Inputs,
    tolerance: float,
    order: Sequence[Precision] = ("float32", "float64"),
    answer_of: Callable[[onnx.ModelProto], Answer] = graph_answer,
) -> tuple[onnx.ModelProto, Parity, Precision]:
    """Build and measure in ``order`` until one is well within ``tolerance``; return the best.

    ``answer_of``: how a graph is asked.
    Raises ConversionRefused with the figures where none is within it.
    """
    best: tuple[onnx.ModelProto, Parity, Precision] | None = None
    refusal: ConversionRefused | None = None
    for precision in order:
        try:
            model = build(precision)
            parity = compare(answer_of(model), native, inputs, tolerance)
        except ConversionRefused as error:
            refusal = refusal or error
            continue
        if best is None or _badness(parity) < _badness(best[1]):
            best = (model, parity, precision)
        if parity.is_within and parity.max_difference <= _HEADROOM * tolerance:
            break
    if best is None:
        raise refusal or ConversionRefused("nothing to convert")
    best[1].require()
    return best


def _badness(parity: Parity) -> tuple[int, float]:
    return parity.label_disagreements, parity.max_difference
