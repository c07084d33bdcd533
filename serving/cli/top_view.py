"""How ``ramrack top`` shows what it read: a table that fits 80 columns, and two lines below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from serving.cli.output import size_text

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

COLUMNS: Final = ("model", "ver", "state", "aliases", "traffic", "shared", "private", "req/s",
                  "p50 ms", "p99 ms", "err/s")  # fmt: skip
# Names may be cut, numbers never.
_MODEL, _ALIASES = COLUMNS.index("model"), COLUMNS.index("aliases")
_LEAST_ALIASES: Final = 5
_LEFT: Final = frozenset({"model", "state", "aliases", "traffic"})
# Lines of the screen that are not rows of the table.
_OTHER_LINES: Final = 6
_PIPE_COLUMNS: Final = 4000


def cells(version: Mapping[str, Any]) -> list[str]:
    """Return one row. ``private`` is a worker's; ``err/s`` counts refusals and failures."""
    traffic = f"{version['traffic']} %" if version["traffic"] else ""
    traffic = traffic or ("shadow" if version["is_shadow"] else "")
    traffic = traffic or ("before" if version["is_previous"] else "-")
    errors = version["refused_per_s"] + version["failed_per_s"]
    return [
        _printable(version["model"]),
        str(version["version"]),
        version["state"],
        _printable(",".join(version["aliases"])) or "-",
        traffic,
        _short_size(version["shared_bytes"]),
        _short_size(version["private_bytes_per_worker"]),
        _short(version["requests_per_s"]),
        _short(version["p50_ms"]),
        _short(version["p99_ms"]),
        _short(errors) if errors else "-",
    ]


def footer(seen: Mapping[str, Any]) -> list[str]:
    """Return the lines about workers and memory."""
    workers = ", ".join(
        f"{worker['slot']}: {worker['state']}"
        + ("" if worker["cpu"] is None else f" {worker['cpu']:.0%} CPU")
        for worker in seen["workers"]
    )
    memory = seen["memory"]
    committed, budget, free = (
        size_text(memory[key]) for key in ("committed_bytes", "budget_bytes", "free_bytes")
    )
    return [
        f"workers  {workers or 'none'}",
        f"memory   {committed} committed of {budget}, {free} free",
    ]


def plain(seen: Mapping[str, Any]) -> str:
    """Return all of it as text without colours: for a pipe, or for one look."""
    from rich.console import Console

    console = Console(width=_PIPE_COLUMNS, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(_table([cells(version) for version in seen["versions"]]))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([*lines, *footer(seen)])


def screen(
    seen: Mapping[str, Any], where: str, console: Console, problem: str = ""
) -> Group:  # fmt: skip
    """Return what a terminal shows; where rows do not fit, the busiest stay."""
    from rich.console import Group
    from rich.text import Text

    room = max(1, console.height - _OTHER_LINES)
    versions: Sequence[Mapping[str, Any]] = seen["versions"]
    left_out = len(versions) - room
    if left_out > 0:
        versions = sorted(versions, key=lambda version: -version["requests_per_s"])[:room]
    below = [Text(line, no_wrap=True, overflow="ellipsis") for line in footer(seen)]
    if left_out > 0:
        below.insert(0, Text(f"{left_out} more that are less busy"))
    if problem:
        below.insert(0, Text(problem, style="bold red", no_wrap=True, overflow="ellipsis"))
    head = Text(f"ramrack top  {where}  q: end", style="bold", no_wrap=True, overflow="ellipsis")
    rows = fitted([cells(version) for version in versions], console.width)
    return Group(head, _table(rows), *below)


def narrow(versions: Sequence[Mapping[str, Any]], columns: int) -> str:
    """Return the table alone as text of at most so many columns."""
    from rich.console import Console

    console = Console(width=columns, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(_table(fitted([cells(version) for version in versions], columns)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def fitted(rows: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    """Return the rows with names cut so far that a line has at most ``columns`` characters."""
    widths = [max(map(len, values)) for values in zip(COLUMNS, *rows, strict=True)]
    names = (_MODEL, _ALIASES)
    room = columns - sum(width + 1 for place, width in enumerate(widths) if place not in names) - 2
    aliases = min(widths[_ALIASES], max(_LEAST_ALIASES, room - widths[_MODEL], room // 3))
    most = {_MODEL: max(1, room - aliases), _ALIASES: aliases}
    return [
        [_cut(cell, most.get(place, len(cell))) for place, cell in enumerate(row)] for row in rows
    ]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _table(rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _printable(text: str) -> str:
    # A name from elsewhere must not be able to steer the terminal.
    return "".join(character if character.isprintable() else " " for character in text)


def _short(value: float | None) -> str:
    """Return a number in at most six characters."""
    if value is None:
        return "-"
    if value >= 100_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _short_size(size_bytes: int | None) -> str:
    return size_text(size_bytes).replace("iB", "").replace(" ", "")
