"""Packing itself, with the real runtime: what is written, laid out and answered."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.child import InspectionChild, Limits
from models.compare_child import compare
from models.errors import LoadFailed
from models.graph_shape import shape_of
from models.memory import anonymous_bytes, trim
from models.pack_child import compact, pack
from models.package import Package
from models.packed_object import PAGE_BYTES, PackedObject, Part, chunks_of, parse_packed_object
from models.runtime.onnx import OnnxServable, open_session
from models.signature import parse_signature
from models.synthetic import first_inputs, make_inputs
from registry.ident import digest_hex
from registry.manifest import JsonObject
from registry.packed import PackedTensor, parse_packed_tensor
from tests import graphs
from tests.unit.models.conftest import MIB, Shelf


def lstm() -> onnx.ModelProto:
    """Two tensors of one node, each with a blob of its own."""
    size = 512
    random = np.random.default_rng(0)
    table = [random.standard_normal((1, 4 * size, size), dtype=np.float32) / 32 for _ in "wr"]
    return graphs.build(
        [
            helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=size),
            helper.make_node("Squeeze", ["h", "first"], ["y"]),
        ],
        [graphs.value("x", TensorProto.FLOAT, (4, "N", size))],
        [graphs.value("y", TensorProto.FLOAT, ("N", size))],
        [
            graphs.weights("w", table[0]),
            graphs.weights("r", table[1]),
            graphs.weights("first", np.array([0], np.int64)),
        ],
    )


def quantized() -> onnx.ModelProto:
    """8 bit weights, the input quantized while it runs."""
    table = np.random.default_rng(0).integers(-127, 127, (2048, 2048)).astype(np.int8)
    return graphs.build(
        [
            helper.make_node(
                "DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], domain="com.microsoft"
            )
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", 2048))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 2048))],
        [
            graphs.weights("w", table),
            graphs.weights("s", np.array(1e-3, np.float32)),
            graphs.weights("z", np.array(0, np.int8)),
        ],
        domains=[("com.microsoft", 1)],
    )


def four_bits() -> onnx.ModelProto:
    """4 bit weights in blocks of 32, two in a byte."""
    size, block = 2048, 32
    random = np.random.default_rng(0)
    return graphs.build(
        [
            helper.make_node(
                "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
                K=size, N=size, bits=4, block_size=block, accuracy_level=4,
            )
        ],
        [graphs.value("x", TensorProto.FLOAT, ("N", size))],
        [graphs.value("y", TensorProto.FLOAT, ("N", size))],
        [
            graphs.weights(
                "w", random.integers(0, 255, (size, size // block, block // 2)).astype(np.uint8)
            ),
            graphs.weights("s", random.random(size * size // block, dtype=np.float32) / 100),
        ],
        domains=[("com.microsoft", 1)],
    )  # fmt: skip


def convolution() -> onnx.ModelProto:
    """Weights that are moved into blocks of the processor's width, without a blob."""
    table = np.random.default_rng(0).standard_normal((512, 256, 3, 3), dtype=np.float32) / 64
    return graphs.build(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [graphs.value("x", TensorProto.FLOAT, ("N", 256, 5, 5))],
        [graphs.value("y", TensorProto.FLOAT, ("N", 512, 3, 3))],
        [graphs.weights("w", table)],
    )


def transposed() -> onnx.ModelProto:
    """A Gemm that reads its weights transposed."""
    model = graphs.layers(1, 2, operator="Gemm")
    for node in model.graph.node:
        if node.op_type == "Gemm":
            node.attribute.append(helper.make_attribute("transB", 1))
    return model


KINDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "MatMul": lambda: graphs.layers(1, 2),
    "Gemm": transposed,
    "LSTM": lstm,
    "Conv": convolution,
    "DynamicQuantizeMatMul": quantized,
    "MatMulNBits": four_bits,
}


@dataclass(frozen=True)
class Packed:
    """What packing made of a package, its objects on the shelf."""

    package: Package
    graph: Path
    found: JsonObject

    @property
    def resident(self) -> dict[str, int]:
        resident = self.found["resident"]
        assert isinstance(resident, dict)
        return {str(digest): int(str(count)) for digest, count in resident.items()}

    @property
    def tensors(self) -> list[PackedTensor]:
        described = self.found["tensors"]
        assert isinstance(described, list)
        return [parse_packed_tensor(item) for item in described]

    @property
    def new_objects(self) -> int:
        described = self.found["objects"]
        assert isinstance(described, list)
        return len(described)


def packed_on(
    shelf: Shelf, folder: Path, model: onnx.ModelProto, known: Sequence[PackedTensor] = ()
) -> Packed:
    package = shelf.put(model)
    graph, data = folder / "graph.part", folder / "data.part"
    found = pack(
        package.manifest, shelf.objects_dir,
        threads=1, graph_path=graph, data_path=data, known=known,
    )  # fmt: skip
    described = found["objects"]
    assert isinstance(described, list)
    with data.open("rb") as file:
        for item in map(parse_packed_object, described):
            path = shelf.objects_dir / digest_hex(item.digest)
            path.write_bytes(b"".join(item.chunks(file.fileno())))
    target = shelf.objects_dir / ("0" * 64)
    target.write_bytes(graph.read_bytes())
    return Packed(package, target, found)


class TestPacking:
    @pytest.mark.parametrize("kind", KINDS)
    def test_answers_stay_bit_for_bit_and_memory_is_mapped(
        self, shelf: Shelf, tmp_path: Path, kind: str
    ) -> None:
        """The same kernels compute on the same bytes, which no process copies any more."""
        packed = packed_on(shelf, tmp_path, KINDS[kind]())
        manifest = packed.package.manifest
        signature = parse_signature(manifest.signature)
        plain = shelf.load(packed.package)
        trim()
        before = anonymous_bytes()
        session = open_session(packed.graph, 1, is_packed=True)
        trim()
        assert anonymous_bytes() - before < 0.2 * manifest.weight_bytes
        servable = OnnxServable(session, signature)
        style, _ = first_inputs(plain.run, signature)
        for rows in (1, 3, 32):
            inputs = make_inputs(signature, style, rows)
            for left, right in zip(plain.run(inputs), servable.run(inputs), strict=True):
                assert np.array_equal(left, right)

    def test_versions_share_the_objects_of_shared_layers(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """All but one layer equal: all but one packed object equal."""
        folders = [tmp_path / name for name in "ab"]
        for folder in folders:
            folder.mkdir()
        one = packed_on(shelf, folders[0], graphs.layers(1, 2, 3))
        two = packed_on(shelf, folders[1], graphs.layers(1, 2, 4))
        assert len(one.resident) == len(two.resident) == 3
        assert len(one.resident.keys() & two.resident.keys()) == 2
        assert one.resident == packed_on(shelf, folders[0], graphs.layers(1, 2, 3)).resident

    def test_serving_reads_the_blobs_alone(self, shelf: Shelf, tmp_path: Path) -> None:
        """The tensor behind the blobs is read at a load only, so it need not stay in memory."""
        packed = packed_on(shelf, tmp_path, graphs.layers(1))
        ((digest, served_bytes),) = packed.resident.items()
        size = (shelf.objects_dir / digest_hex(digest)).stat().st_size
        assert (served_bytes, size) == (4 * MIB, 8 * MIB)
        session = open_session(packed.graph, 1, is_packed=True)
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split() for line in lines if digest_hex(digest) in line]
        assert [int(span[2], 16) for span in spans] == [0]
        low, high = (int(end, 16) for end in spans[0][0].split("-"))
        assert high - low == served_bytes
        del session

    def test_a_tensor_that_is_read_as_it_is_stays_whole(self, shelf: Shelf, tmp_path: Path) -> None:
        """Tied weights: a kernel packs them, another gathers rows of them."""
        model = graphs.layers(1)
        model.graph.node.append(helper.make_node("Gather", ["w0", "idx"], ["rows"]))
        model.graph.input.append(graphs.value("idx", TensorProto.INT64, ("N",)))
        model.graph.output.append(graphs.value("rows", TensorProto.FLOAT, ("N", 1024)))
        packed = packed_on(shelf, tmp_path, model)
        assert list(packed.resident.values()) == [8 * MIB]

    def test_a_table_keeps_the_object_it_has(self, shelf: Shelf, tmp_path: Path) -> None:
        """What no kernel packs is not written a second time."""
        packed = packed_on(shelf, tmp_path, graphs.big(4))
        table = packed.package.manifest.tensors[0]
        assert packed.found["objects"] == []
        assert packed.found["resident"] == {table.digest: table.size_bytes}
        assert [tensor.object for tensor in packed.tensors] == [table.digest]
        assert (tmp_path / "data.part").stat().st_size == 0

    def test_a_blob_that_is_damaged_or_elsewhere_is_never_used(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """The runtime compares: a wrong offset or length fails the load, not an answer."""
        packed = packed_on(shelf, tmp_path, graphs.layers(1))
        model = onnx.load_model(packed.graph, load_external_data=False)
        (entry,) = [
            entry for entry in model.graph.initializer[0].external_data
            if entry.key == "prepacked_0"
        ]  # fmt: skip
        kernel, place = entry.value.split("|")
        _, length, flag = place.split(";")
        for lie in (f"{PAGE_BYTES};{length}", f"0;{2 * int(length) + 1}", f"{1 << 40};{length}"):
            entry.value = f"{kernel}|{lie};{flag}"
            packed.graph.write_bytes(model.SerializeToString())
            with pytest.raises(LoadFailed):
                open_session(packed.graph, 1, is_packed=True)

    @pytest.mark.slow
    def test_a_write_that_fails_is_an_error(self, shelf: Shelf, tmp_path: Path) -> None:
        """As on a full disk: what could not be written is no packed version."""
        package = shelf.put(graphs.layers(1, 2))
        request: JsonObject = {
            "task": "pack",
            "is_compact": False,
            "graph_path": str(tmp_path / "graph.part"),
            "data_path": str(tmp_path / "data.part"),
            "known": [],
        }
        limits = Limits(memory_bytes=256 * MIB, timeout_s=60.0, threads=1)
        with (
            InspectionChild(package.manifest, shelf.objects_dir, file_bytes=10 * MIB) as child,
            pytest.raises(LoadFailed, match=r"ended with|refuses|killed by SIGXFSZ"),
        ):
            child.ask(request, limits)


class TestReuse:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_version_whose_tensors_are_all_known_packs_nothing(
        self, shelf: Shelf, tmp_path: Path, kind: str
    ) -> None:
        """It gets the same graph over the same objects as by packing it anew."""
        first = packed_on(shelf, tmp_path, KINDS[kind]())
        again = packed_on(shelf, tmp_path, KINDS[kind](), first.tensors)
        assert first.tensors
        assert again.new_objects == 0
        assert again.found["tensors"] == []
        assert again.resident == first.resident
        answers = []
        for packed in (first, again):
            signature = parse_signature(packed.package.manifest.signature)
            servable = OnnxServable(open_session(packed.graph, 1, is_packed=True), signature)
            style, _ = first_inputs(servable.run, signature)
            answers.append(servable.run(make_inputs(signature, style, 3))[0])
        assert np.array_equal(*answers)

    def test_only_the_layers_that_changed_are_packed(self, shelf: Shelf, tmp_path: Path) -> None:
        """The others keep the objects they have, and the version answers as the published one."""
        first = packed_on(shelf, tmp_path, graphs.layers(1, 2, 3))
        second = packed_on(shelf, tmp_path, graphs.layers(1, 2, 4), first.tensors)
        assert (first.new_objects, second.new_objects) == (3, 1)
        assert (tmp_path / "data.part").stat().st_size < 1.1 * 2 * 4 * MIB
        assert len(second.resident.keys() & first.resident.keys()) == 2
        assert second.resident == packed_on(shelf, tmp_path, graphs.layers(1, 2, 4)).resident
        second = packed_on(shelf, tmp_path, graphs.layers(1, 2, 4), first.tensors)
        plain = shelf.load(second.package)
        trim()
        before = anonymous_bytes()
        session = open_session(second.graph, 1, is_packed=True)
        trim()
        assert anonymous_bytes() - before < 0.2 * second.package.manifest.weight_bytes
        servable = OnnxServable(session, plain.signature)
        style, _ = first_inputs(plain.run, plain.signature)
        for rows in (1, 3, 32):
            inputs = make_inputs(plain.signature, style, rows)
            assert np.array_equal(plain.run(inputs)[0], servable.run(inputs)[0])

    def test_a_tensor_that_other_nodes_use_otherwise_is_packed_anew(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """What kernels make of it depends on the operator and its attributes."""
        plain = packed_on(shelf, tmp_path, graphs.layers(1, operator="Gemm"))
        model = graphs.layers(1, operator="Gemm")
        (gemm,) = [node for node in model.graph.node if node.op_type == "Gemm"]
        gemm.attribute.append(helper.make_attribute("transB", 1))
        other = packed_on(shelf, tmp_path, model, plain.tensors)
        assert other.new_objects == 1
        assert other.found["reused"] == []

    def test_the_shape_of_a_graph_leaves_out_the_values_alone(self) -> None:
        """Another size, another operator or another axis is another graph."""
        shape = shape_of(graphs.layers(1, 2))
        assert shape_of(graphs.layers(3, 4)) == shape
        others = [graphs.layers(1), graphs.layers(1, 2, operator="Gemm"), graphs.big(4), lstm()]
        steered = lstm()
        steered.graph.initializer[-1].CopyFrom(graphs.weights("first", np.array([1], np.int64)))
        assert len({shape, *map(shape_of, others), shape_of(steered)}) == 6


class TestCompacting:
    def test_a_forest_keeps_its_answers_and_drops_its_attributes(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """Trees are of each worker whatever is done, but need not be held twice by each."""
        package = shelf.put(graphs.forest(10, 12))
        graph = tmp_path / "graph.part"
        found = compact(package.manifest, shelf.objects_dir, threads=1, graph_path=graph)
        assert not any(found.values())
        signature = parse_signature(package.manifest.signature)
        taken, answers = [], []
        for path, is_packed in (
            (shelf.objects_dir / digest_hex(package.manifest.graph), False),
            (graph, True),
        ):
            trim()
            before = anonymous_bytes()
            servable = OnnxServable(open_session(path, 1, is_packed=is_packed), signature)
            trim()
            taken.append(anonymous_bytes() - before)
            style, _ = first_inputs(servable.run, signature)
            answers.append(servable.run(make_inputs(signature, style, 32))[0])
            servable.close()
        assert np.array_equal(*answers)
        assert taken[1] < 0.6 * taken[0]


class TestComparing:
    def test_forms_are_measured_side_by_side(self, shelf: Shelf, tmp_path: Path) -> None:
        """The plain form copies its weights, the others do not; all answer alike."""
        packed = packed_on(shelf, tmp_path, graphs.layers(1, 2))
        found = compare(
            packed.package.manifest, shelf.objects_dir, threads=1,
            packed_graph="sha256:" + packed.graph.name, packed_objects=frozenset(packed.resident),
        )  # fmt: skip
        private, mapped, small = (dict(found[name]) for name in ("private", "mapped", "packed"))  # type: ignore[arg-type]
        assert private["private_bytes"] > 7 * MIB
        assert mapped["private_bytes"] < 2 * MIB
        assert small["private_bytes"] < 2 * MIB
        assert small["difference"] == 0.0
        assert 0 < mapped["difference"] < 1e-5
        assert set(small["ratios"]) == {"1", "8", "32"}

    def test_a_packed_graph_that_names_other_objects_is_not_opened(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """Who wrote it had opened a pushed graph, and might have been made to write this."""
        packed = packed_on(shelf, tmp_path, graphs.layers(1, 2))
        with pytest.raises(LoadFailed, match=r"'w[01]' of the packed graph lies in no object"):
            compare(
                packed.package.manifest, shelf.objects_dir, threads=1,
                packed_graph="sha256:" + packed.graph.name,
                packed_objects=frozenset(list(packed.resident)[:1]),
            )  # fmt: skip


class TestObjects:
    def test_parts_stand_at_their_places(self, tmp_path: Path) -> None:
        """Zeros fill the way to the next part."""
        path = tmp_path / "file"
        path.write_bytes(b"rawblob")
        descriptor = os.open(path, os.O_RDONLY)
        item = PackedObject("sha256:" + "0" * 64, (Part(0, 3, 4), Part(6, 0, 3)))
        assert b"".join(item.chunks(descriptor)) == b"blob\0\0raw"
        assert item.size_bytes == 9
        assert parse_packed_object(item.to_json()) == item
        with pytest.raises(LoadFailed, match="cut short"):
            list(chunks_of(descriptor, (Part(0, 5, 3),)))
        os.close(descriptor)

    @pytest.mark.parametrize(
        "parts",
        [[[0, 0, 8], [4, 8, 8]], [[-1, 0, 8]], [[0, -1, 8]], [[0, 0, -8]]],
        ids=["overlap", "start", "offset", "length"],
    )
    def test_places_that_cannot_be_are_refused(self, parts: list[list[int]]) -> None:
        """A child that lies describes no object."""
        with pytest.raises(LoadFailed, match="cannot stand at"):
            parse_packed_object({"digest": "sha256:" + "0" * 64, "parts": parts})
