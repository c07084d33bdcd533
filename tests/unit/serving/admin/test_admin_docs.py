"""The page on the admin plane names what is there, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from serving.admin.guard import READ_PREFIXES
from serving.admin.table import CALLS

PAGE = Path(__file__).parents[4] / "docs" / "ADMIN_API.md"
_ROW = re.compile(r"^\| (`[A-Z]+ /.*?) \| (\w+) \|", re.MULTILINE)


def test_page_lists_every_call_with_its_scope():
    """Each call of the table is on the page, with the scope it needs, and so are the pages."""
    documented = {
        (call.split(" ")[0], call.split(" ")[1], scope)
        for calls, scope in _ROW.findall(PAGE.read_text(encoding="utf-8"))
        for call in re.findall(r"`([^`]+)`", calls)
    }

    served = {
        (call.method, call.path.replace(":name}", "}"), call.scope or "none") for call in CALLS
    }
    assert documented == served | {("GET", path, "read") for path in READ_PREFIXES}
