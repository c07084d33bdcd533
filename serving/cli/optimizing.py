"""``ramrack push --optimize speed``: which form of a model is fastest here and still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from serving.cli.interrupt import INTERRUPT
from serving.cli.output import print_table, working

if TYPE_CHECKING:
    from models.convert.optimize import Optimized, Tried
    from models.package import Package
    from registry.manifest import JsonObject


def optimized(package: Package, sample: Path, tolerance: float | None, folder: Path) -> Optimized:
    """Try the forms of a converted model on the sample; raises ConversionRefused."""
    from models.convert.optimize import optimize
    from models.convert.sample import read_sample

    with working("trying faster forms"):
        found = optimize(
            package, read_sample(sample), tolerance, folder, lambda _: INTERRUPT.check()
        )
    INTERRUPT.check()
    return found


def recorded(found: Optimized, original_version: int) -> Package | None:
    """Return what to push as well: the chosen form, with the version that it was made from."""
    from models.convert.optimize import recorded as package_of

    return package_of(found, original_version)


def print_optimized(found: Optimized) -> None:
    """Print the table, and what was chosen."""
    rows = [_row(each, found) for each in found.tried]
    print_table(("FORM", "MS A ROW", "OF THE TIME", found.measure.upper(), ""), rows)
    if found.best is None:
        print("nothing is faster and within the tolerance: the version stays as converted")
    else:
        print(f"chosen: {found.best_name}")


def optimized_json(found: Optimized) -> JsonObject:
    """Return what ``--json`` says of it."""
    return {
        "optimized": {
            "chosen": found.best_name,
            "measure": found.measure,
            "tolerance": found.tolerance,
            "tried": [each.to_json() for each in found.tried],
        }
    }


def _row(each: Tried, found: Optimized) -> tuple[object, ...]:
    run = "-" if each.run_ms is None else f"{each.run_ms:.2f}"
    ratio = "-" if each.ratio is None else f"{each.ratio:.2f}"
    difference = "-" if each.difference is None else f"{each.difference:.2g}"
    note = each.why_not or ("chosen" if each.name == found.best_name else "")
    return (each.name, run, ratio, difference, note)
