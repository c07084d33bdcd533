"""install-service: what is written, what is only shown, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serving.cli import main
from serving.cli.service_units import Service, units

PROGRAM = sys.executable
FILES = ["ramrack-admin.socket", "ramrack-data.socket", "ramrack.service"]


def test_units_are_written_where_they_shall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is made, the files are named on stdout, and the next step on stderr."""
    folder = tmp_path / "new" / "units"
    code = main(["install-service", "--user-dir", str(folder), "--program", PROGRAM,
                 "--address", "0.0.0.0:9000", "--admin-address", "[::1]:9001"])  # fmt: skip
    said = capsys.readouterr()
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert sorted(said.out.split()) == [str(folder / name) for name in FILES]
    assert "systemctl daemon-reload" in said.err
    service = (folder / "ramrack.service").read_text()
    assert f"ExecStart={PROGRAM} serve\n" in service
    assert "Type=notify\n" in service
    assert "ListenStream=0.0.0.0:9000\n" in (folder / "ramrack-data.socket").read_text()
    assert "ListenStream=[::1]:9001\n" in (folder / "ramrack-admin.socket").read_text()


def test_a_dry_run_shows_all_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is the very text that would be written."""
    code = main(["install-service", "--dry-run", "--user-dir", str(tmp_path / "x"),
                 "--program", PROGRAM])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert not (tmp_path / "x").exists()
    for name, text in units(Service(program=PROGRAM)).items():
        assert f"# ---- {name}\n{text}" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--program", "/nowhere/ramrack"), "'/nowhere/ramrack' is no file"),
        (("--address", "8080"), "--address '8080': use HOST:PORT"),
        (("--address", "127.0.0.1:0"), "--address '127.0.0.1:0': use HOST:PORT"),
        (("--address", "127.0.0.1:99999"), "use HOST:PORT"),
        (("--admin-address", "a b:1"), "--admin-address 'a b:1': use HOST:PORT"),
        (("--admin-address", "127.0.0.1:1\nExec=x"), "use HOST:PORT"),
    ],
)
def test_what_no_unit_could_carry_is_refused(
    arguments: tuple[str, str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong address or program is wrong usage, and nothing is written."""
    given = dict([("--program", PROGRAM), arguments])
    flat = [text for pair in given.items() for text in pair]
    assert main(["install-service", "--user-dir", str(tmp_path / "x"), *flat]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_path_that_systemd_would_read_otherwise_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spaces and % mean something in a unit."""
    for name in ("a b", "a%h"):
        program = tmp_path / name
        program.touch()
        assert main(["install-service", "--dry-run", "--program", str(program)]) == 2
        assert "a path without spaces" in capsys.readouterr().err
