"""The edge of the command: what it imports, and how it ends when something unplanned happens."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models.errors import ConversionRefused
from serving.cli import main, output, upkeep
from serving.cli.options import ADMIN_URL_DEFAULT, DATA_URL_DEFAULT
from serving.cli.output import print_table, size_text
from serving.client.admin import ADMIN_URL
from serving.client.data import DATA_URL

# Enough to be taken for a model until its reader looks.
ONNX_HEAD = b"\x08\x09"
HEAVY = ("onnxruntime", "onnx", "numpy", "sklearn", "lightgbm", "pandas", "httpx", "fastapi")


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    """--help of the command and of push comes without runtimes, training or HTTP libraries."""
    program = (
        "import sys; from serving.cli import main\n"
        "codes = [main(['--help']), main(['push', '--help']), main(['serve', '--help'])]\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(codes, loaded, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[0, 0, 0] []"


def test_the_default_addresses_are_the_clients():
    """The command line repeats them only to stay light."""
    assert (ADMIN_URL_DEFAULT, DATA_URL_DEFAULT) == (ADMIN_URL, DATA_URL)


def test_the_bound_of_events_is_the_servers():
    """What --limit allows is what the server gives."""
    from serving.admin.calls import MAX_EVENTS

    assert upkeep.MAX_EVENTS == MAX_EVENTS


def failing(error: BaseException):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConversionRefused("use a newer file"), "ramrack: use a newer file\n"),
        (FileNotFoundError(2, "No such file or directory", "x.csv"),
         "ramrack: x.csv: No such file or directory\n"),
        (OSError("the disk is gone"), "ramrack: the disk is gone\n"),
        (MemoryError(), "ramrack: not enough memory for this command\n"),
        (KeyboardInterrupt(), ""),
    ],
)  # fmt: skip
def test_every_failure_is_one_line_and_ends_with_one(monkeypatch, capsys, error, expected):
    """Planned errors show their text, an interrupt shows nothing, and the code is 1."""
    monkeypatch.setattr("serving.cli.listing.admin_client", failing(error))
    assert main(["ls"]) == 1
    assert capsys.readouterr().err == expected


def test_an_unplanned_error_names_its_place_without_a_traceback(monkeypatch, capsys):
    """A bug is one line with kind, text, module and line."""
    monkeypatch.setattr("serving.cli.listing.admin_client", failing(KeyError("price")))
    assert main(["ls"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("ramrack: unexpected KeyError: 'price' (at tests.")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error():
    """`ramrack doctor | head -1` ends quietly."""
    program = "from serving.cli import main; import sys; sys.exit(main(['push', '--help']))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 1)
    assert err == b""


@pytest.mark.slow
def test_ctrl_c_is_quiet(server, tmp_path: Path):
    """An interrupt while a command waits ends it with 1 and not a word."""
    server.add_version("m")
    running = {"id": "op1", "state": "running", "stage": "", "progress": 0}
    server.answers["POST", "/admin/v1/models/m/versions/1:load"] = [(202, running)]
    server.answers["GET", "/admin/v1/operations/op1"] = [(200, running)]
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "load", "m", "1"],
        env=os.environ | {"RAMRACK_ADMIN_URL": server.url},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert server.was_polled.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, b"", b"")


def test_sizes_are_short_and_honest():
    """Units by 1024, bytes whole, nothing known is a dash."""
    assert [size_text(n) for n in (None, 0, 1023, 1024, 1536, 5 << 30, 1 << 50)] == [
        "-", "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "1024.0 TiB",
    ]  # fmt: skip


def test_tables_in_a_pipe_are_never_folded(capsys):
    """A long cell stays on its line where no terminal asks for less."""
    print_table(("a", "b"), [("x" * 300, 1), (None, 22)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1] == "x" * 300 + "   1"
    assert lines[2].startswith("-")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_on_a_terminal_only_once_it_takes_long(monkeypatch):
    """Short work shows nothing; long work shows a bar, and never where nobody looks."""
    for stream, quiet_s, is_shown in (
        (Terminal(), 3600.0, False), (Terminal(), 0.0, True), (io.StringIO(), 0.0, False),
    ):  # fmt: skip
        monkeypatch.setattr(output, "QUIET_S", quiet_s)
        monkeypatch.setattr(sys, "stderr", stream)
        with output.bar("sending") as shown:
            shown.update(1, 2, "part")
            shown.update(2, 2, "part")
        assert bool(stream.getvalue()) is is_shown


def test_working_ends_whatever_happens(monkeypatch):
    """The spinner is gone after a failure too, and short work never shows it."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(ConversionRefused), output.working("converting"):
        raise ConversionRefused("no")
    assert stream.getvalue() == ""


@pytest.fixture
def fake_package(monkeypatch):
    """Let push send a package without any training library."""
    from models.package import BytesObject, Package
    from registry.manifest import Manifest, TensorEntry

    graph, tensor = BytesObject.of(b"graph"), BytesObject.of(b"t" * 2048)
    manifest = Manifest(
        "m", graph.digest, (TensorEntry(tensor.digest, 2048),), {}, {"name": "onnx"},
        parity={"rows": 40, "max_difference": 3e-7},
    )  # fmt: skip
    seen: list[tuple] = []

    def convert(*arguments: object, before_pickle) -> Package:
        seen.append(arguments)
        if str(arguments[1]).endswith(".pkl"):
            before_pickle()
        return Package(manifest, (graph, tensor))

    monkeypatch.setattr("models.convert.convert", convert)
    return seen


def test_push_prints_sizes_savings_difference_and_version(
    server, tmp_path: Path, capsys, fake_package
):
    """A push says what was sent, what was there already, how exact it is and its number."""
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps({}))
    arguments = ["push", "m", str(path), "--admin-url", server.url]
    assert main([*arguments, "--meta", "commit=abc"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[:2] == [
        "m: 2.0 KiB in 2 objects, 2.0 KiB sent, 0 B were there already",
        "parity with the native library: largest difference 3e-07 on 40 rows",
    ]
    assert captured.out.splitlines()[2].startswith("new version 1 (sha256:")
    assert captured.err == (
        "note: opening m.pkl runs code from that file; push only files you trust\n"
    )
    assert fake_package[0][-1].meta == {"commit": "abc"}
    assert fake_package[0][-1].is_apart  # a damaged file may crash its library
    assert fake_package[0][-1].timeout_s == 3600.0  # or have it go on for ever
    assert main([*arguments, "--json", "--load"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["version"], result["bytes_sent"], result["bytes_saved"]) == (2, 0, 2053)
    assert result["state"] == "READY"


def test_push_says_where_meta_is_not_kept(server, tmp_path: Path, capsys, fake_package):
    """The same content is the old version with its old meta; whoever gave another one is told."""
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX_HEAD)
    same = (200, {"model": "m", "version": 1, "digest": "sha256:1", "created": False})
    server.answers["POST", "/admin/v1/models/m/versions"] = [same, same]
    arguments = ["push", "m", str(path), "--admin-url", server.url]
    assert main([*arguments, "--meta", "x=2"]) == 0
    captured = capsys.readouterr()
    assert "the same content is there as version 1" in captured.out
    assert captured.err.startswith("--meta is not kept: m/1 has this content already")
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""


def test_push_says_why_a_library_serves_the_model(
    server, tmp_path: Path, capsys, monkeypatch, fake_package
):
    """Where no graph is served the push says why, and --runtime reaches the conversion."""
    from models import convert

    package = convert.convert("m", tmp_path / "m", before_pickle=None)
    reason = "onnx: 3 of 10,000 rows differ; serving natively"
    manifest = dataclasses.replace(package.manifest, parity={"rows": 40, "reason": reason})
    native = dataclasses.replace(package, manifest=manifest)
    seen: list[Any] = []

    def to_native(*arguments: Any, before_pickle: object) -> object:
        seen.append(arguments[-1])
        return native

    monkeypatch.setattr("models.convert.convert", to_native)
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX_HEAD)
    arguments = ["push", "m", str(path), "--runtime", "native", "--admin-url", server.url]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[1] == reason
    assert seen[0].runtime == "native"


def test_push_loads_before_it_names_or_promotes(server, tmp_path: Path, capsys, fake_package):
    """--alias and --promote need a READY version, so the load comes first."""
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX_HEAD)
    arguments = ["push", "m", str(path), "--alias", "prod", "--promote", "--reason", "why"]
    assert main([*arguments, "--admin-url", server.url]) == 0
    changes = [(call[0], call[1].rsplit("/", 1)[-1]) for call in server.calls
               if call[0] in ("POST", "PUT")]  # fmt: skip
    assert changes[-3:] == [("POST", "1:load"), ("PUT", "prod"), ("PUT", "route")]
    assert all(call[2]["reason"] == ["why"] for call in server.calls[-4:-1])
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "m/1 is READY", "alias prod names it", "it gets 100 % of the traffic",
    ]  # fmt: skip


@pytest.mark.parametrize("option", [("--meta", "novalue"), ("--meta", "=x"), ("--alias", "UP"),
                                    ("--format", "word")])  # fmt: skip
def test_push_refuses_wrong_options_before_it_converts(server, tmp_path, option, fake_package):
    """Wrong usage costs nobody a conversion."""
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX_HEAD)
    assert main(["push", "m", str(path), *option, "--admin-url", server.url]) == 2
    assert (fake_package, server.calls) == ([], [])


def test_push_asks_for_the_server_before_it_converts(tmp_path, capsys, fake_package):
    """Without a server nobody waits for a conversion."""
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX_HEAD)
    assert main(["push", "m", str(path), "--admin-url", "http://127.0.0.1:1"]) == 1
    assert "no server at" in capsys.readouterr().err
    assert fake_package == []


def test_a_push_whose_version_has_no_room_says_which_it_is_and_how_to_make_some(
    server, tmp_path: Path, capsys, fake_package
):
    """The version is stored all the same: its number is told, then what lacks; JSON has it all."""
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX_HEAD)
    plan = {
        "model": "m", "version": 1, "budget_bytes": 4096, "needs_bytes": 2048, "free_bytes": 1024,
        "fits": False, "new_bytes": 1024, "private_bytes_per_worker": 512, "workers": 2,
        "would_evict": [{"model": "n", "version": 7, "frees_bytes": 3072}],
        "fits_after_evicting": True, "is_estimated": False,
    }  # fmt: skip
    refusal = (507, {"error": "no room", "plan": plan})
    server.answers["POST", "/admin/v1/models/m/versions/1:load"] = [refusal]
    server.answers["POST", "/admin/v1/models/m/versions/2:load"] = [refusal]
    arguments = ["push", "m", str(path), "--load", "--admin-url", server.url]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("new version 1 (")
    assert captured.err.splitlines()[0] == "ramrack: no room"
    assert "ramrack unload n 7   gives 3.0 KiB" in captured.err
    assert captured.err.splitlines()[-1] == "then try again: ramrack load m 1"
    assert main([*arguments, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["error"], told["plan"]) == (2, "no room", plan)
