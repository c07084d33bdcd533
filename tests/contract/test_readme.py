"""The README's commands work as they stand, from top to bottom, for somebody who only copies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
# These take minutes, or run this very test; the demo has a test of its own.
SCRIPTS = [block for block in BLOCKS if block.startswith("scripts/")]


def test_the_scripts_that_it_names_exist():
    """Every script that the README calls is there and can be started."""
    named = set(re.findall(r"scripts/[a-z]+", README))
    assert named
    for name in named:
        assert os.access(ROOT / name, os.X_OK), name


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.extra
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_every_command_works_in_order(tmp_path: Path):
    """All blocks, run as one session in an empty folder, end well and give what is promised."""
    port, admin_port = free_port(), free_port()
    script = "\n".join(
        f"echo '## block {number}'\n{block}"
        for number, block in enumerate(BLOCKS) if block not in SCRIPTS
    )  # fmt: skip
    script = script.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", f"trap 'kill %1 || true' ERR\n{script}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env=os.environ | {
            "RAMRACK_PORT": str(port), "RAMRACK_ADMIN_PORT": str(admin_port),
            "RAMRACK_URL": f"http://127.0.0.1:{port}",
            "RAMRACK_ADMIN_URL": f"http://127.0.0.1:{admin_port}",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "parity with the native library" in done.stdout
    assert '"predictions"' in done.stdout
    assert '"model_version":"1"' in done.stdout
    assert "travel: version 2 gets 100 %; before that version 1" in done.stdout
    assert "travel: version 1 gets 100 %; before that version 2" in done.stdout
    assert "travel: the route is gone" in done.stdout
    assert "travel/1 is unloaded" in done.stdout
    assert "travel/2 is deleted" in done.stdout
    assert "error" not in done.stderr.lower()


def test_every_command_of_the_table_exists():
    """The README names all commands, and none that is not there."""
    from serving.cli.app import command

    named = set(re.findall(r"`ramrack ([a-z-]+)", README))
    assert named == set(command().commands)
