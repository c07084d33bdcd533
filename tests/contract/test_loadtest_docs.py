"""docs/LOADTEST.md names every option of the load tests, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from loadtest import __main__ as loadtest_main
from loadtest.open_loop import _parser
from loadtest.users.options import add_options
from loadtest.users.shapes import SHAPES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "LOADTEST.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


class Options:
    """Notes what the locustfile adds to Locust's command line."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def add_argument_group(self, _title: str) -> Options:
        return self

    def add_argument(self, name: str, *, env_var: str, **_: object) -> None:
        self.found[name] = env_var


def test_every_option_of_the_locustfile_has_its_row():
    """Names and variables, both ways."""
    options = Options()
    add_options(options)  # type: ignore[arg-type]
    rows = re.findall(r"^\| `(--[a-z0-9-]+)[^`]*` \| `(\w+)` \|", section("Locust"), re.MULTILINE)
    assert dict(rows) == options.found


def test_every_shape_and_every_user_has_its_row():
    """What can be chosen by name."""
    rows = re.findall(r"^\| `(\w+)` \|", section("Locust"), re.MULTILINE)
    users = re.findall(r"^class (\w+)\(RamrackUser\)", _text("users/classes.py"), re.MULTILINE)
    assert [row for row in rows if not row.startswith("LOADTEST")] == [*users, *SHAPES]


def test_every_option_of_the_open_loop_has_its_row():
    """Both ways."""
    options = {
        option
        for action in _parser()._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }
    rows = re.findall(r"^\| `(--[a-z-]+)[^`]*` \|", section("The open loop"), re.MULTILINE)
    assert set(rows) == options


def test_every_part_of_the_command_is_named():
    """A newcomer finds each by what they want to know."""
    for name in loadtest_main.NAMES:
        assert f"python -m loadtest {name}" in PAGE


def _text(name: str) -> str:
    return (Path(loadtest_main.__file__).parent / name).read_text()
