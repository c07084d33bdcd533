"""Whoever copies a command from the documentation at night gets one that exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from serving.cli.app import command

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = command().commands
OPTIONS = {
    name: {x for parameter in one.params for x in (*parameter.opts, *parameter.secondary_opts)}
    for name, one in COMMANDS.items()
}


def calls(text: str) -> list[str]:
    """Return what a page shows of the ``ramrack`` command: in blocks and in sentences."""
    blocks = "\n".join(re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    found = (re.search(r"(?:^|[\s/(])ramrack ([a-z].*)", line) for line in lines)
    shown = [match[1] for match in found if match]
    return [*shown, *re.findall(r"`ramrack ([a-z][^`]*)`", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_shown_command_and_option_exists(page: Path) -> None:
    """No option that was renamed, no command that there never was."""
    wrong = []
    for call in calls(page.read_text("utf-8")):
        words = shlex.split(call.partition(" | ")[0], comments=True)
        name = words[0].strip(",;:.")
        if name not in COMMANDS:
            wrong.append(f"ramrack {call}: no such command")
            continue
        given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        wrong += [f"ramrack {call}: no option {o}" for o in given - OPTIONS[name] - {"--help"}]
    assert wrong == []


def test_calls_are_found_in_blocks_and_in_sentences() -> None:
    """Continued lines, comments and paths before the command."""
    text = "x `ramrack ps --json`\n```sh\n/opt/bin/ramrack push a \\\n  b --load  # why\n```\n"
    assert [shlex.split(call, comments=True) for call in calls(text)] == [
        ["push", "a", "b", "--load"], ["ps", "--json"],
    ]  # fmt: skip
