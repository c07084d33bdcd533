"""An open-loop run as one HTML page with drawings inside: no script, nothing from another host."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.histogram import Latencies

_WIDTH: Final = 760
_HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 12, 44
_MOST_DOTS: Final = 4000
# Percents for the curve: as many points between 99 and 99.9 as between 0 and 90.
_NINES: Final = 4
_STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 800px; color: #222; }
table { border-collapse: collapse; } td { padding: .15em 1em .15em 0; }
td + td { text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: #a00; font-weight: bold; } svg { width: 100%; } text { font-size: 12px; fill: #555; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd; }
  text { fill: #aaa; } .bad { color: #f77; } }
"""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Places numbers on a line: ``ticks`` with what is written at them."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    place: Callable[[float], float] = lambda value: value

    def share(self, value: float) -> float:
        """Return where ``value`` is between both ends, 0 to 1."""
        low, high = self.place(self.low), self.place(self.high)
        return min(1.0, max(0.0, (self.place(value) - low) / ((high - low) or 1.0)))


def write_page(
    path: Path, title: str, report: Mapping[str, Any],
    samples: Sequence[tuple[float, float]], latencies: Latencies,
) -> None:  # fmt: skip
    """Write the page.

    ``report``: what the run printed. ``samples``: intended start in s and latency in ms of each
    answer, by start. ``latencies``: the same latencies, counted.
    """
    name = html.escape(title)
    parts = [
        "<!doctype html>",
        f"<html lang='en'><head><meta charset='utf-8'/><title>{name}</title>",
        f"<style>\n{_STYLE}</style></head>\n<body><h1>{name}</h1>",
        _verdict(report),
        "<h2>Latency by percentile</h2>",
        _percentiles(latencies),
        "<h2>Latency over time</h2>",
        "<p>Each dot is an answer, at the moment its request was meant to start.</p>",
        _over_time(samples),
        "<h2>Figures</h2>",
        _figures(report),
        "</body></html>\n",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


def _verdict(report: Mapping[str, Any]) -> str:
    if not report["valid"]:
        return (
            "<p class='bad'>Not valid: the load generator was late. What it saw says more about "
            "its own machine than about the server.</p>"
        )
    if report["failed"]:
        return f"<p class='bad'>{report['failed']} of {report['sent']} requests failed.</p>"
    return f"<p>{report['sent']} requests, all answered.</p>"


def _figures(report: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in report.items()
        if not isinstance(value, dict | list)
    ]
    rows += [
        f"<tr><td>failed: {html.escape(str(reason))}</td><td>{count}</td></tr>"
        for reason, count in dict(report.get("errors") or {}).items()
    ]
    return "<table>" + "\n".join(rows) + "</table>"


def _percentiles(latencies: Latencies) -> str:
    points = [1 - 10 ** (-_NINES * step / 200) for step in range(201)]
    values = latencies.curve([100 * point for point in points])
    ticks = [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"),
             (0.9999, "99.99 %")]  # fmt: skip
    axis = _Axis(0.0, points[-1], ticks, lambda share: -math.log10(max(1e-9, 1 - share)))
    return _svg(axis, points, values, is_line=True)


def _over_time(samples: Sequence[tuple[float, float]]) -> str:
    kept = _thinned(samples)
    high = max((start for start, _ in kept), default=1.0)
    ticks = [(each, f"{each:g} s") for each in _round_ticks(high)]
    return _svg(_Axis(0.0, high, ticks), [start for start, _ in kept],
                [latency for _, latency in kept], is_line=False)  # fmt: skip


def _thinned(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most so many dots: of each group the slowest, which must not fall out."""
    step = math.ceil(len(samples) / _MOST_DOTS) or 1
    return [
        max(samples[at : at + step], key=lambda sample: sample[1])
        for at in range(0, len(samples), step)
    ]


def _svg(across: _Axis, xs: Sequence[float], ys: Sequence[float], *, is_line: bool) -> str:
    if not ys:
        return "<p>Nothing was answered.</p>"
    top = max(ys) * 1.05 or 1.0
    up = _Axis(0.0, top, [(tick, f"{tick:g} ms") for tick in _round_ticks(top)])

    def x_of(value: float) -> str:
        return f"{_LEFT + across.share(value) * (_WIDTH - _LEFT - _RIGHT):.1f}"

    def y_of(value: float) -> str:
        return f"{_HEIGHT - _BOTTOM - up.share(value) * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>"]
    parts += [
        f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y_of(tick)}' y2='{y_of(tick)}' "
        f"stroke='#8884'/><text x='{_LEFT - 6}' y='{y_of(tick)}' text-anchor='end'>{label}</text>"
        for tick, label in up.ticks
    ]
    parts += [
        f"<text x='{x_of(tick)}' y='{_HEIGHT - 20}' text-anchor='middle'>{label}</text>"
        for tick, label in across.ticks
    ]
    if is_line:
        points = " ".join(f"{x_of(x)},{y_of(y)}" for x, y in zip(xs, ys, strict=True))
        parts.append(f"<polyline points='{points}' fill='none' stroke='#2a7' stroke-width='2'/>")
    else:
        parts += [f"<circle cx='{x_of(x)}' cy='{y_of(y)}' r='1.6' fill='#27a8'/>"
                  for x, y in zip(xs, ys, strict=True)]  # fmt: skip
    return "\n".join([*parts, "</svg>"])


def _round_ticks(high: float) -> list[float]:
    """Return four to nine round numbers from 0 to ``high``."""
    step = 10 ** math.floor(math.log10(high)) if high > 0 else 1.0
    if high / step < 2:
        step /= 5
    elif high / step < 4:
        step /= 2
    return [round(step * count, 9) for count in range(int(high / step) + 1)]
