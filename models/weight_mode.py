"""Choosing how workers hold a version's weights, from what was measured of each form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

MIB: Final = 1 << 20
# What a plain session of any graph takes, within noise; below it there is nothing to save.
FLOOR_BYTES: Final = 4 * MIB
MIN_SHARE: Final = 0.05
# Of its private memory, a form has to save so much, and may cost so much more time.
MAX_LEFT: Final = 0.3
# A format that every worker copies all the same has to save this much of it only.
MAX_COMPACT: Final = 0.8
MAX_RATIO: Final = 1.03
# Slower by up to this is what a busy hour can make of a form that is as fast.
CLOSE_RATIO: Final = 1.15
# A load may take so many times as long; what is no second more is nobody's trouble.
MAX_LOAD: Final = 2.0
MORE_LOAD_S: Final = 1.0
TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode, and in words why it is this one."""

    mode: str
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One form of a version; ``ratios`` and ``run_s`` by rows, the ratio to the plain form."""

    load_s: float
    private_bytes: int
    difference: float
    ratios: Mapping[int, float]
    run_s: Mapping[int, float]


def reason_not_to_pack(weight_bytes: int, private_bytes: int) -> Choice | None:
    """Return the mode of a version that packing could not make smaller, None where it could."""
    if private_bytes <= max(FLOOR_BYTES, MIN_SHARE * weight_bytes):
        if not weight_bytes:
            return Choice("private", "it is small: its weights stand in the graph itself")
        return Choice(
            "mapped",
            f"of {_mib(weight_bytes)} of weights the runtime copies less than "
            f"{_mib(max(private_bytes, MIB))}",
        )
    return None


def is_in_graph(weight_bytes: int) -> bool:
    """Tell whether what takes the memory stands in the graph itself, which nothing maps."""
    return weight_bytes < FLOOR_BYTES


def choose_compact(measured: Mapping[str, Measured], why_not: str = "") -> Choice:
    """Return whether to serve weights of the graph itself in the runtime's own format.

    ``packed`` in the answer is that format. Each worker has its own copy in either.
    """
    plain, form = measured["private"], measured.get("packed")
    reason = why_not
    if form is not None:
        reason = _why_not_this("the runtime's own format", form, plain, MAX_COMPACT)
    where = "its weights stand in the graph itself, which nothing maps"
    if form is None or reason:
        return Choice("private", f"{where}; {reason}")
    return Choice(
        "packed",
        f"{where}: {_mib(form.private_bytes)} private in the runtime's own format instead of "
        f"{_mib(plain.private_bytes)}",
    )


def choose(measured: Mapping[str, Measured], why_not_packed: str = "") -> Choice:
    """Return the form to serve: mapped, else packed, where it saves memory and costs no time."""
    plain = measured["private"]
    reasons = []
    for mode, saves in (
        ("mapped", "the runtime needs no copy of its weights"),
        ("packed", "packed once for all workers"),
    ):
        form = measured.get(mode)
        if form is None:
            reasons.append(why_not_packed)
            continue
        if reason := _why_not_this(mode, form, plain, MAX_LEFT):
            reasons.append(reason)
            continue
        slowest = max(form.ratios.values(), default=1.0)
        sizes = ", ".join(map(str, form.ratios))
        return Choice(
            mode,
            f"{saves}: {_mib(form.private_bytes)} private instead of "
            f"{_mib(plain.private_bytes)}, at most {slowest:.2f} x the time at {sizes} rows",
        )
    return Choice("private", "; ".join(reason for reason in reversed(reasons) if reason))


def without_close(measured: Mapping[str, Measured]) -> dict[str, Measured]:
    """Return what was measured as if no form had been slower by as little as noise makes it."""
    return {
        name: replace(
            form, ratios={n: 1.0 if r <= CLOSE_RATIO else r for n, r in form.ratios.items()}
        )
        for name, form in measured.items()
    }


def least_of(first: Mapping[str, Measured], again: Mapping[str, Measured]) -> dict[str, Measured]:
    """Return two measurements of the same forms as one: of times the lesser, of all else the worse.

    What else the machine does only ever adds time.
    """
    return {
        name: Measured(
            load_s=min(one.load_s, other.load_s),
            private_bytes=max(one.private_bytes, other.private_bytes),
            difference=max(one.difference, other.difference),
            ratios={n: min(r, other.ratios.get(n, r)) for n, r in one.ratios.items()},
            run_s={n: min(s, other.run_s.get(n, s)) for n, s in one.run_s.items()},
        )
        for name, one in first.items()
        if (other := again.get(name)) is not None
    }


def _why_not_this(mode: str, form: Measured, plain: Measured, most: float) -> str:
    if form.private_bytes > most * plain.private_bytes:
        return (
            f"{mode} saves too little: {_mib(form.private_bytes)} private instead of "
            f"{_mib(plain.private_bytes)}"
        )
    if form.difference > TOLERANCE and mode != "mapped":
        return f"{mode} answers differently, by {form.difference:.1g} of the largest value"
    for rows, ratio in form.ratios.items():
        if ratio > MAX_RATIO:
            return f"{mode} takes {ratio:.2f} x the time at {rows} rows"
    if form.load_s > max(MAX_LOAD * plain.load_s, plain.load_s + MORE_LOAD_S):
        return f"{mode} takes {form.load_s:.1f} s to load instead of {plain.load_s:.1f}"
    return ""


def parse_measured(document: object) -> Measured:
    """Return a form as the child measured it; raises TypeError, KeyError or ValueError."""
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return Measured(
        load_s=float(document["load_s"]),
        private_bytes=int(document["private_bytes"]),
        difference=float(document["difference"]),
        ratios={int(rows): float(ratio) for rows, ratio in document["ratios"].items()},
        run_s={int(rows): float(seconds) for rows, seconds in document["run_s"].items()},
    )


def _mib(count: int) -> str:
    return f"{count / MIB:.0f} MiB" if count >= 10 * MIB else f"{count / MIB:.1f} MiB"
