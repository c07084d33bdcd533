"""What a new user types: wrong words are refused with what was seen and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.cli.predict import rows_of
from tests.unit.serving.cli.conftest import FakeServer


@pytest.fixture
def ramrack(ramrack, tmp_path: Path):
    """Run a command where there are a model and rows."""
    (tmp_path / "m.onnx").write_bytes(b"\x08\x09")
    (tmp_path / "rows.json").write_text("[]")
    return ramrack


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("serve", "--workers", "x"), "--workers: 'x' is not a whole number"),
        (("serve", "--port", "80.5"), "--port: '80.5' is not a whole number"),
        (("serve", "--admin-port", "-1"), "--admin-port: '-1' is too small: at least 0"),
        (("serve", "--threads-per-worker", ""), "--threads-per-worker: '' is not a whole number"),
        (("push", "m", "m.onnx", "--tolerance", "nan"), "'nan' is not allowed: use a number from"),
        (("push", "m", "m.onnx", "--tolerance", "-1"), "'-1' is not allowed: use a number from 0"),
        (("push", "m", "m.onnx", "--format", "spark"), "'spark' is not one of auto, onnx"),
        (("push", "m", "m.onnx", "--quantize", "int4"), "'int4' is not one of int8, int8-weights"),
        (("push", "m", "m.onnx", "--runtime", "gpu"), "'gpu' is not one of auto, onnx, native"),
        (("push", "m", "m.onnx", "--optimize", "size"), "'size' is not one of speed"),
        (("push", "m", "m.onnx", "--optimize", "speed"), "rows to judge by with --sample FILE"),
        (("push", "m", "m.onnx", "--optimize", "speed", "--sample", "rows.json",
          "--quantize", "int8"), "--optimize speed and --quantize exclude each other"),
        (("push", "m", "m.onnx", "--optimize", "speed", "--sample", "rows.json",
          "--runtime", "openvino"), "--optimize speed and --runtime exclude each other"),
        (("load", "m", "1", "--timeout", "abc"), "'abc' is not allowed: use a number from 0"),
        (("unload", "m", "1", "--timeout", "inf"), "'inf' is not allowed: use a number from 0"),
        (("events", "--limit", "1001"), "'1001' is not allowed: use a whole number from 1 to 1000"),
        (("events", "--since", "-1"), "'-1' is not allowed: use a whole number from 0"),
        (("load", "m", "-1"), "-1 is no option, and no argument is negative"),
        (("load", "m", "99999999999999999999999"), "is too large: at most 9007199254740991"),
        (("rollback", "m", "--to", "9999999999999999"), "an integer from 1 to 9007199254740991"),
        (("ls", "../x"), "model name '../x' is not allowed"),
        (("ls", "a?x=1"), "model name 'a?x=1' is not allowed"),
        (("ls", ""), "model name '' is not allowed"),
        (("events", "--model", "../x"), "model name '../x' is not allowed"),
        (("alias", "m", ""), "alias '' is not allowed"),
        (("predict", "m", "-i", "rows.json", "--version", "../x"), "version or alias '../x'"),
        (("predict", "m", "-i", "none.json"), "'none.json' does not exist: give a file, or -"),
        (("predict", "m", "-i", "."), "'.' is a folder: give a file, or -"),
        (("route", "m", "--delete", "--latest"), "--latest, --history and --delete exclude"),
        (("ls", "--admin-url", "foo"), "'foo' is no address of a server: use http://HOST:PORT"),
        (("ls", "--admin-url", "http://h:99999"), "'http://h:99999' is no address of a server"),
        (("ls", "--admin-url", "http://h/\n"), "is no address of a server"),
        (("snippet", "m", "--url", "ftp://h"), "'ftp://h' is no address of a server"),
    ],
)  # fmt: skip
def test_wrong_usage_names_what_was_seen_and_what_is_allowed(
    ramrack, server: FakeServer, arguments, expected
):
    """Every command, before any request, and with exit code 2."""
    code, out, err = ramrack(*arguments)
    assert (code, out, server.calls) == (2, "", [])
    assert expected in err.splitlines()[-1]


def test_a_password_in_an_address_is_not_shown(ramrack):
    """An address with a user is refused without being repeated."""
    code, _, err = ramrack("ls", "--admin-url", "http://me:secret@host:1")
    assert (code, "secret" in err) == (2, False)


@pytest.mark.parametrize("token", ["sec\nret", "sec ret", "sécret", "secret\udcff"])
def test_a_token_that_cannot_be_sent_is_never_shown(ramrack, server, monkeypatch, token: str):
    """Wrong usage of both planes, told by the name of the variable alone."""
    monkeypatch.setenv("RAMRACK_ADMIN_TOKEN", token)
    monkeypatch.setenv("RAMRACK_TOKEN", token)
    for arguments in (("ls",), ("push", "m", "m.onnx"), ("predict", "m", "-i", "rows.json"),
                      ("doctor",)):  # fmt: skip
        code, _, err = ramrack(*arguments)
        assert (code, server.calls) == (2, [])
        assert "TOKEN is not allowed: it may have printable ASCII characters only" in err
        assert "ret" not in err


def test_the_version_is_printed(ramrack):
    """--version names the program and its version."""
    code, out, err = ramrack("--version")
    assert (code, err) == (0, "")
    assert out.startswith("ramrack 0.")


def test_a_route_is_removed(ramrack, server: FakeServer):
    """--delete removes the route and says what that means."""
    server.answers["DELETE", "/admin/v1/models/m/route"] = [(200, {"model": "m", "split": []})]
    assert ramrack("route", "m", "--delete", "--reason", "old") == (
        0, "m: the route is gone; requests that name no version are refused\n", "",
    )  # fmt: skip
    assert server.calls[-1][2] == {"reason": ["old"]}
    assert json.loads(ramrack("route", "m", "--delete", "--json")[1]) == {"model": "m", "split": []}


@pytest.mark.parametrize(
    ("name", "content"), [("README.md", b"# Title\n"), ("x.csv", b"a,b\n1,2\n"), ("folder", None)]
)
def test_what_is_no_model_is_refused_before_the_server_is_asked(
    ramrack, server: FakeServer, tmp_path: Path, name: str, content: bytes | None
):
    """A text, a table and a folder are answered with what can be pushed."""
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    code, _, err = ramrack("push", "m", name)
    assert (code, server.calls) == (1, [])
    assert "push ONNX, a LightGBM text model, XGBoost JSON or UBJSON" in err


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "ramrack: a token is needed: set RAMRACK_ADMIN_TOKEN\n"),
        (403, "ramrack: token 'ci' lacks the scope 'push'\n"),
    ],
)
def test_push_learns_that_it_may_not_before_it_converts(
    ramrack, server: FakeServer, monkeypatch, status: int, expected: str
):
    """What lacks is said, and nobody waits for a conversion in vain."""
    monkeypatch.setattr("models.convert.convert", lambda *_, **__: pytest.fail("converted"))
    digest = "sha256:" + "0" * 64
    server.answers["HEAD", f"/admin/v1/blobs/{digest}"] = [(status, {})]
    server.answers["GET", "/admin/v1/workers"] = [
        (status, {"error": "token 'ci' lacks the scope 'push'"})
    ]
    assert ramrack("push", "m", "m.onnx") == (1, "", expected)


def test_doctor_tells_a_server_that_wants_a_token_from_none(ramrack, server: FakeServer):
    """A server that is up and refuses us is up; one that is no ramrack server is something else."""
    server.answers["GET", "/admin/v1/workers"] = [(401, {"error": "a token is needed"})]
    code, out, _ = ramrack("doctor")
    assert code == 0
    assert f"up at {server.url}" in out
    assert "a token is needed: set RAMRACK_ADMIN_TOKEN" in out
    server.answers["GET", "/v2/health/live"] = [(404, {})]
    assert f"something answers at {server.url}" in ramrack("doctor")[1]
    assert "none at http://127.0.0.1:1" in ramrack("doctor", "--admin-url", "http://127.0.0.1:1")[1]


def test_doctor_refuses_the_stores_that_serve_would_refuse(ramrack, tmp_path: Path):
    """A file, a path below one, a folder of other things: a fault, with what to do."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "photo.jpg").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for store, expected in (
        ("file", "it is a file, not a folder"), ("file/store", "file is a file, not a folder"),
        ("things", "it holds 'photo.jpg'"), ("link", "it is a file, not a folder"),
    ):  # fmt: skip
        code, out, _ = ramrack("doctor", "--store", store)
        line = next(line for line in out.splitlines() if line.startswith("disk under"))
        assert (code, expected in line, "choose" in line) == (1, True, True)
    for store in ("empty", "new/store"):
        assert ramrack("doctor", "--store", store)[0] == 0


def test_one_is_singular(ramrack, server: FakeServer):
    """No count of one carries a plural."""
    server.answers["POST", "/admin/v1/gc"] = [(200, {"objects": 1, "bytes": 5})]
    server.answers["POST", "/admin/v1/verify"] = [(200, {"objects": 1, "bytes": 5, "damaged": []})]
    assert ramrack("gc")[1] == "dropped 1 object, 5 B\n"
    assert ramrack("verify")[1] == "checked 1 object, 5 B\n"


FORMS = {
    "rows": ([{"x": 1}], "predict", {"predictions": [0.5]}),
    "V1 rows": ({"instances": [{"x": 1}]}, "predict", {"predictions": [0.5]}),
    "V1 columns": ({"inputs": {"x": [[1]]}}, "predict", {"outputs": {"y": [0.5]}}),
    "V2": ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}, "infer",
           {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [0.5]}]}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_prediction_is_counted_and_its_version_named(
    ramrack, server: FakeServer, tmp_path: Path, form: str
):
    """How many rows, by which version: on stderr, whatever was sent."""
    body, call, answer = FORMS[form]
    path = "/v1/models/m:predict" if call == "predict" else "/v2/models/m/infer"
    server.answers["POST", path] = [(200, answer)]
    (tmp_path / "body.json").write_text(json.dumps(body))
    code, out, err = ramrack("predict", "m", "-i", "body.json")
    assert (code, err) == (0, "1 row by m, version 7\n")
    assert "0.5" in out


def test_rows_of_an_answer_are_counted_where_its_form_says_so():
    """V1 by column is one list or several; an answer of no known form has no count."""
    assert rows_of({"outputs": [1, 2, 3]}) == 3
    assert rows_of({"outputs": {"a": [1, 2], "b": [1, 2]}}) == 2
    assert rows_of({"outputs": []}) == 0
    assert rows_of({"outputs": {}}) is None
    assert rows_of({}) is None


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        (b' [{"x": 1.5}]', [{"x": 1.5}]),
        (b"x\n1.5\n", [{"x": 1.5}]),
        (b"\xef\xbb\xbfx\n2\n", [{"x": 2.0}]),
    ],
)
def test_standard_input_is_read_for_a_dash(
    ramrack, server: FakeServer, monkeypatch, data: bytes, sent: list
):
    """JSON and CSV are told apart by their first character."""
    import io
    from types import SimpleNamespace

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    server.answers["GET", "/v2/models/m"] = [(200, {"inputs": inputs})]
    server.answers["POST", "/v1/models/m:predict"] = [(200, {"predictions": [0.5]})]
    assert ramrack("predict", "m", "--input", "-")[0] == 0
    assert json.loads(server.calls[-1][3]) == {"instances": sent}


def test_no_rows_are_nothing_to_predict(ramrack, server: FakeServer):
    """An empty file is told as such, once it is known that there is such a model."""
    server.answers["GET", "/v2/models/m"] = [(200, {"inputs": []})]
    assert ramrack("predict", "m", "-i", "rows.json") == (
        0, "", "rows.json has no rows: there is nothing to predict\n",
    )  # fmt: skip
    out = ramrack("predict", "m", "-i", "rows.json", "--json")[1]
    assert json.loads(out) == {"predictions": [], "model_versions": []}
    server.answers["GET", "/v2/models/m"] = [(404, {"error": "no model 'm'"})]
    assert ramrack("predict", "m", "-i", "rows.json") == (1, "", "ramrack: no model 'm'\n")
