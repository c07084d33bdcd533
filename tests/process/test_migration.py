"""What other servers and MLflow served, taken over by the command and asked over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before a library reads it: several test processes on few cores wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import pytest

from models.signature import Signature, TensorSpec
from serving.cli import main
from tests import graphs
from tests.cases.rig import load_refused, upload
from tests.process.server import RunningServer, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(300)]
NAMES = ["age", "fare", "debt"]
ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests of the file."""
    settings = {"invocations_model": "risk"}
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, workers=1, settings=settings) as running:
        running.push("good", graphs.id32())
        yield running


@pytest.fixture
def ramrack(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command here, against the server; returns exit code, stdout, stderr."""
    monkeypatch.setenv("RAMRACK_ADMIN_URL", server.admin_url)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def booster(rng: np.random.Generator, **parameters: Any) -> Any:
    lightgbm = pytest.importorskip("lightgbm")
    x = rng.normal(size=(300, 3))
    data = lightgbm.Dataset(x, (x[:, 0] * x[:, 1] > 0).astype(int), feature_name=NAMES)
    fixed = {"verbosity": -1, "num_threads": 1, "num_iterations": 8, "objective": "binary"}
    return lightgbm.train(fixed | parameters, data)


def test_a_repository_of_triton_is_taken_over_once(
    server: RunningServer, ramrack: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    """Versions in order, labels and settings with them; what cannot be taken stops nothing."""
    for name, versions in (("pets", "2 10"), ("bls", "1"), ("zeros", "1")):
        for seed, version in enumerate(versions.split()):
            (tmp_path / name / version).mkdir(parents=True)
            onnx.save(graphs.gemm(seed=seed), tmp_path / name / version / "model.onnx")
    output = onnx.load(tmp_path / "pets" / "2" / "model.onnx").graph.output[0].name
    (tmp_path / "pets" / "config.pbtxt").write_text(
        'name: "pets" platform: "onnxruntime_onnx" max_batch_size: 8 dynamic_batching { '
        "default_queue_policy { default_timeout_microseconds: 1500000 } } "
        f'output [ {{ name: "{output}" label_filename: "labels.txt" dims: 2 }} ]'
    )
    (tmp_path / "pets" / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "bls" / "config.pbtxt").write_text('backend: "python"')
    code, out, _ = ramrack("import", "triton", str(tmp_path), "--dry-run")
    assert code == 1
    assert "would be pushed" in out
    assert server.admin("GET", "/admin/v1/models/pets").status_code == 404

    code, out, _ = ramrack("import", "triton", str(tmp_path), "--json")
    assert code == 1
    lines = json.loads(out)["versions"]
    assert [(line["model"], line["folder"], line["result"]) for line in lines] == [
        ("bls", "", "refused"), ("pets", "2", "pushed as pets/1"),
        ("pets", "10", "pushed as pets/2"), ("zeros", "1", "pushed as zeros/1"),
    ]  # fmt: skip
    assert "BLS" in lines[0]["why"]
    settings = server.expect(server.admin("GET", "/admin/v1/models/pets/settings"))["settings"]
    assert (settings["batching"], settings["timeout_ms"]) == (True, 1500)
    details = server.expect(server.admin("GET", "/admin/v1/models/pets/versions/2"))
    assert details["meta"] == {"triton_version": "10"}
    assert details["signature"]["outputs"][0]["labels"] == ["cat", "dog"]

    code, out, err = ramrack("import", "triton", str(tmp_path))
    said = "to serve the newest of each:\n1 of 4 were refused; the table says why\n"
    assert (code, err) == (1, said)
    assert "was there as pets/2" in out
    assert "ramrack load pets 2" in out
    assert len(server.expect(server.admin("GET", "/admin/v1/models/pets"))["versions"]) == 2


def test_a_folder_of_mlflow_answers_its_clients(
    server: RunningServer, ramrack: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    """Pushed as it lies there, asked as MLflow's clients ask, by JSON and CSV."""
    model = booster(np.random.default_rng(1), linear_tree=True)
    model.save_model(tmp_path / "model.lgb")
    flavor = {"data": "model.lgb", "lgb_version": "4.6.0"}
    inputs = [{"type": "double", "name": name} for name in NAMES]
    document = {"flavors": {"lightgbm": flavor}, "run_id": "r-1",
                "signature": {"inputs": json.dumps(inputs)}}  # fmt: skip
    (tmp_path / "MLmodel").write_text(json.dumps(document))
    code, _, err = ramrack("push", "risk", str(tmp_path), "--promote", "--meta", "team=a")
    assert code == 0, err
    details = server.expect(server.admin("GET", "/admin/v1/models/risk/versions/1"))
    assert details["meta"] == {"run_id": "r-1", "team": "a"}

    rows = np.random.default_rng(2).normal(size=(50, 3)).round(3)
    native = np.asarray(model.predict(rows))
    split = {"dataframe_split": {"columns": NAMES, "data": rows.tolist()}}
    labels = (native > 0.5).astype(int).tolist()
    for path in ("/invocations", "/v1/models/risk/invocations"):
        answer = server.expect(server.data("POST", path, json=split))
        assert answer == {"predictions": labels}
    lines = "\n".join([",".join(NAMES), *(",".join(map(str, row)) for row in rows.tolist())])
    answer = server.data(
        "POST", "/invocations", content=lines, headers={"content-type": "text/csv"}
    )
    assert server.expect(answer) == {"predictions": labels}
    wanted = split | {"params": {"output": "probabilities"}}
    found = server.expect(server.data("POST", "/invocations", json=wanted))["predictions"]
    np.testing.assert_allclose(np.array(found)[:, 1], native, rtol=0, atol=1e-5)
    assert server.data("GET", "/ping").status_code == 200
    # What computes it is the library: linear trees have no graph.
    metadata = server.expect(server.data("GET", "/v2/models/risk"))
    assert metadata["platform"] == "lightgbm"
    config = server.expect(server.data("GET", "/v2/models/risk/config"))
    assert (config["platform"], config["backend"]) == ("lightgbm", "lightgbm")


def _hostile_texts() -> dict[str, bytes]:
    text = booster(np.random.default_rng(3)).model_to_string()
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("split_feature="))
    count = len(lines[at].split(" "))
    wild = {
        "features": ("split_feature=", "999999999"),
        "children": ("left_child=", "999999999"),
    }
    found = {}
    for name, (start, value) in wild.items():
        changed = [
            start + " ".join([value] * count) if line.startswith(start) else line for line in lines
        ]
        # Sizes that the head announces would be found wrong at once.
        changed = [line for line in changed if not line.startswith("tree_sizes=")]
        found[name] = "\n".join(changed).encode()
    found["endless"] = b"tree\nversion=v4\nnum_class=1000000000\n" + b"x" * 100
    return found


def test_a_hostile_model_file_ends_nobody_but_its_inspection(server: RunningServer):
    """Put into the store past every check of the pusher: FAILED, and the workers never saw it."""
    pids = server.worker_pids()
    signature = Signature(
        (TensorSpec("input", "FP64", (-1, 3)),),
        (TensorSpec("label", "INT64", (-1,), labels=(0, 1)),
         TensorSpec("probabilities", "FP64", (-1, 2), labels=(0, 1))),
    )  # fmt: skip
    for name, text in _hostile_texts().items():
        model = f"hostile-{name}"
        document = {
            "format": 1, "model": model, "graph": upload(server, text), "tensors": [],
            "signature": signature.to_json(),
            "runtime": {"name": "native", "library": "lightgbm", "version": "4.7.0"},
        }  # fmt: skip
        path = f"/admin/v1/models/{model}/versions"
        version = server.expect(server.admin("POST", path, json=document))["version"]
        load_refused(server, model, version)
        assert server.worker_pids() == pids
        assert server.expect(server.infer("good", [ROW]))["outputs"][0]["data"] == ROW
