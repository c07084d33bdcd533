"""The zoo's models are made the same each time and answer what they promise."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.convert import ConvertOptions, convert
from models.convert.sample import read_sample
from models.parity import graph_answer
from models.signature import parse_signature
from models.zoo import BUILDERS, build_recommender
from models.zoo.__main__ import main
from models.zoo.recommender import TABLE_FILE, score, write_recommender


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("name", [n for n in BUILDERS if n != "recommender"])
def test_every_table_model_converts_on_its_sample(tmp_path, name):
    """Each model of a table passes its parity check on the sample that comes with it."""
    made = BUILDERS[name](tmp_path)
    package = convert(name, made.path, ConvertOptions(format=made.format, sample=made.sample))
    parity = package.manifest.parity
    assert parity["max_difference"] <= 1e-5
    assert parity["label_disagreements"] == 0
    outputs = {spec["name"] for spec in package.manifest.signature["outputs"]}
    assert set(made.expected) <= outputs
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(made.example_request))
    inputs = read_sample(rows).inputs(parse_signature(package.manifest.signature))
    graph = graph_answer(onnx.ModelProto.FromString(b"".join(package.objects[0].chunks())))
    got = graph(inputs)
    for output, expected in made.expected.items():
        if output == "label":
            assert got[output].tolist() == expected
        else:
            np.testing.assert_allclose(got[output], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_recommender_answers_its_example(tmp_path):
    """The graph answers what numpy computes from the same files."""
    made = build_recommender(tmp_path, mib=2)
    session = ort.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    request = {k: np.array(v) for k, v in made.example_request["inputs"].items()}
    (got,) = session.run(None, request)
    np.testing.assert_allclose(got, made.expected["score"], atol=1e-6)
    assert np.ptp(got) > 0.01


def test_recommender_variants_share_all_but_one_small_tensor(tmp_path):
    """A second version sends under 2 % of the bytes."""
    packages = [
        convert("recommender", write_recommender(tmp_path, mib=16, variant=v)) for v in (1, 2)
    ]
    first, second = ({o.digest: o.size_bytes for o in p.objects} for p in packages)
    new = sum(size for digest, size in second.items() if digest not in first)
    assert 0 < new < 0.02 * sum(second.values())
    answers = [score(tmp_path, np.array([1]), np.array([2]), mib=16, variant=v) for v in (1, 2)]
    assert answers[0] != answers[1]


def test_recommender_is_written_piece_by_piece_and_the_same_each_time(tmp_path):
    """Progress comes in pieces; a longer table begins with the shorter one; no half file stays."""
    seen = []
    write_recommender(
        tmp_path / "a", mib=9, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(8 << 20, 9 << 20), (9 << 20, 9 << 20)]
    write_recommender(tmp_path / "b", mib=8)
    longer = (tmp_path / "a" / TABLE_FILE).read_bytes()
    assert longer.startswith((tmp_path / "b" / TABLE_FILE).read_bytes())
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        TABLE_FILE, "recommender-1.onnx",
    ]  # fmt: skip


@pytest.mark.parametrize(("mib", "variant"), [(0, 1), (1 << 30, 1), (1, 0)])
def test_recommender_refuses_sizes_and_variants_that_make_no_sense(tmp_path, mib, variant):
    """The message names the value and the limits."""
    with pytest.raises(ValueError, match="is not allowed: use"):
        write_recommender(tmp_path, mib=mib, variant=variant)


def test_command_writes_an_index(tmp_path, capsys):
    """The index says where each model is and how to try it."""
    assert main([str(tmp_path), "--only", "recommender", "--recommender-mib", "1"]) == 0
    index = json.loads((tmp_path / "index.json").read_text())
    entry = index["recommender"]
    assert entry["format"] == "onnx"
    assert entry["example_request"]["path"] == "/v1/models/recommender:predict"
    assert len(entry["expected"]["score"]) == len(
        entry["example_request"]["body"]["inputs"]["user"]
    )
    assert "recommender: " in capsys.readouterr().out


def test_command_explains_wrong_usage(tmp_path, capsys, monkeypatch):
    """A size that is no number, and a missing library, are said in words."""
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path), "--recommender-mib", "many"])
    assert caught.value.code == 2
    assert "use a number from 1" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([str(tmp_path), "--only", "wine"]) == 1
    assert "pip install 'ramrack[lightgbm,sklearn]'" in capsys.readouterr().err
