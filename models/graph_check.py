"""The server's own check of a graph object, before any runtime sees it.

A graph comes from whoever may push. It may name only tensor objects of its own manifest, and only
as dense initializers; a runtime would follow any other name to a file of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import onnx
from google.protobuf.message import DecodeError

from models.errors import LoadFailed, ModelsError
from models.graph_functions import FunctionKey, check_functions, domain_of, functions_of
from models.graph_walk import is_external, scopes, tensor_bytes, tensors
from registry.ident import digest_hex, shown
from registry.manifest import Manifest

# The newest operator sets and file form that the shipped runtime computes; a test holds them to it.
MAX_OPSETS: Final[Mapping[str, int]] = {"": 28, "ai.onnx.ml": 5, "com.microsoft": 1}
MAX_IR_VERSION: Final = 14
# Object, first byte and length of one tensor's external data.
Slice: TypeAlias = tuple[str, int, int]
_NUMBER: Final = re.compile("[0-9]{1,19}")
_CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_RANDOM: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli"}
)  # fmt: skip


def parse_graph(data: bytes | bytearray) -> onnx.ModelProto:
    """Return the model of a graph object, or raise LoadFailed."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise LoadFailed("the graph is not an ONNX model, or it is damaged or truncated") from None
    return model


def check_graph(model: onnx.ModelProto, manifest: Manifest) -> None:
    """Raise LoadFailed unless the graph keeps to what the server computes and to its manifest."""
    check_structure(model, LoadFailed)
    if model.training_info:
        raise LoadFailed("training_info: a graph to serve must not have any")
    sizes = {digest_hex(entry.digest): entry.size_bytes for entry in manifest.tensors}
    slices: dict[Slice, str] = {}
    for found in tensors(model, LoadFailed):
        if not is_external(found.tensor):
            continue
        if not found.is_initializer:
            raise LoadFailed(f"{found.where}: external data is allowed in initializers only")
        slices.setdefault(_check_reference(found.tensor, found.where, sizes), found.where)
    _check_overlap(slices)


def check_structure(model: onnx.ModelProto, error: type[ModelsError]) -> None:
    """Raise ``error`` on a graph that no runtime here computes, whatever its tensors."""
    if not model.ir_version or not (model.graph.node or model.graph.output):
        raise error("not an ONNX model: it has no graph")
    if model.ir_version > MAX_IR_VERSION:
        raise error(
            f"IR version {model.ir_version} is newer than the runtime knows ({MAX_IR_VERSION}): "
            "export for an older one"
        )
    functions = functions_of(model)
    own_domains = {domain for domain, _ in functions}
    _check_opsets(model.opset_import, own_domains, error)
    for function in model.functions:
        _check_opsets(function.opset_import, own_domains, error)
    for scope in scopes(model, error):
        for node in scope.nodes:
            _check_domain(node, functions, error)
    check_functions(model, error)


def has_control_flow(model: onnx.ModelProto) -> bool:
    """Tell whether the graph branches or loops: its run time then depends on the input."""
    return any(node.op_type in _CONTROL_FLOW for node in _nodes(model))


def reason_not_to_batch(model: onnx.ModelProto) -> str | None:
    """Return why rows of different requests must not share a run, as far as operators tell."""
    for node in _nodes(model):
        if node.op_type.startswith("DynamicQuantize"):
            return f"{node.op_type} takes one scale for the whole batch"
        if node.op_type in _RANDOM:
            return f"{node.op_type} answers differently each time"
    return None


def _nodes(model: onnx.ModelProto) -> Iterable[onnx.NodeProto]:
    for scope in scopes(model, LoadFailed):
        yield from scope.nodes


def _check_opsets(
    imports: Iterable[onnx.OperatorSetIdProto], own_domains: set[str], error: type[ModelsError]
) -> None:
    for entry in imports:
        domain = domain_of(entry.domain)
        newest = MAX_OPSETS.get(domain)
        if newest is not None and entry.version > newest:
            raise error(
                f"opset {entry.version} of {domain or 'ai.onnx'} is newer than the runtime "
                f"computes ({newest}): export with an older one"
            )
        if newest is None and domain not in own_domains and not _is_unused(domain):
            raise error(f"operator domain {shown(domain)} is unknown: custom operators are not run")


def _is_unused(domain: str) -> bool:
    # Exporters declare these without using them; a node that does is refused by itself.
    return domain.startswith(("ai.onnx.", "com.microsoft.", "com.ms.", "org.pytorch.", "pkg."))


def _check_domain(
    node: onnx.NodeProto, functions: set[FunctionKey], error: type[ModelsError]
) -> None:
    domain = domain_of(node.domain)
    if type(node.op_type) is not str:
        raise error(f"operator {shown(node.op_type)}: its name is not UTF-8")
    if domain not in MAX_OPSETS and (domain, node.op_type) not in functions:
        raise error(
            f"operator {shown(node.op_type)} of domain {shown(domain)} is unknown: "
            "custom operators are not run"
        )


def _check_reference(tensor: onnx.TensorProto, where: str, sizes: Mapping[str, int]) -> Slice:
    # Bytes where the text is not UTF-8: no key, name or number that is looked for.
    fields = {str(entry.key): str(entry.value) for entry in tensor.external_data}
    if len(fields) != len(tensor.external_data) or set(fields) != {"location", "offset", "length"}:
        raise LoadFailed(f"{where}: its external data must have location, offset and length once")
    if tensor.data_location != onnx.TensorProto.EXTERNAL or tensor.HasField("raw_data"):
        raise LoadFailed(f"{where}: it must have external data only, or none")
    size = sizes.get(fields["location"])
    if size is None:
        raise LoadFailed(
            f"{where}: external location {shown(fields['location'])} is no tensor of the manifest"
        )
    if not (_NUMBER.fullmatch(fields["offset"]) and _NUMBER.fullmatch(fields["length"])):
        raise LoadFailed(f"{where}: offset and length of its external data must be numbers from 0")
    offset, length = int(fields["offset"]), int(fields["length"])
    expected = tensor_bytes(tensor, where, LoadFailed)
    if length != expected:
        raise LoadFailed(
            f"{where}: external length {length} disagrees with its shape, which needs {expected}"
        )
    if offset + length > size:
        raise LoadFailed(
            f"{where}: external data ends at byte {offset + length} of an object of {size} bytes"
        )
    return fields["location"], offset, length


def _check_overlap(slices: Mapping[Slice, str]) -> None:
    """Refuse tensors that share some of their bytes; sharing all of them is tied weights."""
    end, location, before = 0, "", ""
    for (name, offset, length), where in sorted(slices.items()):
        if not length:
            continue
        if name == location and offset < end:
            raise LoadFailed(f"{where}: its external data overlaps that of {before}")
        end, location, before = offset + length, name, where
