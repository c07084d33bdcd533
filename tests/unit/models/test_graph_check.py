"""The server's check of graph objects: what a hostile pusher may put into one."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.convert.onnx_file import package_onnx
from models.errors import LoadFailed
from models.graph_check import (
    MAX_IR_VERSION,
    MAX_OPSETS,
    check_graph,
    has_control_flow,
    parse_graph,
    reason_not_to_batch,
)
from models.runtime.ort_library import OrtError
from models.runtime.ort_session import Session, SessionConfig
from registry.manifest import Manifest, TensorEntry
from tests import graphs
from tests.hostile_graphs import doubling, nested
from tests.unit.models.test_onnx_file import hidden_in

HEX = "ab" * 32
SIZE = 64
MANIFEST = Manifest(
    model="m",
    graph="sha256:" + "0" * 64,
    tensors=(TensorEntry("sha256:" + HEX, SIZE),),
    signature={},
    runtime={"name": "onnx"},
)
GOOD = {"location": HEX, "offset": "0", "length": str(SIZE)}


def model_with(fields: dict[str, str], shape: tuple[int, ...] = (16,)) -> onnx.ModelProto:
    """Return a model whose initializer claims these external fields."""
    tensor = graphs.external_tensor("t", shape, fields)
    return graphs.build(
        [helper.make_node("Identity", ["t"], ["y"])],
        [],
        [graphs.value("y", TensorProto.FLOAT, None)],
        [tensor],
    )


def loads_in_runtime(model: onnx.ModelProto) -> bool:
    """Tell whether the shipped runtime takes a model."""
    try:
        Session(model.SerializeToString(), SessionConfig(1)).close()
    except OrtError:
        return False
    return True


class TestF05References:
    def test_what_the_pusher_packs_passes(self) -> None:
        """The two sides agree on what a graph object is."""
        package = package_onnx("m", graphs.big(1))
        graph = b"".join(package.objects[0].chunks())
        check_graph(parse_graph(graph), package.manifest)

    @pytest.mark.parametrize(
        "fields",
        [
            {"location": "../" + HEX},
            {"location": "/etc/passwd"},
            {"location": "cd" * 32},
            {"location": HEX.upper()},
            {"location": HEX + "\0"},
            {"location": "./" + HEX},
            {"offset": "-1"},
            {"offset": "4"},
            {"offset": " 0"},
            {"offset": str(2**64)},
            {"length": "0"},
            {"length": "60"},
            {"length": str(2**62)},
            {"prepacked_0": "K|0;8;x"},
            {"__class__": "x"},
        ],
        ids=str,
    )
    def test_f05_a_reference_must_be_an_object_of_the_manifest(
        self, fields: dict[str, str]
    ) -> None:
        """Only a listed digest, only bytes inside of it, only as many as the shape needs."""
        check_graph(model_with(GOOD), MANIFEST)
        with pytest.raises(LoadFailed, match=r"external|offset"):
            check_graph(model_with({**GOOD, **fields}), MANIFEST)

    def test_f07_fields_may_not_be_missing_or_twice(self) -> None:
        """Nothing is left to a reader's default."""
        for key in GOOD:
            fewer = {name: text for name, text in GOOD.items() if name != key}
            with pytest.raises(LoadFailed, match="once"):
                check_graph(model_with(fewer), MANIFEST)
        twice = model_with(GOOD)
        entry = twice.graph.initializer[0].external_data.add()
        entry.key, entry.value = "location", "../x"
        with pytest.raises(LoadFailed, match="once"):
            check_graph(twice, MANIFEST)

    @pytest.mark.parametrize("dims", [[2**62] * 300, [2**62, 2**62, 0], [0, *[2**62] * 3]])
    def test_f07_dimensions_past_any_memory_are_refused(self, dims: list[int]) -> None:
        """Before their product is made, whose thousands of digits no message can show."""
        model = model_with(GOOD)
        model.graph.initializer[0].ClearField("dims")
        model.graph.initializer[0].dims.extend(dims)
        with pytest.raises(LoadFailed, match="dimensions make more than"):
            check_graph(model, MANIFEST)

    def test_f05_blobs_that_a_kernel_would_take_unseen_are_refused(self) -> None:
        """Packed weights are built by the server alone: no upload may name any."""
        blob = {"prepacked_0": "MatMul+1|0;16;0"}
        with pytest.raises(LoadFailed, match="location, offset and length once"):
            check_graph(model_with(GOOD | blob), MANIFEST)

    def test_f07_tensors_may_share_all_of_their_bytes_not_some(self) -> None:
        """Tied weights are one slice under two names; slices side by side are fine too."""
        half = {**GOOD, "length": "32"}
        for offset, is_taken in (("0", True), ("32", True), ("16", False)):
            model = model_with({**half, "offset": "0"}, (8,))
            other = graphs.external_tensor("u", (8,), {**half, "offset": offset})
            model.graph.initializer.append(other)
            if is_taken:
                check_graph(model, MANIFEST)
                continue
            with pytest.raises(LoadFailed, match=r"'u': its external data overlaps that of .*'t'"):
                check_graph(model, MANIFEST)

    @pytest.mark.parametrize("place", ["tensor", "tensors", "sparse", "subgraph", "sparse_init",
                                       "function", "default"])  # fmt: skip
    def test_f05_a_reference_elsewhere_is_refused(self, place: str) -> None:
        """Even a listed object must not be named where no runtime here checks it."""
        tensor = graphs.external_tensor("t", (16,), GOOD)
        with pytest.raises(LoadFailed, match="initializers only"):
            check_graph(hidden_in(place, tensor), MANIFEST)

    def test_f05_a_tensor_that_only_half_claims_is_refused(self) -> None:
        """External fields on a tensor that says it has none may be read by one reader only."""
        model = model_with(GOOD)
        model.graph.initializer[0].data_location = TensorProto.DEFAULT
        with pytest.raises(LoadFailed, match="only, or none"):
            check_graph(model, MANIFEST)

    def test_training_graphs_are_refused(self) -> None:
        """They decide no answer and may hide tensors."""
        tensor = graphs.weights("t", np.zeros(1, np.float32))
        with pytest.raises(LoadFailed, match="training_info"):
            check_graph(hidden_in("training", tensor), MANIFEST)


class TestStructure:
    @pytest.mark.parametrize("domain", ["", "ai.onnx.ml"])
    def test_a17_the_newest_operator_set_is_the_runtimes(self, domain: str) -> None:
        """The limit says what the shipped runtime really takes, no less and no more."""
        newest = MAX_OPSETS[domain]
        for version, is_taken in ((newest, True), (newest + 1, False)):
            model = graphs.id32()
            if domain:
                model.opset_import.append(helper.make_opsetid(domain, version))
            else:
                model.opset_import[0].version = version
            assert loads_in_runtime(model) == is_taken
            if is_taken:
                check_graph(model, MANIFEST)
            else:
                with pytest.raises(LoadFailed, match=f"opset {version}"):
                    check_graph(model, MANIFEST)

    def test_the_newest_file_form_is_the_runtimes(self) -> None:
        """The same for the version of the file form."""
        for version, is_taken in ((MAX_IR_VERSION, True), (MAX_IR_VERSION + 1, False)):
            model = graphs.id32()
            model.ir_version = version
            assert loads_in_runtime(model) == is_taken
            if not is_taken:
                with pytest.raises(LoadFailed, match="IR version"):
                    check_graph(model, MANIFEST)

    def test_an_unknown_domain_is_refused(self) -> None:
        """No operator libraries are loaded, so an operator of one cannot be meant."""
        model = graphs.id32()
        model.graph.node[0].domain = "evil"
        with pytest.raises(LoadFailed, match="custom operators"):
            check_graph(model, MANIFEST)

    @pytest.mark.parametrize("field", ["op_type", "domain", "opset"])
    def test_text_that_is_not_utf8_is_refused(self, field: str) -> None:
        """The parser gives such text as bytes, which no comparison of ours expects."""
        model = graphs.id32()
        if field == "opset":
            model.opset_import.add(domain="QQQ", version=1)
        else:
            setattr(model.graph.node[0], field, "QQQ")
        data = model.SerializeToString().replace(b"QQQ", b"\xff\xfe\xfd")
        with pytest.raises(LoadFailed, match=r"UTF-8|unknown"):
            check_graph(parse_graph(data), MANIFEST)

    def test_functions_of_the_model_are_known_operators(self) -> None:
        """A domain that the model defines itself is no custom library."""
        check_graph(_calling("f", {"f": "Identity"}), MANIFEST)

    @pytest.mark.parametrize("bodies", [{"f": "f"}, {"f": "g", "g": "f"}])
    def test_recursive_functions_are_refused(self, bodies: dict[str, str]) -> None:
        """A function that calls itself, at once or around a corner, would expand for ever."""
        with pytest.raises(LoadFailed, match="calls itself"):
            check_graph(_calling("f", bodies), MANIFEST)

    @pytest.mark.parametrize("order", [1, -1])
    def test_functions_of_one_name_are_all_looked_at(self, order: int) -> None:
        """Whichever of two functions by one name is taken, none of them may close a circle."""
        model = _calling("f", {"f": "g", "g": "Identity"})
        twin = _calling("g", {"g": "f"}).functions[0]
        twin.overload = "other"
        twin.node[0].domain = "own"
        functions = [*model.functions, twin][::order]
        del model.functions[:]
        model.functions.extend(functions)
        with pytest.raises(LoadFailed, match="calls itself"):
            check_graph(model, MANIFEST)

    def test_f11_functions_that_unfold_without_end_are_refused(self) -> None:
        """Each calls the next one twice: 2^levels nodes, of a graph of a few kilobytes."""
        check_graph(doubling(12), MANIFEST)
        for levels in (18, 60, 1000):
            with pytest.raises(LoadFailed, match="unfold to more than 100000 nodes"):
                check_graph(doubling(levels), MANIFEST)

    def test_f11_deep_graphs_are_refused(self) -> None:
        """Ten thousand levels do not parse; what parses may nest only so deep."""
        model = graphs.id32()
        graph = model.graph
        for _ in range(20):
            node = graph.node.add(op_type="If", input=["c"], output=["o"])
            graph = node.attribute.add(name="g", type=onnx.AttributeProto.GRAPH).g
        with pytest.raises(LoadFailed, match="deeper than 16"):
            check_graph(model, MANIFEST)
        with pytest.raises(LoadFailed, match="not an ONNX model"):
            parse_graph(nested(10_000))

    def test_c14_a_thousand_damaged_graphs_are_refused_or_pass(self) -> None:
        """One flipped byte leads to an answer, never to another exception."""
        data = package_onnx("m", graphs.gemm()).objects[0]
        graph = bytearray(b"".join(data.chunks()))
        choice = random.Random(0)
        refused = 0
        for _ in range(1000):
            damaged = bytearray(graph)
            damaged[choice.randrange(len(graph))] ^= choice.randrange(1, 256)
            try:
                check_graph(parse_graph(bytes(damaged)), MANIFEST)
            except LoadFailed:
                refused += 1
        assert 0 < refused < 1000


class TestFacts:
    def test_control_flow_is_seen(self) -> None:
        """A loop makes the run time depend on the input."""
        assert has_control_flow(graphs.endless())
        assert not has_control_flow(graphs.id32())

    def test_operators_that_see_the_whole_batch_are_named(self) -> None:
        """Dynamic quantization has one scale for all rows."""
        assert "one scale" in str(reason_not_to_batch(graphs.dynamic_quantized()))
        assert reason_not_to_batch(graphs.gemm()) is None


def _calling(name: str, bodies: dict[str, str]) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", graphs.OPSET), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own",
            function,
            ["a"],
            ["b"],
            [helper.make_node(inner, ["a"], ["b"], domain="own" if inner in bodies else "")],
            opsets,
        )
        for function, inner in bodies.items()
    ]
    return graphs.build(
        [helper.make_node(name, ["x"], ["y"], domain="own")],
        [graphs.value("x", TensorProto.FLOAT, ("N",))],
        [graphs.value("y", TensorProto.FLOAT, ("N",))],
        functions=functions,
        domains=[("own", 1)],
    )
