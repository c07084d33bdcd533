"""Packaging of ONNX: how tensors are split off, and which files are refused."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.convert.onnx_file import About, package_onnx
from models.errors import ConversionRefused
from models.package import OBJECT_THRESHOLD_BYTES, Package
from models.signature import Signature, TensorSpec
from registry.manifest import parse_manifest
from tests import graphs

LARGE = OBJECT_THRESHOLD_BYTES // 4
SECRET = b"the pusher's secret".ljust(4 * LARGE, b".")


def graph_of(package: Package) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(b"".join(package.objects[0].chunks()))


def fields_of(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def with_initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return graphs.build(
        [helper.make_node("Identity", [tensor.name], ["y"])],
        [],
        [graphs.value("y", tensor.data_type, None)],
        [tensor],
    )


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


class TestSplit:
    def test_a_large_tensor_becomes_an_object_named_by_its_digest(self) -> None:
        """The object holds the raw little-endian bytes; the graph names it by its hex digits."""
        table = np.arange(LARGE, dtype=np.float32)
        package = package_onnx("m", with_initializer(graphs.weights("t", table)))
        digest = hashlib.sha256(table.tobytes()).hexdigest()
        entry = package.manifest.tensors[0]
        assert (entry.digest, entry.size_bytes) == ("sha256:" + digest, table.nbytes)
        tensor = graph_of(package).graph.initializer[0]
        assert fields_of(tensor) == {
            "location": digest,
            "offset": "0",
            "length": str(table.nbytes),
        }
        assert b"".join(package.objects[1].chunks()) == table.tobytes()

    def test_a_small_tensor_stays_in_the_graph(self) -> None:
        """One byte under the threshold there is no object."""
        small = np.zeros(OBJECT_THRESHOLD_BYTES - 1, np.uint8)
        package = package_onnx("m", with_initializer(graphs.weights("t", small)))
        assert package.manifest.tensors == ()
        assert len(package.objects) == 1

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint64"])
    def test_typed_fields_give_the_same_object_as_raw_data(self, dtype: str) -> None:
        """How a file spells a tensor does not change the digest of its bytes."""
        array = np.arange(OBJECT_THRESHOLD_BYTES // np.dtype(dtype).itemsize).astype(dtype)
        elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        typed = helper.make_tensor("t", elem_type, array.shape, array.tolist())
        package = package_onnx("m", with_initializer(typed))
        assert package.objects[1].digest == "sha256:" + hashlib.sha256(array.tobytes()).hexdigest()

    def test_strings_stay_in_the_graph_however_large(self) -> None:
        """A string tensor has no raw form that could be mapped."""
        texts = np.array(["long text"] * LARGE, dtype=object)
        package = package_onnx("m", with_initializer(numpy_helper.from_array(texts, "t")))
        assert package.manifest.tensors == ()

    def test_equal_tensors_are_one_object(self) -> None:
        """Two names for the same bytes cost them once."""
        table = np.arange(LARGE, dtype=np.float32)
        model = with_initializer(graphs.weights("t", table))
        model.graph.initializer.append(graphs.weights("u", table))
        assert len(package_onnx("m", model).manifest.tensors) == 1

    def test_tensors_of_subgraphs_are_split_too(self) -> None:
        """A branch of If holds its weights as any graph does."""
        table = np.arange(LARGE, dtype=np.float32)

        def branch(name: str) -> onnx.GraphProto:
            return helper.make_graph(
                [helper.make_node("Identity", [name], [f"{name}_out"])],
                name,
                [],
                [graphs.value(f"{name}_out", TensorProto.FLOAT, (LARGE,))],
                [graphs.weights(name, table)],
            )

        model = graphs.build(
            [
                helper.make_node(
                    "If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b")
                )
            ],
            [graphs.value("c", TensorProto.BOOL, ())],
            [graphs.value("y", TensorProto.FLOAT, (LARGE,))],
        )
        package = package_onnx("m", model)
        assert len(package.manifest.tensors) == 1
        node = graph_of(package).graph.node[0]
        assert all(len(fields_of(a.g.initializer[0])) == 3 for a in node.attribute)

    def test_large_constant_nodes_become_objects(self) -> None:
        """A table in a Constant node is a table all the same."""
        table = graphs.weights("", np.arange(LARGE, dtype=np.float32))
        model = graphs.build(
            [
                helper.make_node("Constant", [], ["t"], value=table),
                helper.make_node("Gather", ["t", "i"], ["y"]),
            ],
            [graphs.value("i", TensorProto.INT64, ("N",))],
            [graphs.value("y", TensorProto.FLOAT, ("N",))],
        )
        package = package_onnx("m", model)
        assert len(package.manifest.tensors) == 1
        assert [node.op_type for node in graph_of(package).graph.node] == ["Gather"]

    def test_the_same_model_twice_has_the_same_digest(self) -> None:
        """Pushing again is free: nothing of the hour or the exporter enters the version."""
        first, second = graphs.big(1), graphs.big(1)
        second.producer_name, second.producer_version = "another", "9.9"
        second.graph.node[0].doc_string = "/home/somebody/train.py, line 3"
        one, two = package_onnx("m", first), package_onnx("m", second)
        assert one.manifest.digest == two.manifest.digest
        assert b"somebody" not in b"".join(two.objects[0].chunks())

    def test_initializers_that_are_inputs_become_constant(self) -> None:
        """A default value is no input: V2 knows no optional ones."""
        model = graphs.gemm()
        model.graph.input.append(graphs.value("w", TensorProto.FLOAT, (4, 2)))
        model.ir_version = 3
        package = package_onnx("m", model)
        assert [i["name"] for i in package.manifest.signature["inputs"]] == ["X"]
        assert [value.name for value in graph_of(package).graph.input] == ["X"]

    def test_the_manifest_is_one_that_the_registry_takes(self) -> None:
        """What is packaged parses back to itself."""
        manifest = package_onnx("m", graphs.big(1)).manifest
        assert parse_manifest(manifest.to_json()) == manifest


class TestSignature:
    def test_a_given_signature_must_be_that_of_the_graph(self) -> None:
        """A converter may add columns and labels, not other tensors."""
        wrong = Signature((TensorSpec("x", "FP64", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),))
        with pytest.raises(ConversionRefused, match=r"signature\.inputs"):
            package_onnx("m", graphs.id32(), About(signature=wrong))

    def test_a16_zipmap_is_refused_with_advice(self) -> None:
        """A list of dictionaries cannot be served; the message names the option to turn off."""
        element = helper.make_map_type_proto(
            TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        )
        output = helper.make_value_info("y", helper.make_sequence_type_proto(element))
        model = graphs.id32()
        model.graph.ClearField("output")
        model.graph.output.append(output)
        with pytest.raises(ConversionRefused, match="zipmap"):
            package_onnx("m", model)

    def test_c14_a_missing_type_is_refused(self) -> None:
        """An input without a type or a shape is named."""
        model = graphs.id32()
        model.graph.input[0].ClearField("type")
        with pytest.raises(ConversionRefused, match="input 'x'"):
            package_onnx("m", model)


class TestC13External:
    def test_c13_the_current_folder_does_not_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """External data is looked for beside the model, also after both moved."""
        (tmp_path / "a").mkdir()
        graphs.ext(tmp_path / "a")
        (tmp_path / "a").rename(tmp_path / "b")
        monkeypatch.chdir(tmp_path)
        package = package_onnx("m", Path("b/model.onnx"))
        assert package.manifest.digest == package_onnx("m", graphs.big(4)).manifest.digest

    def test_c13_files_of_equal_name_keep_their_own_weights(self, tmp_path: Path) -> None:
        """Two models with a weights.bin each are two sets of weights."""
        digests = set()
        for seed in (1, 2):
            folder = tmp_path / str(seed)
            folder.mkdir()
            package = package_onnx("m", graphs.ext(folder, mb=1, seed=seed))
            digests.add(package.manifest.tensors[0].digest)
        assert len(digests) == 2

    def test_c13_a_model_without_its_weights_is_refused(self, tmp_path: Path) -> None:
        """The missing file is named."""
        path = graphs.ext(tmp_path, mb=1)
        (tmp_path / "weights.bin").unlink()
        with pytest.raises(ConversionRefused, match=r"weights\.bin"):
            package_onnx("m", path)

    def test_c13_small_external_tensors_come_into_the_graph(self, tmp_path: Path) -> None:
        """Only large tensors are worth an object."""
        path = tmp_path / "model.onnx"
        onnx.save_model(graphs.gemm(), path, save_as_external_data=True, size_threshold=0)
        package = package_onnx("m", path)
        assert package.manifest.digest == package_onnx("m", graphs.gemm()).manifest.digest

    @pytest.mark.slow
    def test_c13_past_two_gigabytes(self, tmp_path: Path) -> None:
        """A 2.2 GB table is hashed as it streams by, not held."""
        rows, columns = 2_200_000, 250
        with (tmp_path / "w").open("wb") as file:
            file.truncate(rows * columns * 4)
        fields = {"location": "w"}
        model = with_initializer(graphs.external_tensor("t", (rows, columns), fields))
        package = package_onnx("m", save(model, tmp_path))
        assert package.manifest.weight_bytes == 2_200_000_000


ESCAPES = {
    "parent": "../secret.bin",
    "nested parent": "sub/../../secret.bin",
    "absolute": "/etc/passwd",
    "proc": "//proc/self/root/etc/passwd",
    "backslash": "..\\secret.bin",
    "NUL": "weights\0.bin",
    "empty": "",
    "itself": ".",
    "a folder": "sub",
    "symlink": "link.bin",
    "hard link": "hard.bin",
    "symlinked folder": "linked/secret.bin",
    "FIFO": "pipe",
}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A model folder beside a secret, with every kind of way to it."""
    (tmp_path / "secret.bin").write_bytes(SECRET)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.bin").write_bytes(SECRET)
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.bin").symlink_to(outside / "secret.bin")
    (folder / "hard.bin").hardlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(outside)
    (folder / "plain.bin").write_bytes(SECRET)
    os.mkfifo(folder / "pipe")
    return folder


def secret_tensor(location: str) -> onnx.TensorProto:
    fields = {"location": location, "offset": "0", "length": str(len(SECRET))}
    return graphs.external_tensor("t", (LARGE,), fields)


class TestF05:
    @pytest.mark.parametrize("location", ESCAPES.values(), ids=ESCAPES.keys())
    def test_f05_external_data_that_leaves_its_folder_is_refused(
        self, trap: Path, location: str
    ) -> None:
        """Whatever leads out of the folder is refused by its name, and nothing of it is read."""
        path = save(with_initializer(secret_tensor(location)), trap)
        with pytest.raises(ConversionRefused, match="external") as refusal:
            package_onnx("m", path)
        assert str(trap.parent) not in str(refusal.value)

    def test_f05_a_plain_file_in_a_subfolder_is_taken(self, trap: Path) -> None:
        """What stays beneath the folder by plain steps is allowed."""
        shutil.move(trap / "plain.bin", trap / "sub" / "plain.bin")
        package = package_onnx("m", save(with_initializer(secret_tensor("sub/plain.bin")), trap))
        assert package.manifest.tensors[0].digest.endswith(hashlib.sha256(SECRET).hexdigest())

    @pytest.mark.parametrize("place", ["tensor", "tensors", "sparse", "subgraph", "sparse_init",
                                       "function", "default", "training"])  # fmt: skip
    def test_f05_external_data_elsewhere_is_refused(self, trap: Path, place: str) -> None:
        """Even a harmless file is not read for what is no plain initializer."""
        path = save(hidden_in(place, secret_tensor("plain.bin")), trap)
        with pytest.raises(ConversionRefused, match="external data"):
            package_onnx("m", path)

    def test_f05_a_tensor_in_a_branch_is_no_way_out(self, trap: Path) -> None:
        """The initializer of a subgraph is held to the same rule."""
        path = save(hidden_in("branch", secret_tensor("../secret.bin")), trap)
        with pytest.raises(ConversionRefused, match="leaves the folder"):
            package_onnx("m", path)

    def test_f05_a_model_in_memory_has_nothing_beside_it(self) -> None:
        """There is no folder to read from."""
        with pytest.raises(ConversionRefused, match="external data"):
            package_onnx("m", with_initializer(secret_tensor("plain.bin")))


def hidden_in(place: str, tensor: onnx.TensorProto) -> onnx.ModelProto:
    """Return a model that has ``tensor`` in one of the places that a check may forget."""
    model = graphs.id32()
    node = model.graph.node[0]
    sparse = onnx.SparseTensorProto(values=tensor, dims=[LARGE])
    if place == "tensor":
        node.attribute.add(name="a", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
    elif place == "tensors":
        node.attribute.add(name="a", type=onnx.AttributeProto.TENSORS).tensors.append(tensor)
    elif place == "sparse":
        attribute = node.attribute.add(name="a", type=onnx.AttributeProto.SPARSE_TENSOR)
        attribute.sparse_tensor.CopyFrom(sparse)
    elif place == "sparse_init":
        model.graph.sparse_initializer.append(sparse)
    elif place in ("subgraph", "branch"):
        attribute = node.attribute.add(name="g", type=onnx.AttributeProto.GRAPH)
        if place == "branch":
            attribute.g.initializer.append(tensor)
        else:
            inner = attribute.g.node.add(op_type="Identity").attribute.add(name="a")
            inner.t.CopyFrom(tensor)
    elif place in ("function", "default"):
        function = model.functions.add(name="f", domain="own")
        if place == "function":
            function.node.add(op_type="Constant").attribute.add(name="value").t.CopyFrom(tensor)
        else:
            function.attribute_proto.add(name="a").t.CopyFrom(tensor)
    elif place == "training":
        model.training_info.add().algorithm.initializer.append(tensor)
    return model


FULL = str(len(SECRET))
METADATA = {
    "unknown key": {"__class__": "x"},
    "prepacked": {"prepacked_0": "K|0;1;x"},
    "negative offset": {"offset": "-1"},
    "huge offset": {"offset": str(2**62)},
    "too huge offset": {"offset": "9" * 19},
    "offset in words": {"offset": "1e3"},
    "negative length": {"length": "-4"},
    "short length": {"length": "4"},
    "huge length": {"length": str(2**62)},
    "past the end": {"offset": "4"},
}


class TestF07:
    @pytest.mark.parametrize("fields", METADATA.values(), ids=METADATA.keys())
    def test_f07_odd_metadata_is_refused(self, trap: Path, fields: dict[str, str]) -> None:
        """Keys that nobody knows and numbers that do not fit are refused, and nothing is padded."""
        given = {"location": "plain.bin", "offset": "0", "length": FULL, **fields}
        path = save(with_initializer(graphs.external_tensor("t", (LARGE,), given)), trap)
        with pytest.raises(ConversionRefused, match="external"):
            package_onnx("m", path)
        assert (trap / "plain.bin").stat().st_size == len(SECRET)

    def test_f07_a_key_given_twice_is_refused(self, trap: Path) -> None:
        """Readers differ in which of two they take."""
        tensor = secret_tensor("plain.bin")
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "../secret.bin"
        with pytest.raises(ConversionRefused, match="twice"):
            package_onnx("m", save(with_initializer(tensor), trap))

    def test_f07_overlapping_tensors_are_refused(self, trap: Path) -> None:
        """Tensors may share all of their bytes, not some."""
        half = str(len(SECRET) // 2)
        model = with_initializer(
            graphs.external_tensor("t", (LARGE // 2,), {"location": "plain.bin", "length": half})
        )
        fields = {"location": "plain.bin", "offset": "16", "length": half}
        model.graph.initializer.append(graphs.external_tensor("u", (LARGE // 2,), fields))
        with pytest.raises(ConversionRefused, match="overlaps"):
            package_onnx("m", save(model, trap))

    def test_f07_tensors_may_share_all_of_their_bytes(self, trap: Path) -> None:
        """Tied weights are one slice under two names."""
        model = with_initializer(secret_tensor("plain.bin"))
        again = secret_tensor("plain.bin")
        again.name = "u"
        model.graph.initializer.append(again)
        assert len(package_onnx("m", save(model, trap)).manifest.tensors) == 1

    @pytest.mark.parametrize("dims", [(-1, 4), (2**40, 2**40)])
    def test_f07_impossible_shapes_are_refused(self, trap: Path, dims: tuple[int, ...]) -> None:
        """A negative dimension, or a product past any file, is no shape."""
        tensor = graphs.external_tensor("t", dims, {"location": "plain.bin"})
        with pytest.raises(ConversionRefused, match=r"dimension|length"):
            package_onnx("m", save(with_initializer(tensor), trap))

    def test_data_that_does_not_fill_its_shape_is_refused(self) -> None:
        """An inline tensor is held to its shape as well."""
        tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[LARGE], raw_data=b"x")
        with pytest.raises(ConversionRefused, match="needs"):
            package_onnx("m", with_initializer(tensor))


NOT_ONNX = {
    "empty": (b"", "empty"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "LFS"),
    "HTML": (b"<!DOCTYPE html><html></html>", "web page"),
    "pickle": (b"\x80\x04\x95\x10\x00", "pickle"),
    "zip": (b"PK\x03\x04rest", "zip"),
    "text": (b"hello world, this is no model at all", "ONNX"),
    "no graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
}


class TestC14:
    @pytest.mark.parametrize(("data", "word"), NOT_ONNX.values(), ids=NOT_ONNX.keys())
    def test_c14_what_is_not_onnx_is_said_to_be_what_it_is(
        self, tmp_path: Path, data: bytes, word: str
    ) -> None:
        """The message says what the file looks like."""
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        with pytest.raises(ConversionRefused, match=word):
            package_onnx("m", path)

    def test_c14_a_directory_is_refused(self, tmp_path: Path) -> None:
        """A directory by the name of a model is named as one."""
        (tmp_path / "model.onnx").mkdir()
        with pytest.raises(ConversionRefused, match="directory"):
            package_onnx("m", tmp_path / "model.onnx")

    def test_c14_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        """There is nothing to convert."""
        with pytest.raises(ConversionRefused, match="missing"):
            package_onnx("m", tmp_path / "model.onnx")

    @pytest.mark.parametrize("percent", [10, 50, 99])
    def test_c14_a_truncated_file_is_refused(self, tmp_path: Path, percent: int) -> None:
        """A file that ends early does not parse."""
        data = graphs.big(1).SerializeToString()
        path = tmp_path / "model.onnx"
        path.write_bytes(data[: len(data) * percent // 100])
        with pytest.raises(ConversionRefused, match="truncated"):
            package_onnx("m", path)

    def test_a_custom_operator_is_refused(self) -> None:
        """The server loads no operator libraries, so the pusher hears of it at once."""
        model = graphs.id32()
        model.graph.node[0].domain = "my.company"
        with pytest.raises(ConversionRefused, match="custom operators"):
            package_onnx("m", model)
