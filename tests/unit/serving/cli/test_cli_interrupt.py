"""Ctrl-C: at any moment it ends a command with 1, without a traceback, and says what was done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from models.errors import ConversionRefused
from models.package import BytesObject, Package
from registry.manifest import Manifest
from serving.cli import main
from serving.cli.interrupt import Interrupt
from tests.unit.serving.cli.conftest import FakeServer


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def swallowed() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        press()


def made_an_error() -> None:
    try:
        press()
    except KeyboardInterrupt as error:
        raise ConversionRefused("the library failed") from error


def run_program(program: str, server: FakeServer) -> subprocess.CompletedProcess[bytes]:
    """Run Python code that runs a command against the server."""
    return subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"RAMRACK_ADMIN_URL": server.url},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def push(server: FakeServer, tmp_path: Path, monkeypatch, capsys):
    """Push a small package whose conversion does ``work``; returns exit code and stderr."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x09")
    graph = BytesObject.of(b"graph")
    manifest = Manifest("m", graph.digest, (), {}, {"name": "onnx"})

    def run(work, *options: str) -> tuple[int, str]:
        def convert(*_: object, **__: object) -> Package:
            work()
            return Package(manifest, (graph,))

        monkeypatch.setattr("models.convert.convert", convert)
        code = main(["push", "m", str(path), "--admin-url", server.url, *options])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("work", [press, swallowed, made_an_error])
def test_a_push_stopped_while_it_converts_sends_nothing(push, server: FakeServer, work):
    """Also where a library swallows the interrupt, or makes an error of its own out of it."""
    assert push(work) == (1, "ramrack: stopped, nothing was pushed\n")
    assert {call[0] for call in server.calls} == {"GET", "HEAD"}
    assert server.versions == {}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_push_stopped_while_it_loads_says_that_the_version_is_there(push, server, monkeypatch):
    """What was registered before Ctrl-C is named."""
    monkeypatch.setattr("serving.cli.push.bar", lambda title: stopping_at(title))
    code, err = push(lambda: None, "--load")
    assert (code, err) == (1, "ramrack: stopped, but m/1 was pushed: see `ramrack ls m`\n")
    assert [call[1] for call in server.calls if call[0] == "POST"] == [
        "/admin/v1/models/m/versions"
    ]


class stopping_at:  # noqa: N801 - stands for a function
    """A bar whose second use, for the load, begins with a Ctrl-C that is swallowed."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __enter__(self):
        if self.title.startswith("loading"):
            swallowed()
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, *_: object) -> None:
        """Show nothing."""


def test_an_interrupt_of_one_command_does_not_stop_the_next(push, server: FakeServer):
    """The mark is of one run."""
    assert push(swallowed)[0] == 1
    assert push(lambda: None) == (0, "")
    assert list(server.versions) == ["m"]


def test_a_command_in_the_background_goes_on_ignoring_the_interrupt(push, server: FakeServer):
    """A shell ignores Ctrl-C for what it starts with &; so do we."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert push(press) == (0, "")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(server.versions) == ["m"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["serving.cli.boundary", "typer", "serving.cli.doctor", "httpx", "rich.console"]
)
def test_an_interrupt_during_imports_is_quiet(server: FakeServer, module: str):
    """Whatever is being imported, the command ends with 1 and not a word."""
    server.add_version("m")
    program = (
        "import os, signal, sys\n"
        "class Pressing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressing())\n"
        "from serving.cli import main\n"
        "sys.argv = ['ramrack', 'ls']\n"
        "sys.exit(main())\n"
    )
    done = run_program(program, server)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


@pytest.mark.slow
def test_an_interrupt_that_an_import_swallows_ends_the_command_at_the_next_request(
    server: FakeServer,
):
    """In a destructor nothing can be raised: the mark is heeded instead, and no word is printed."""
    program = (
        "import os, signal, sys\n"
        "class Pressing:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('typer', 'httpx'):\n"
        "            Pressing()\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from serving.cli import main\n"
        "sys.argv = ['ramrack', 'ls']\n"
        "sys.exit(main())\n"
    )
    done = run_program(program, server)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert server.calls == []


@pytest.mark.slow
def test_an_interrupt_at_the_very_end_is_quiet(server: FakeServer):
    """Once a command is done, Ctrl-C changes neither its code nor its output."""
    server.add_version("m")
    program = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from serving.cli import main\n"
        "sys.argv = ['ramrack', 'ls', '--json']\n"
        "sys.exit(main())\n"
    )
    done = run_program(program, server)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"models"' in done.stdout


@pytest.mark.slow
def test_output_that_finds_no_room_is_one_line():
    """A full disk under the output is an error of one line, not of the interpreter's end."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli", "--version"], stdout=full,
            stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1, b"ramrack: [Errno 28] No space left on device\n"
    )  # fmt: skip


def test_another_signal_is_taken_as_ctrl_c_inside_a_block_only():
    """Marked as well, so that the process ends with its own code; afterwards it is as before."""
    before = signal.getsignal(signal.SIGTERM)
    interrupt = Interrupt()
    with pytest.raises(KeyboardInterrupt), interrupt.also(signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
    assert interrupt.is_pressed
    assert signal.getsignal(signal.SIGTERM) is before
