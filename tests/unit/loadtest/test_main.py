"""``python -m loadtest`` says what there is, and passes on what it does not do itself."""

from __future__ import annotations

import re

from loadtest.__main__ import NAMES, main


def test_the_help_lists_every_name_with_an_example(capsys):
    """A newcomer sees all of it in one place."""
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert re.findall(r"^  ([a-z-]+)  +\S", page, re.MULTILINE) == list(NAMES)
    for name in set(NAMES) - {"closed-loop"}:
        assert f"python -m loadtest {name} " in page


def test_an_unknown_name_is_wrong_usage(capsys):
    """The names that exist are listed; nothing at all is wrong usage too."""
    assert main(["locusts"]) == 2
    assert "'locusts' is not one of locust, open-loop" in capsys.readouterr().err
    assert main([]) == 2


def test_the_rest_of_the_line_goes_to_the_one_named(tmp_path, capsys):
    """Its exit code is ours."""
    body = tmp_path / "body.json"
    body.write_bytes(b"{}")
    assert main(["open-loop", "ftp://x/", str(body), "--rate", "1"]) == 2
    assert "only http://" in capsys.readouterr().err
