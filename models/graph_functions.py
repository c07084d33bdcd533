"""The functions that a graph brings along: none calls itself, and all of them unfold to few nodes.

A runtime replaces each call by the function's body. Sixty functions of which each calls the next
one twice are four kilobytes, and more nodes than any machine can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import onnx

from models.errors import ModelsError
from models.graph_walk import scopes
from registry.ident import shown

# Ten times what exporters that write each layer as a function bring; unfolding takes seconds.
MAX_UNFOLDED_NODES: Final = 100_000

# Domain and name. The overload is left out: a runtime may take any function of that name.
FunctionKey: TypeAlias = tuple[str, str]
Calls: TypeAlias = dict[FunctionKey, dict[FunctionKey, int]]


def domain_of(domain: str) -> str:
    """Return one spelling of the standard domain, which has two."""
    # Text that is not UTF-8 comes out of the parser as bytes: no domain that anybody knows.
    domain = str(domain)
    return "" if domain == "ai.onnx" else domain


def functions_of(model: onnx.ModelProto) -> set[FunctionKey]:
    """Return what the model's own functions are called by."""
    return {(domain_of(f.domain), f.name) for f in model.functions}


def check_functions(model: onnx.ModelProto, error: type[ModelsError]) -> None:
    """Raise ``error`` where functions call themselves, or unfold to more than they may."""
    functions = functions_of(model)
    if not functions:
        return
    own: dict[FunctionKey, int] = dict.fromkeys(functions, 0)
    calls: Calls = {key: {} for key in functions}
    for function in model.functions:
        key = (domain_of(function.domain), function.name)
        alone = onnx.ModelProto()
        alone.functions.add().CopyFrom(function)
        # Of several functions by one name each may be the one that is taken.
        for called in _called(alone, error):
            own[key] += 1
            if called in functions:
                calls[key][called] = calls[key].get(called, 0) + 1
    sizes = _sizes(own, calls, error)
    total = sum(sizes.get(called, 1) for called in _called_outside(model, error))
    if total > MAX_UNFOLDED_NODES:
        raise error(f"its functions unfold to more than {MAX_UNFOLDED_NODES} nodes")


def _sizes(
    own: Mapping[FunctionKey, int], calls: Calls, error: type[ModelsError]
) -> dict[FunctionKey, int]:
    """Return how many nodes each function unfolds to; those that call no other come first."""
    left = dict(calls)
    sizes: dict[FunctionKey, int] = {}
    while left:
        done = [key for key, called in left.items() if not called.keys() & left.keys()]
        if not done:
            raise error(f"function {shown(min(left)[1])} calls itself")
        for key in done:
            more = sum(count * (sizes[name] - 1) for name, count in left[key].items())
            # What is too much once is not counted further: the numbers would double at each level.
            sizes[key] = min(own[key] + max(more, 0), MAX_UNFOLDED_NODES + 1)
        for key in done:
            del left[key]
    return sizes


def _called(model: onnx.ModelProto, error: type[ModelsError]) -> Iterator[FunctionKey]:
    for scope in scopes(model, error):
        for node in scope.nodes:
            yield domain_of(node.domain), node.op_type


def _called_outside(model: onnx.ModelProto, error: type[ModelsError]) -> Iterator[FunctionKey]:
    """Yield what the graph itself calls, not what functions do."""
    for scope in scopes(model, error):
        if scope.function is None and not scope.where.startswith("function "):
            for node in scope.nodes:
                yield domain_of(node.domain), node.op_type
