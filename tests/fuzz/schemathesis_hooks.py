"""What Schemathesis leaves out here; it loads this module by name."""

from __future__ import annotations

from typing import Any

import schemathesis

_UNKNOWN = "x-schemathesis-unknown-property"


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Pass over headers that nobody documented: every client and proxy may send some."""
    return _UNKNOWN not in {name.lower() for name in case.headers or ()}
