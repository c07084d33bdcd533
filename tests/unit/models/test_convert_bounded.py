"""A conversion that does not end is ended, and all that it started with it."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.convert import ConvertOptions, convert
from models.convert.bounded import TookTooLong, run_bounded
from models.convert.elsewhere import convert_elsewhere
from models.convert.networks import Order, convert_network
from models.errors import ConversionRefused

_WAIT_S = 20.0


class Sleeper:
    """Unpickling one says which process does it, and never ends."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        code = (
            "import os, time; "
            f"open({str(self.marker)!r} + '.new', 'w').write(str(os.getpid())); "
            f"os.rename({str(self.marker)!r} + '.new', {str(self.marker)!r}); "
            "time.sleep(1000)"
        )
        return exec, (code,)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """An interpreter that starts another process and never ends; both note their numbers."""
    path = tmp_path / "endless"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -c ]; then echo "[[3, 11], []]"; exit; fi\n'
        f"sleep 1000 &\necho $! > {tmp_path}/pids\necho $$ >> {tmp_path}/pids\nwait\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_gone(folder: Path) -> None:
    pids = [int(line) for line in (folder / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def damaged(folder: Path) -> Path:
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps({}))
    return path


def test_a_file_on_which_its_library_never_ends_is_refused_with_what_to_do(
    tmp_path: Path, endless: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file, the time, and the option that gives more; no process and no file stay."""
    monkeypatch.setattr(sys, "executable", str(endless))
    with pytest.raises(ConversionRefused) as caught:
        convert("m", damaged(tmp_path), ConvertOptions(is_apart=True, timeout_s=0.5))
    assert str(caught.value) == (
        "'model.pkl': the conversion took longer than 0.5 s and was ended: a damaged file can make "
        "its library go on for ever. If the file is whole, give it more time with "
        "--convert-timeout SECONDS, such as 2"
    )
    all_gone(tmp_path)
    assert list(scratch.iterdir()) == []


def test_another_interpreter_has_the_same_time(tmp_path: Path, endless: Path, scratch: Path):
    """It too opens the file."""
    with pytest.raises(ConversionRefused, match=r"took longer than 0\.5 s"):
        convert_elsewhere(endless, "m", damaged(tmp_path), ConvertOptions(timeout_s=0.5))
    all_gone(tmp_path)
    assert list(scratch.iterdir()) == []


def test_a_network_has_the_same_time(
    tmp_path: Path, endless: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its library is in a process of its own, always."""
    monkeypatch.setattr(sys, "executable", str(endless))
    folder = tmp_path / "graph"
    folder.mkdir()
    with pytest.raises(ConversionRefused, match=r"'model.pkl': the conversion took longer"):
        convert_network(Order(damaged(tmp_path), "pt2", None, folder, timeout_s=0.5), 1e-5)
    all_gone(tmp_path)
    assert list(scratch.iterdir()) == []


def test_smaller_weights_are_measured_apart(
    tmp_path: Path, endless: Path, monkeypatch: pytest.MonkeyPatch
):
    """A graph may hold a loop without an end, and it is run for that."""
    monkeypatch.setattr(sys, "executable", str(endless))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a\x3a\x00")
    monkeypatch.setattr("models.convert.detect_format", lambda _: "onnx")
    options = ConvertOptions(quantize="int8", folder=tmp_path, is_apart=True, timeout_s=0.5)
    with pytest.raises(ConversionRefused, match=r"model\.onnx': the conversion took longer"):
        convert("m", path, options)
    all_gone(tmp_path)


def test_what_a_process_leaves_running_is_ended_with_it(tmp_path: Path):
    """Also where it ends in time itself, and what holds its pipes does not keep it waiting."""
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo said; echo why >&2; exit 3"
    ended = run_bounded(["/bin/sh", "-c", script], 30.0)
    assert (ended.code, ended.output, ended.errors) == (3, "said\n", "why\n")
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_of_what_is_said_without_end_the_end_is_kept(tmp_path: Path):
    """A library that warns in a loop fills no memory, and does not wait for a reader."""
    with pytest.raises(TookTooLong):
        run_bounded(["/bin/sh", "-c", "yes; sleep 1000"], 0.2)
    ended = run_bounded(["/bin/sh", "-c", "yes | head -c 1000000; echo end"], 30.0)
    assert ended.output.endswith("end\n")
    assert len(ended.output) == 64 * 1024


@pytest.mark.extra
@pytest.mark.slow
def test_the_conversion_ends_with_the_push(tmp_path: Path, scratch: Path):
    """Killed, or with the terminal closed: a loop without an end must not outlive who asked."""
    pytest.importorskip("joblib")
    marker, path = tmp_path / "pid", tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Sleeper(marker)))
    code = (
        "import sys; from pathlib import Path; from models.convert import ConvertOptions, convert; "
        "convert('m', Path(sys.argv[1]), ConvertOptions(is_apart=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as push:
        deadline = time.monotonic() + _WAIT_S
        while not marker.exists():
            assert push.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = int(marker.read_text())
        assert is_running(pid)
        push.send_signal(signal.SIGKILL)
    wait_until_gone(pid)
