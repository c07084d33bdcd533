"""PyTorch's exported programs and TorchScript, beside PyTorch itself."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="runs in .venv-torch: scripts/test-frameworks torch")

from models.convert import ConvertOptions, convert
from models.convert.elsewhere import convert_elsewhere
from models.errors import ConversionRefused, InputRefused
from models.golden import drift
from models.probe import probe
from models.zoo.networks import (
    ConvNet,
    FeatureAttention,
    SequenceNet,
    TabNet,
    TwoTowers,
    mlp,
    save_program,
)
from tests.parity.conftest import Served, worst

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # PyTorch warns of itself
    pytest.mark.timeout(300),
]
nn = torch.nn
Serve = Callable[..., Served]


def trained(model: Any, *shape: int) -> Any:
    """Give layers that keep statistics some; return the model ready to answer."""
    model.train()
    for _ in range(3):
        model(torch.randn(32, *shape) * 2 + 1)
    return model.eval()


def answer(model: Any, *inputs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(*(torch.from_numpy(array) for array in inputs)))


FLOAT_NETS = {
    "mlp": (lambda: mlp(7, 3), (7,)),
    "tabnet": (lambda: TabNet(9, 2), (9,)),
    "attention": (lambda: FeatureAttention(6, 2), (6,)),
    "sequence": (lambda: SequenceNet(4), (12, 4)),
    "conv": (lambda: ConvNet(3, 2), (3, 20)),
}


@pytest.mark.parametrize("name", FLOAT_NETS)
def test_an_exported_program_answers_as_pytorch(name: str, tmp_path: Path, serve: Serve) -> None:
    """Rows never seen in the conversion agree within 1e-5, and rows may share a run."""
    torch.manual_seed(3)
    build, shape = FLOAT_NETS[name]
    model = trained(build(), *shape)
    path = save_program(model, [torch.randn(2, *shape)], tmp_path / "m.pt2")
    served = serve(path)
    spec = served.signature.inputs[0]
    assert (spec.datatype, spec.shape) == ("FP32", (-1, *shape))
    rows = np.random.default_rng(1).normal(size=(300, *shape)).astype(np.float32)
    assert worst(served({spec.name: rows})["output"], answer(model, rows)) <= 1e-5
    assert served.parity["rows"] >= 200
    assert drift(served.servable.run, served.signature, served.parity) == ""
    assert served.parity["golden"]
    found = probe(served.servable.run, served.signature, None)
    assert found.batch_reason == "rows do not see each other"


def test_two_towers_take_ids_and_refuse_one_out_of_range(tmp_path: Path, serve: Serve) -> None:
    """Embedding tables are looked up by int64; an id beyond them is the caller's mistake."""
    torch.manual_seed(3)
    model = TwoTowers(40, 60).eval()
    ids = torch.zeros(2, dtype=torch.int64)
    served = serve(save_program(model, [ids, ids], tmp_path / "m.pt2"))
    assert [(s.name, s.datatype, s.shape) for s in served.signature.inputs] == [
        ("user", "INT64", (-1,)),
        ("item", "INT64", (-1,)),
    ]
    user, item = np.arange(40), np.arange(40) + 20
    got = served({"user": user, "item": item})["output"]
    assert worst(got, answer(model, user, item)) <= 1e-5
    with pytest.raises(InputRefused, match="60"):
        served({"user": user, "item": np.full(40, 60)})


def test_an_argument_that_became_another_is_refused(tmp_path: Path, serve: Serve) -> None:
    """Exported with one tensor for two arguments, a program reads one of them twice."""
    ids, rows = torch.zeros(2, dtype=torch.int64), torch.export.Dim("rows")
    program = torch.export.export(
        TwoTowers(40, 60).eval(), (ids, ids), dynamic_shapes=({0: rows}, {0: rows})
    )
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(ConversionRefused, match=r"never reads input 'user', .* that of 'item'"):
        serve(tmp_path / "m.pt2")


def test_states_with_the_rows_on_another_axis_stay_apart(tmp_path: Path, serve: Serve) -> None:
    """G16: a recurrent state is ``(layers, rows, width)``: no two requests may share a run."""

    class WithStates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)

        def forward(self, x: Any, hidden: Any, cell: Any) -> Any:
            y, (hidden, cell) = self.lstm(x, (hidden, cell))
            return {"y": y[:, -1], "hidden": hidden, "cell": cell}

    model = WithStates()
    state = torch.randn(2, 3, 5)
    path = save_program(
        model, [torch.randn(3, 4, 3), state, state], tmp_path / "m.pt2", batch_axes=[0, 1, 1]
    )
    served = serve(path)
    assert [spec.shape for spec in served.signature.inputs] == [(-1, 4, 3), (2, -1, 5), (2, -1, 5)]
    rng = np.random.default_rng(0)
    inputs = {
        spec.name: rng.normal(size=[6 if n == -1 else n for n in spec.shape]).astype(np.float32)
        for spec in served.signature.inputs
    }
    got = served(inputs)
    with torch.no_grad():
        expected = model(*(torch.from_numpy(array) for array in inputs.values()))
    for name, output in (("y", "y"), ("hidden", "hidden_out"), ("cell", "cell_out")):
        assert worst(got[output], expected[name].numpy()) <= 1e-5
    found = probe(served.servable.run, served.signature, None)
    assert not found.is_batchable
    assert found.signature.inputs[0].shape == (1, 4, 3)


def test_final_states_as_an_output_stay_apart(tmp_path: Path, serve: Serve) -> None:
    """G16: the states alone, as an output, are enough to keep requests apart."""

    class Final(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 5, num_layers=3, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.gru(x)

    served = serve(save_program(Final(), [torch.randn(2, 4, 3)], tmp_path / "m.pt2"))
    found = probe(served.servable.run, served.signature, None)
    assert not found.is_batchable
    assert "output_1" in found.batch_reason


class Flat(nn.Module):
    """Mixes all rows into one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x.view(1, -1))


def test_g14_rows_baked_in_by_tracing_are_noticed(tmp_path: Path, shelf_of: Any) -> None:
    """A real export that declares any number of rows but holds one is never batched."""
    path = tmp_path / "m.onnx"
    torch.onnx.export(
        Flat(), (torch.randn(1, 4),), str(path), dynamo=False, input_names=["x"],
        output_names=["y"], dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}},
    )  # fmt: skip
    servable, signature = shelf_of(convert("m", path))
    found = probe(servable.run, signature, None)
    assert not found.is_batchable
    assert found.signature.inputs[0].shape == (1, 4)


def test_a_trace_that_holds_one_row_is_proven_by_the_row(tmp_path: Path, serve: Serve) -> None:
    """TorchScript traced with one row is served, one row at a time."""
    path = tmp_path / "m.pt"
    torch.jit.trace(Flat(), torch.randn(1, 4)).save(path)
    served = serve(path)
    assert served.parity["rows_alone"] is True
    found = probe(served.servable.run, served.signature, None)
    assert found.signature.inputs[0].shape == (1, 4)


def test_a_program_without_open_rows_takes_as_many_as_its_example(
    tmp_path: Path, serve: Serve
) -> None:
    """That is what its file says; the signature says so too, and requests never share a run."""
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 2).eval(), (torch.randn(3, 4),)), path)
    served = serve(path)
    found = probe(served.servable.run, served.signature, None)
    assert found.signature.inputs[0].shape == (3, 4)
    assert found.batch_reason == "input 'input' has a fixed first dimension"


def test_a_traced_module_needs_no_sample(tmp_path: Path, serve: Serve) -> None:
    """Its archive holds the shapes that it was traced with; the rows are open all the same."""
    torch.manual_seed(3)
    model = trained(TabNet(9, 2), 9)
    path = tmp_path / "m.pth"
    torch.jit.trace(model, torch.randn(1, 9)).save(path)
    served = serve(path)
    rows = np.random.default_rng(1).normal(size=(300, 9)).astype(np.float32)
    assert served.signature.inputs[0].shape == (-1, 9)
    assert worst(served({"x": rows})["output"], answer(model, rows)) <= 1e-5
    assert probe(served.servable.run, served.signature, None).is_batchable


def test_a_scripted_module_is_known_by_its_sample(tmp_path: Path, serve: Serve) -> None:
    """Code with branches keeps them; shapes and types of the inputs come from the rows given."""

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            if x.shape[1] > 2:
                x = x * 2
            return x.sum(dim=1) + ids

    path, sample = tmp_path / "m.ts", tmp_path / "rows.json"
    torch.jit.script(Branching()).save(path)
    sample.write_text(json.dumps({"x": [[1, 2.5, 3], [4, 5, 6]], "ids": [7, 8]}))
    served = serve(path, sample=sample)
    assert [(s.datatype, s.shape) for s in served.signature.inputs] == [
        ("FP32", (-1, 3)),
        ("INT64", (-1,)),
    ]
    inputs = {"x": np.float32([[1, 1, 1]]), "ids": np.array([5])}
    assert served(inputs)["output"].tolist() == [11]
    with pytest.raises(ConversionRefused, match=r"columns named x, ids; or save the model as"):
        serve(path.rename(tmp_path / "again.ts"))


def test_not_a_number_that_a_kernel_swallows_is_counted(tmp_path: Path, serve: Serve) -> None:
    """The runtime's GRU answers a number to NaN where PyTorch answers NaN: the record says so."""
    torch.manual_seed(3)
    served = serve(save_program(SequenceNet(4), [torch.randn(2, 6, 4)], tmp_path / "m.pt2"))
    counted = served.parity["non_finite"]
    rows = np.full((1, 6, 4), np.nan, np.float32)
    is_swallowed = bool(np.isfinite(served({"x": rows})["output"]).all())
    assert (counted["rows_differing"] > 0) is is_swallowed
    assert counted["rows"] >= 18


def test_what_torch_save_wrote_is_refused_with_advice(tmp_path: Path, serve: Serve) -> None:
    """Weights alone and pickled modules name the command that makes a program."""
    model = mlp(3, 1)
    for name, content in (("weights.pt", model.state_dict()), ("module.pth", model)):
        torch.save(content, tmp_path / name)
        with pytest.raises(ConversionRefused, match=r"torch\.export\.save\(torch\.export\.export"):
            serve(tmp_path / name)


def test_damaged_archives_are_refused(tmp_path: Path, serve: Serve) -> None:
    """Cut short, emptied or filled with rubbish: the reason is said in one line."""
    whole = save_program(mlp(3, 1).eval(), [torch.randn(2, 3)], tmp_path / "whole.pt2")
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(whole.read_bytes()[:-500])
    with pytest.raises(ConversionRefused, match="zip archive that is damaged or truncated"):
        serve(cut)
    script = tmp_path / "whole.pt"
    torch.jit.trace(mlp(3, 1).eval(), torch.randn(1, 3)).save(script)
    for source, name in ((whole, "rubbish.pt2"), (script, "rubbish.pt")):
        rubbish = tmp_path / name
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(rubbish, "w") as other:
            for member in archive.namelist():
                other.writestr(member, b"\xff\x00rubbish")
        with pytest.raises(ConversionRefused, match=r"cannot be opened by PyTorch 2\.") as caught:
            serve(rubbish)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


def test_a_push_from_another_environment_converts_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The user is warned first; weights stay files; nothing of this machine is in the graph."""
    folder = tmp_path / "kept"
    folder.mkdir()
    torch.manual_seed(3)
    model = nn.Linear(300, 200)
    path = save_program(model, [torch.randn(2, 300)], tmp_path / "m.pt2")
    warned: list[int] = []
    package = convert_elsewhere(
        Path(sys.executable), "m", path, ConvertOptions(folder=folder),
        before_pickle=lambda: warned.append(len(list(folder.iterdir()))),
    )  # fmt: skip
    assert warned == [0]
    assert package.manifest.source["framework"] == "torch"
    assert [entry.size_bytes for entry in package.manifest.tensors] == [300 * 200 * 4]
    (weight,) = (item for item in package.objects if item.size_bytes == 300 * 200 * 4)
    found = np.frombuffer(b"".join(weight.chunks()), "<f4").reshape(200, 300)
    assert np.array_equal(found, model.weight.detach().numpy())
    text = b"".join(package.objects[0].chunks())
    assert str(Path.cwd()).encode() not in text


def test_a_crash_of_the_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends the process of the conversion ends nothing else, and leaves nothing behind."""
    path = save_program(mlp(3, 1).eval(), [torch.randn(2, 3)], tmp_path / "m.pt2")
    module = tmp_path / "shadow" / "torch"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("import os, sys\nsys.stderr.write('gone')\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(module.parent))
    folder = tmp_path / "kept"
    folder.mkdir()
    with pytest.raises(ConversionRefused, match=r"ended with exit code -6: gone"):
        convert("m", path, ConvertOptions(folder=folder))
