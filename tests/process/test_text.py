"""Texts over HTTP: pushed as a folder by the command, asked in every form that there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from models.convert import convert
from models.convert.opened import opened
from models.servable import Array
from models.text_form import parse_text_form
from tests import text_models
from tests.process.server import RunningServer, running_server

pytest.importorskip("tokenizers")
pytestmark = [
    pytest.mark.process, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(240),
]  # fmt: skip
ROWS = ["the quick brown fox", "", "lazy dog ?", "\N{GRINNING FACE} nul \0", "fox " * 400]


def ramrack(server: RunningServer, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "serving.cli", *arguments, "--json"],
        env=os.environ | {"RAMRACK_ADMIN_URL": server.admin_url},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_models.write_folder(tmp_path_factory.mktemp("text") / "tiny")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        ramrack(running, "push", "tiny", str(folder), "--load")
        mood = text_models.write_folder(folder.parent / "mood", labels=("bad", "good"))
        ramrack(running, "push", "mood", str(mood), "--load")
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> Array:
    """Each row alone, by the loader itself."""
    with opened(convert("tiny", folder)) as servable:
        answers = []
        for row in ROWS:
            array = np.empty(1, dtype=object)
            array[0] = row
            answers.append(servable.run({"text": array})[0][0])
    return np.stack(answers)


def post(server: RunningServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = server.data("POST", path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def binary(server: RunningServer, elements: list[bytes]) -> httpx.Response:
    payload = b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    head = json.dumps({"inputs": [{
        "name": "text", "datatype": "BYTES", "shape": [len(elements)],
        "parameters": {"binary_data_size": len(payload)},
    }]}).encode()  # fmt: skip
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return server.data("POST", "/v2/models/tiny/infer", content=head + payload, headers=headers)


def test_every_form_of_a_request_gets_its_embeddings(server: RunningServer, expected: Array):
    """V1 rows, V1 rows by name, V2 JSON and V2 binary answer the same, row for row."""
    path = "/v1/models/tiny:predict"
    plain = post(server, path, {"instances": ROWS})["predictions"]
    named = post(server, path, {"instances": [{"text": row} for row in ROWS]})["predictions"]
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(ROWS)], "data": ROWS}
    infer = post(server, "/v2/models/tiny/infer", {"inputs": [tensor]})["outputs"][0]
    assert infer["shape"] == [len(ROWS), text_models.WIDTH]
    sent = binary(server, [row.encode() for row in ROWS])
    answers = [plain, named, np.reshape(infer["data"], infer["shape"]),
               np.reshape(sent.json()["outputs"][0]["data"], infer["shape"])]  # fmt: skip
    for answer in answers:
        np.testing.assert_allclose(np.array(answer), expected, atol=2e-6)


def test_callers_at_once_get_their_own_rows(server: RunningServer, expected: Array):
    """Requests of one to four rows share runs, and nobody gets a neighbour's row."""

    def ask(number: int) -> tuple[list[int], Any]:
        places = [(number + step) % len(ROWS) for step in range(1 + number % 4)]
        body = {"instances": [ROWS[place] for place in places]}
        return places, post(server, "/v1/models/tiny:predict", body)["predictions"]

    with ThreadPoolExecutor(8) as pool:
        for places, answer in pool.map(ask, range(48)):
            np.testing.assert_allclose(np.array(answer), expected[places], atol=2e-6)


def test_a_class_comes_out_with_its_name(server: RunningServer):
    """The signature shows one BYTES input; the answer is a label of id2label."""
    shown = server.expect(server.data("GET", "/v2/models/mood"))
    assert [(i["name"], i["datatype"], i["shape"]) for i in shown["inputs"]] == [
        ("text", "BYTES", [-1])
    ]
    rows = post(server, "/v1/models/mood:predict", {"instances": ["good day", "bad dog"]})
    for row in rows["predictions"]:
        assert row["label"] == ("bad", "good")[int(np.argmax(row["probabilities"]))]


def test_bytes_that_are_no_text_are_a_400_that_names_the_element(server: RunningServer):
    """Not UTF-8 is the caller's fault; a null is refused, too."""
    refused = binary(server, [b"fox", b"\xff\xfe"])
    assert refused.status_code == 400
    assert "element 1 is not UTF-8: byte 0xff at 0" in refused.text
    message = post(server, "/v1/models/tiny:predict", {"instances": ["fox", None]}, 400)
    assert "instances[1]" in json.dumps(message)


def test_a_text_of_many_mebibytes_is_read_only_as_far_as_it_counts(server: RunningServer):
    """Eight MiB answer as their start does, and the server goes on answering meanwhile."""
    long = "the lazy dog " * (8 * 2**20 // 13)
    answer = post(server, "/v1/models/tiny:predict", {"instances": [long, long[:3000]]})
    first, second = answer["predictions"]
    assert first == second


def test_the_tokenizer_is_an_object_that_is_verified(server: RunningServer, tmp_path: Path):
    """A damaged tokenizer makes its version FAILED with the object named, as any damage does."""
    folder = text_models.write_folder(tmp_path / "cut")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    (folder / "vocab.txt").write_text("\n".join(text_models.WORDS[:-3]) + "\n\n\n\n")
    pushed = ramrack(server, "push", "cut", str(folder))
    where = f"/admin/v1/models/cut/versions/{pushed['version']}"
    digest = parse_text_form(convert("cut", folder).manifest).tokenizer
    path = server.store / "objects" / digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    server.load("cut", pushed["version"])
    after = server.expect(server.admin("GET", where))
    assert after["state"] == "FAILED"
    assert digest.removeprefix("sha256:")[:12] in after["reason"]


def test_the_fastest_form_is_pushed_beside_its_original(server: RunningServer, folder: Path):
    """--optimize speed: the original is a version of its own, and what is chosen names it."""
    pytest.importorskip("openvino")
    sample = folder.parent / "sample.json"
    sample.write_text(json.dumps({"text": ["the quick brown fox", "good day", "lazy dog ?"]}))
    pushed = ramrack(
        server, "push", "fast", str(folder), "--optimize", "speed", "--sample", str(sample),
        "--tolerance", "0.2", "--load",
    )  # fmt: skip
    names = [each["name"] for each in pushed["optimized"]["tried"]]
    assert names[0] == "onnx, as converted"
    assert pushed["optimized"]["chosen"] in names
    assert pushed["original"] == {"version": 1}
    version = server.expect(
        server.admin("GET", f"/admin/v1/models/fast/versions/{pushed['version']}")
    )
    assert version["state"] == "READY"
    if pushed["optimized"]["chosen"] != names[0]:
        assert pushed["version"] == 2
        assert version["meta"]["optimized_from"] == 1
    else:
        assert pushed["version"] == 1


def test_a_version_for_openvino_answers_over_http(
    server: RunningServer, folder: Path, expected: Array
):
    """--runtime openvino: the same texts, the same embeddings, private memory as measured."""
    pytest.importorskip("openvino")
    pushed = ramrack(server, "push", "ov", str(folder), "--runtime", "openvino", "--load")
    answer = post(server, "/v1/models/ov:predict", {"instances": ROWS})["predictions"]
    np.testing.assert_allclose(np.array(answer), expected, atol=2e-5)
    version = server.expect(
        server.admin("GET", f"/admin/v1/models/ov/versions/{pushed['version']}")
    )
    assert version["weights"]["mode"] == "private"
    assert "OpenVINO" in version["weights"]["reason"]
