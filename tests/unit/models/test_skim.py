"""A file whose weights are inside is packaged without reading them into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.convert.onnx_file import package_onnx, read_onnx
from models.convert.skim import SELF_LOCATION, skim
from models.errors import ConversionRefused
from models.package import FileSlice
from tests import graphs

LARGE = np.arange(256 * 128, dtype=np.float32).reshape(256, 128)


def model_of(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    names = [tensor.name for tensor in tensors]
    return graphs.build(
        [onnx.helper.make_node("MatMul", ["x", names[0]], ["y"])],
        [graphs.value("x", onnx.TensorProto.FLOAT, ["N", 256])],
        [graphs.value("y", onnx.TensorProto.FLOAT, ["N", 128])],
        list(tensors),
    )


def written(folder: Path, model: onnx.ModelProto, suffix: bytes = b"") -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString() + suffix)
    return path


def test_weights_of_a_file_are_sent_from_the_file(tmp_path: Path):
    """The object is a slice of the file, and the package is that of the model in memory."""
    path = written(tmp_path, model_of(graphs.weights("w", LARGE)))
    package = package_onnx("m", path)
    in_memory = package_onnx("m", model_of(graphs.weights("w", LARGE)))
    (tensor,) = (each for each in package.objects if isinstance(each, FileSlice))
    assert b"".join(tensor.chunks()) == LARGE.tobytes()
    assert [o.digest for o in package.objects] == [o.digest for o in in_memory.objects]


def test_a_linked_file_can_be_pushed(tmp_path: Path):
    """Download caches keep models behind links; the weights inside are found all the same."""
    target = written(tmp_path, model_of(graphs.weights("w", LARGE)))
    link = tmp_path / "link.onnx"
    link.symlink_to(target)
    assert package_onnx("m", link).objects[1].size_bytes == LARGE.nbytes


def test_what_is_skimmed_is_small(tmp_path: Path):
    """Small tensors stay inside, large ones leave only a pointer."""
    small = graphs.weights("s", np.ones(4, dtype=np.float32))
    path = written(tmp_path, model_of(graphs.weights("w", LARGE), small))
    data, count = skim(path) or (b"", 0)
    assert count == 1
    assert len(data) < 1000
    assert read_onnx(path).graph.initializer[1].raw_data == small.raw_data


def test_weights_saved_from_external_data_are_sent_from_the_file(tmp_path: Path):
    """A model loaded from external data and saved inline says DEFAULT of each weight: no matter."""
    outside = tmp_path / "outside.onnx"
    model = model_of(graphs.weights("w", LARGE))
    onnx.save(model, outside, save_as_external_data=True, location="outside.data")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(outside), path)
    assert onnx.load(path).graph.initializer[0].HasField("data_location")
    data, count = skim(path) or (b"", 0)
    assert (count, len(data) < 1000) == (1, True)
    (tensor,) = (o for o in package_onnx("m", path).objects if isinstance(o, FileSlice))
    assert b"".join(tensor.chunks()) == LARGE.tobytes()


def test_a_weight_that_claims_to_be_elsewhere_is_parsed_as_it_is(tmp_path: Path):
    """EXTERNAL beside values of its own is refused by what reads the whole message."""
    tensor = graphs.weights("w", LARGE)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    path = written(tmp_path, model_of(tensor))
    assert skim(path) is None
    with pytest.raises(ConversionRefused):
        package_onnx("m", path)


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_lists_of_floating_point_numbers_are_sent_from_the_file(tmp_path: Path, kind: str):
    """They lie there as raw bytes would; the package is that of the model in memory."""
    values = LARGE.astype({"FLOAT": np.float32, "DOUBLE": np.float64}[kind])
    number = onnx.TensorProto.DataType.Value(kind)

    def model() -> onnx.ModelProto:
        made = onnx.helper.make_tensor("list", number, LARGE.shape, values.ravel())
        assert not made.raw_data
        return model_of(graphs.weights("w", LARGE[:1]), made)

    path = written(tmp_path, model())
    data, count = skim(path) or (b"", 0)
    assert (count, len(data) < 1000) == (1, True)
    package = package_onnx("m", path)
    (tensor,) = (each for each in package.objects if isinstance(each, FileSlice))
    assert b"".join(tensor.chunks()) == values.tobytes()
    assert [o.digest for o in package.objects] == [
        o.digest for o in package_onnx("m", model()).objects
    ]


@pytest.mark.parametrize("kind", ["INT64", "FLOAT16"])
def test_values_in_other_lists_are_parsed(tmp_path: Path, kind: str):
    """Each number takes as many bytes there as it needs, which is not how the runtime reads it."""
    number = onnx.TensorProto.DataType.Value(kind)
    made = onnx.helper.make_tensor(
        "list", number, LARGE.shape, LARGE.ravel().astype(np.int64) % 200
    )
    path = written(tmp_path, model_of(graphs.weights("w", LARGE[:1]), made))
    assert skim(path) is None
    size = onnx.helper.tensor_dtype_to_np_dtype(number).itemsize
    assert LARGE.size * size in {each.size_bytes for each in package_onnx("m", path).objects}


def test_a_list_that_is_not_of_the_tensors_type_is_parsed(tmp_path: Path):
    """What such a tensor means is for the parser to say, and it refuses it."""
    made = onnx.helper.make_tensor("list", onnx.TensorProto.FLOAT, LARGE.shape, LARGE.ravel())
    made.data_type = onnx.TensorProto.DOUBLE
    path = written(tmp_path, model_of(graphs.weights("w", LARGE[:1]), made))
    assert skim(path) is None


def test_a_graph_in_two_pieces_is_parsed_as_it_is(tmp_path: Path):
    """A message may hold its graph twice, which a parser merges: nothing is left out then."""
    model = model_of(graphs.weights("w", LARGE))
    more = onnx.ModelProto(graph=onnx.GraphProto(doc_string="more"))
    assert skim(written(tmp_path, model, more.SerializeToString())) is None


def test_a_damaged_file_is_refused_as_before(tmp_path: Path):
    """A cut file is no model, wherever it is cut."""
    whole = model_of(graphs.weights("w", LARGE)).SerializeToString()
    path = tmp_path / "model.onnx"
    for size in (len(whole) - 1, len(whole) // 2, 90):
        path.write_bytes(whole[:size])
        with pytest.raises(ConversionRefused, match="damaged or truncated"):
            package_onnx("m", path)


def test_a_wrong_size_is_refused(tmp_path: Path):
    """Bytes that do not fill the shape are refused with both sizes."""
    tensor = graphs.weights("w", LARGE)
    tensor.dims[0] = 255
    with pytest.raises(ConversionRefused, match="has 131072 bytes, its shape needs 130560"):
        package_onnx("m", written(tmp_path, model_of(tensor)))


def test_a_file_cannot_point_into_itself(tmp_path: Path):
    """What only the skimmer writes is refused in a file from elsewhere, alone and beside others."""
    tensor = graphs.weights("w", LARGE)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", SELF_LOCATION), ("offset", "0"), ("length", "131072")):
        tensor.external_data.add(key=key, value=value)
    for others in ((), (graphs.weights("other", LARGE),)):
        with pytest.raises(ConversionRefused, match="is no file"):
            package_onnx("m", written(tmp_path, model_of(tensor, *others)))
