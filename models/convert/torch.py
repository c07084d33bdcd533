"""PyTorch: exported programs (``.pt2``) and TorchScript archives to ONNX. Runs in a child process.

Exported programs go through the exporter that PyTorch maintains. That one refuses TorchScript,
which has only the old exporter left; PyTorch calls it deprecated, and it may go some day.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from models.convert.archive import EXPORT_ADVICE
from models.convert.network_child import Opened
from models.convert.network_rows import in_chunks
from models.convert.networks import Order
from models.convert.sample import Sample
from models.convert.trees import library_versions
from models.errors import ConversionRefused
from models.parity import Answer, Inputs
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.ident import shown

_OLD_OPSET: Final = 18
_SAID_CHARACTERS: Final = 300


def export(order: Order, sample: Sample | None, graph: Path) -> Opened:
    """Write the graph of an archive, with large weights beside it. Raises ConversionRefused."""
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build = _exported_program if order.found == "pt2" else _torchscript
        native, example = build(order.path, sample, graph)
    return Opened(native, example, "torch", dict(library_versions("torch", "onnxscript")))


def _exported_program(path: Path, _: Sample | None, graph: Path) -> tuple[Answer, Inputs | None]:
    # By its handle: PyTorch goes by the name of a path, and this file may have any.
    with path.open("rb") as file:
        program = _opened(path, lambda: torch.export.load(file))
    call = program.module_call_graph[0].signature
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    count = len(program.graph_signature.user_inputs)
    if call is None or len(names) != count or not names:
        raise ConversionRefused(
            f"{shown(path.name)}: it takes something else than tensors: {EXPORT_ADVICE}"
        )
    example = _example(program, names)
    _refuse_shared(path, program, names, example)
    keywords = _keywords(call.in_spec)
    outputs = _distinct(
        _output_names(call.out_spec, len(program.graph_signature.user_outputs)), names
    )
    _convert(path, lambda: _dynamo(program, outputs, graph))
    module = program.module()
    first = len(names) - len(keywords)
    native = _native(
        lambda given: module(
            *given[:first], **dict(zip(keywords, given[first:], strict=True))
        ), names, outputs,
    )  # fmt: skip
    return native, example


def _refuse_shared(path: Path, program: Any, names: Sequence[str], example: Inputs | None) -> None:
    """Refuse a program that takes one input for another.

    Exported with one and the same tensor for two arguments, it reads one of them in both places.
    """
    unused = [node.name for node in program.graph.nodes if node.name in names and not node.users]
    for name in unused if example is not None else ():
        for other in names:
            if other not in unused and np.array_equal(example[name], example[other]):  # type: ignore[index]
                raise ConversionRefused(
                    f"{shown(path.name)}: it never reads input {name!r}, and its example for it is "
                    f"that of {other!r}: export it again with another tensor for each argument"
                )


def _dynamo(program: Any, outputs: Sequence[str], graph: Path) -> None:
    converted: Any = torch.onnx.export(
        program, (), dynamo=True, verbose=False, output_names=list(outputs), external_data=True
    )
    converted.save(str(graph), external_data=True)


def _keywords(in_spec: Any) -> list[str]:
    positional, keyword = in_spec.children()
    leaves = (*positional.children(), *keyword.children())
    if any(leaf.num_leaves != 1 or leaf.num_children for leaf in leaves):
        raise ConversionRefused(
            "its inputs are nested lists or dictionaries: export it with one argument each tensor"
        )
    return [str(name) for name in keyword.context or ()]


def _output_names(out_spec: Any, count: int) -> list[str]:
    """Return the keys of a dictionary; "output", or "output_0" and so on, for anything else."""
    if out_spec.type is dict and out_spec.num_children == count:
        return [str(key) for key in out_spec.context]
    return _numbered(count)


def _distinct(outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Return the names of outputs, changed where an input has the same: a graph holds it once."""
    return [f"{name}_out" if name in inputs else name for name in outputs]


def _numbered(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def _example(program: Any, names: Sequence[str]) -> Inputs | None:
    if program.example_inputs is None:
        return None
    positional, keyword = program.example_inputs
    values = (*positional, *keyword.values())
    if len(values) != len(names) or not all(isinstance(v, torch.Tensor) for v in values):
        return None
    return {name: _array(value) for name, value in zip(names, values, strict=True)}


def _torchscript(path: Path, sample: Sample | None, graph: Path) -> tuple[Answer, Inputs | None]:
    with path.open("rb") as file:
        # Traced modules hold the shapes of what they were traced with.
        module: Any = _opened(
            path, lambda: torch.jit.load(file, map_location="cpu", _restore_shapes=True)
        )
    module.eval()
    parameters = list(module.forward.schema.arguments)[1:]
    for parameter in parameters:
        if str(parameter.type) != "Tensor":
            raise ConversionRefused(
                f"{shown(path.name)}: argument {parameter.name!r} of forward is "
                f"{parameter.type}: only tensors can be served"
            )
    names = [str(parameter.name) for parameter in parameters]
    if not names:
        raise ConversionRefused(f"{shown(path.name)}: its forward takes no tensors")
    traced = _traced(module, names)
    tries = [traced] if traced is not None else _from_sample(path, names, sample)
    example, outputs = _accepted(path, module, tries)
    arguments = tuple(torch.from_numpy(example[name]) for name in names)
    rows = {name: {0: "rows"} for name in names if example[name].ndim}
    _convert(path, lambda: torch.onnx.export(
        module, arguments, str(graph), dynamo=False, opset_version=_OLD_OPSET, input_names=names,
        output_names=outputs, dynamic_axes=rows | {name: {0: "rows"} for name in outputs},
    ))  # fmt: skip
    return _native(lambda given: module(*given), names, outputs), example


def _traced(module: Any, names: Sequence[str]) -> Inputs | None:
    """Return zeros as a traced module took them, two rows of them where one was taken."""
    types = [value.type() for value in list(module.graph.inputs())[1:]]
    if any(kind.kind() != "TensorType" or kind.sizes() is None for kind in types):
        return None
    found = {}
    for name, kind in zip(names, types, strict=True):
        found[name] = torch.zeros(kind.sizes(), dtype=kind.dtype() or torch.float32).numpy()
    return found


def _from_sample(path: Path, names: Sequence[str], sample: Sample | None) -> list[Inputs]:
    """Return what a sample may mean to a scripted module, which says nothing of its inputs."""
    if sample is None:
        raise ConversionRefused(
            f"{shown(path.name)}: a scripted module does not say what shapes it takes: give rows "
            f"with --sample FILE, columns named {', '.join(names)}; or {EXPORT_ADVICE}"
        )
    guesses: list[Inputs] = []
    refusal: ConversionRefused | None = None
    for datatype in (None, "FP32", "INT64"):
        specs = tuple(_spec(name, names, sample, datatype) for name in names)
        try:
            inputs = sample.inputs(Signature(specs, ()))
        except ConversionRefused as error:
            refusal = refusal or error
            continue
        guesses.append({name: array[:2] for name, array in inputs.items()})
    if not guesses and refusal is not None:
        raise refusal
    return guesses


def _spec(name: str, names: Sequence[str], sample: Sample, datatype: str | None) -> TensorSpec:
    cells = sample.columns.get(name)
    if cells is None and len(names) == 1:  # a table: all columns are one matrix
        return TensorSpec(name, datatype or "FP32", (-1, len(sample.columns)))
    first = np.asarray(cells[0] if cells else 0, dtype=object)
    shape, flat = first.shape, first.ravel().tolist()
    is_whole = all(isinstance(cell, int | str) and _is_int(cell) for cell in flat)
    return TensorSpec(name, datatype or ("INT64" if is_whole else "FP32"), (-1, *shape))


def _is_int(cell: int | str) -> bool:
    try:
        int(cell)
    except ValueError:
        return False
    return True


def _accepted(path: Path, module: Any, tries: Sequence[Inputs]) -> tuple[Inputs, list[str]]:
    """Return the first inputs that the module takes, with two rows if it can, and its outputs."""
    refusal = ""
    for inputs in tries:
        twice = {n: np.concatenate([a, a]) if a.shape[:1] == (1,) else a for n, a in inputs.items()}
        for each in (twice, inputs):
            try:
                with _no_gradient():
                    result = module(*(torch.from_numpy(array) for array in each.values()))
            # The program of the file runs here, which may raise anything at all.
            except Exception as error:  # noqa: BLE001
                refusal = refusal or _reason(error)
                continue
            return dict(each), _distinct(_result_names(path, result), list(inputs))
    raise ConversionRefused(f"{shown(path.name)}: it refuses the rows given: {refusal}")


def _result_names(path: Path, result: Any) -> list[str]:
    if isinstance(result, Mapping):
        return [str(key) for key in result]
    flat = _flat(result)
    if not all(isinstance(value, torch.Tensor) for value in flat):
        raise ConversionRefused(f"{shown(path.name)}: it answers something else than tensors")
    return _numbered(len(flat))


def _flat(result: Any) -> list[Any]:
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, list | tuple):
        return [leaf for each in result for leaf in _flat(each)]
    return [result]


def _native(
    call: Callable[[list[torch.Tensor]], Any], names: Sequence[str], outputs: Sequence[str]
) -> Answer:
    def once(inputs: Inputs) -> list[Array]:
        given = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in names]
        try:
            with _no_gradient():
                return [_array(value) for value in _flat(call(given))]
        except Exception as error:
            raise ConversionRefused(f"PyTorch refuses the rows: {_reason(error)}") from error

    return in_chunks(once, outputs)


def _no_gradient() -> AbstractContextManager[None]:
    guard: AbstractContextManager[None] = torch.no_grad()
    return guard


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu().contiguous().numpy())


def _opened(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    # Opening runs the file's own code and a reader of many kinds of damage.
    except Exception as error:
        raise ConversionRefused(
            f"{shown(path.name)} cannot be opened by PyTorch {torch.__version__}, it may be "
            f"damaged, or of a newer release: {_reason(error)}"
        ) from error


def _convert(path: Path, run: Callable[[], None]) -> None:
    try:
        run()
    except Exception as error:
        while error.__cause__ is not None:  # the first of the chain says what it is
            error = error.__cause__  # type: ignore[assignment]
        raise ConversionRefused(
            f"{shown(path.name)}: PyTorch has no graph for it: {_reason(error)}"
        ) from error


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line for line in lines if not line.startswith(("Traceback", "File "))), "")
    return f"{type(error).__name__}: {text}"[:_SAID_CHARACTERS]
