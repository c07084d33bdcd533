"""Keras files and TensorFlow's SavedModel folders to ONNX. Runs in a child process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnx import helper

from models.convert.network_child import Opened
from models.convert.network_rows import in_chunks
from models.convert.networks import Order
from models.convert.sample import Sample
from models.convert.trees import library_versions
from models.errors import ConversionRefused
from models.parity import Answer, Inputs
from models.servable import Array
from registry.ident import shown

_OPSET: Final = 18
_SAID_CHARACTERS: Final = 300
# Before it, safe mode did not hold for .h5 (CVE-2025-9905) and let a file name vocabularies
# anywhere on the machine, and weights took any size that a file declared (GHSA-xfhx-r7ww-5995).
_SAFE_KERAS: Final = (3, 12, 1)
_SIGNATURE: Final = "serving_default"
# From this many bytes on a weight lies beside the graph.
_EXTERNAL_BYTES: Final = 1024

_Call: TypeAlias = Callable[..., Sequence[Any]]
# Specs of the inputs, names of the outputs, and how they follow from the inputs.
_Parts: TypeAlias = tuple[list[Any], list[str], _Call]


def export(order: Order, _: Sample | None, graph: Path) -> Opened:
    """Write the graph of a model, with its weights beside it. Raises ConversionRefused."""
    logging.disable(logging.ERROR)
    if keras.backend.backend() != "tensorflow":
        raise ConversionRefused(
            f"Keras runs on {keras.backend.backend()} here: set KERAS_BACKEND=tensorflow"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if order.found == "savedmodel":
            specs, names, call = _saved_model(order.path)
        else:
            specs, names, call = _keras_file(order.path, order.is_code_trusted)
        outputs = [f"{name}_out" if name in {s.name for s in specs} else name for name in names]
        _write(order.path, specs, outputs, call, graph)
    libraries = dict(library_versions("tensorflow", "tensorflow-cpu", "keras", "tf2onnx"))
    return Opened(_native(call, specs, outputs), _example(specs), "tensorflow", libraries)


def _keras_file(path: Path, is_code_trusted: bool) -> _Parts:
    least = ".".join(map(str, _SAFE_KERAS))
    if not is_code_trusted and _release(keras.__version__) < _SAFE_KERAS:
        raise ConversionRefused(
            f"Keras {keras.__version__} may run code of the file unasked: take {least} or newer, "
            "or, if you trust the file, use --trust-code"
        )
    try:
        model: Any = keras.models.load_model(path, compile=False, safe_mode=not is_code_trusted)
    # Layers are built from what the file says, which may go wrong in any way.
    except Exception as error:
        text = str(error)
        if "Lambda" in text and not is_code_trusted:
            raise ConversionRefused(
                f"{shown(path.name)} has a Lambda layer, which is Python code: if you trust the "
                "file, use --trust-code; better, write what it does with layers or keras.ops"
            ) from error
        raise ConversionRefused(
            f"{shown(path.name)} cannot be opened by Keras {keras.__version__}, it may be damaged, "
            f"hold weights only, or need layers of your own: {_reason(error)}"
        ) from error
    if not getattr(model, "inputs", None):
        raise ConversionRefused(
            f"{shown(path.name)}: the model does not say what it takes: save it with "
            'model.export("FOLDER") and push that folder'
        )
    specs = [tf.TensorSpec(each.shape, each.dtype, name=_plain(each.name)) for each in model.inputs]
    # Sequential models have one input, and no attribute for how inputs nest.
    is_plain = isinstance(model, keras.Sequential)
    structure = model.inputs[0] if is_plain else model.input

    def call(*values: Any) -> Sequence[Any]:
        given = keras.tree.pack_sequence_as(structure, values)
        return [tf.convert_to_tensor(v) for v in keras.tree.flatten(model(given, training=False))]

    count = len(model.outputs)
    found = [model.layers[-1].name] if is_plain else getattr(model, "output_names", [])
    names = [_plain(name) for name in found]
    if len(names) != count or len(set(names)) != count:
        names = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    return specs, names, call


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _saved_model(path: Path) -> _Parts:
    try:
        loaded: Any = tf.saved_model.load(str(path))
    except Exception as error:
        raise ConversionRefused(
            f"{shown(path.name)} cannot be opened by TensorFlow {tf.__version__}, it may be "
            f"damaged: {_reason(error)}"
        ) from error
    signatures = dict(loaded.signatures)
    if _SIGNATURE not in signatures:
        raise ConversionRefused(
            f"{shown(path.name)} has no signature {_SIGNATURE!r}, which names its inputs and "
            f"outputs; it has {', '.join(sorted(signatures)) or 'none'}: save it with "
            "signatures=... or model.export"
        )
    function = signatures[_SIGNATURE]
    arguments = function.structured_input_signature[1]
    keys = list(arguments)
    names = sorted(function.structured_outputs)
    specs = [
        tf.TensorSpec(arguments[key].shape, arguments[key].dtype, name=_plain(key)) for key in keys
    ]

    def call(*values: Any) -> Sequence[Any]:
        # The signature holds its variables only as long as what was loaded lives.
        result = loaded.signatures[_SIGNATURE](**dict(zip(keys, values, strict=True)))
        return [result[name] for name in names]

    return specs, [_plain(name) for name in names], call


def _plain(name: str) -> str:
    return name.partition(":")[0].replace("/", "_")


def _write(
    path: Path, specs: Sequence[Any], outputs: Sequence[str], call: _Call, graph: Path
) -> None:
    for spec in specs:
        if spec.shape.rank is None:
            raise ConversionRefused(f"{shown(path.name)}: input {spec.name!r} has no known rank")
    try:
        model, _ = tf2onnx.convert.from_function(
            tf.function(lambda *values: list(call(*values)), autograph=False),
            input_signature=list(specs), opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])},
        )  # fmt: skip
    except Exception as error:
        raise ConversionRefused(
            f"{shown(path.name)}: tf2onnx has no graph for it: {_reason(error)}"
        ) from error
    # What it does not know it passes on under the name that TensorFlow has for it.
    foreign = sorted({n.op_type for n in model.graph.node if not _is_known(n)})
    if foreign:
        raise ConversionRefused(
            f"{shown(path.name)}: tf2onnx knows no operator for {', '.join(foreign)}"
        )
    _rename(model.graph, [spec.name for spec in specs], outputs)
    _open_rows(model.graph, specs)
    onnx.save_model(
        model, str(graph), save_as_external_data=True, all_tensors_to_one_file=True,
        location=f"{graph.name}.data", size_threshold=_EXTERNAL_BYTES,
    )  # fmt: skip


def _erfc(_: Any, node: Any, name: str, __: Any) -> Any:
    """Give ``1 - erf(x)``, which is what exact GELU is made of; tf2onnx lacks it."""
    node.domain = ""
    node.type = "Erf"
    graph = node.graph
    one = graph.make_const(f"{name}_one", np.ones((), np.float32)).output[0]
    consumers = graph.find_output_consumers(node.output[0])
    result = graph.make_node("Sub", [one, node.output[0]])
    for consumer in consumers:
        graph.replace_input(consumer, node.output[0], result.output[0])
    return result


def _is_known(node: onnx.NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return True  # the runtime says whether it knows it
    try:
        onnx.defs.get_schema(node.op_type, _OPSET, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _rename(graph: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the graph's own inputs and outputs the names that the model has for them."""
    for value, name in zip(graph.input, inputs, strict=True):
        if value.name != name:
            graph.node.insert(0, helper.make_node("Identity", [name], [value.name]))
            value.name = name
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name != name:
            graph.node.append(helper.make_node("Identity", [value.name], [name]))
            value.name = name


def _open_rows(graph: onnx.GraphProto, specs: Sequence[Any]) -> None:
    """Say of every open first dimension that it is the rows."""
    for value, spec in zip(graph.input, specs, strict=True):
        if spec.shape.rank and spec.shape[0] is None:
            value.type.tensor_type.shape.dim[0].dim_param = "rows"


def _native(call: _Call, specs: Sequence[Any], outputs: Sequence[str]) -> Answer:
    def once(inputs: Inputs) -> list[Array]:
        try:
            values = [tf.constant(inputs[spec.name], dtype=spec.dtype) for spec in specs]
            return [np.asarray(each.numpy()) for each in call(*values)]
        except Exception as error:
            raise ConversionRefused(f"TensorFlow refuses the rows: {_reason(error)}") from error

    return in_chunks(once, outputs)


def _example(specs: Sequence[Any]) -> Inputs | None:
    """Return zeros for a model whose shapes are all closed."""
    if not all(spec.shape.is_fully_defined() for spec in specs):
        return None
    return {s.name: np.zeros(s.shape.as_list(), s.dtype.as_numpy_dtype) for s in specs}


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_SAID_CHARACTERS]
