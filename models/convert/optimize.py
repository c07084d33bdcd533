"""The fastest form of a version that still answers as it should, found by trying them.

Each form is opened by the code that will serve it and runs beside the original, the same rows in
turns, on one thread: what else the machine does hits both alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.computed import engine_name
from models.convert.opened import answer_of, opened
from models.convert.quantize import MODES, Mode
from models.convert.text_push import with_record
from models.convert.variants import least_cosine, rows_for, smaller, unpacked, with_openvino
from models.errors import ConversionRefused, LoadFailed
from models.package import Package
from models.parity import Inputs, Parity, compare
from models.servable import Servable
from registry.manifest import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from models.convert.sample import Sample
    from models.servable import Array

COSINE_TOLERANCE: Final = 1e-3
DIFFERENCE_TOLERANCE: Final = 0.01
ORIGINAL: Final = "onnx, as converted"
_CHUNK_ROWS: Final = 8
_ROUNDS: Final = 30
_ROUNDS_S: Final = 3.0
_MIN_ROUNDS: Final = 5
# What must at least be gained for another form of the weights to be worth it.
_GAIN: Final = 0.95
# On another machine a form may be twice as far from the original as it is here; the check at a
# load doubles that once more.
_ELSEWHERE: Final = 2.0
_LEAST_TOLERANCE: Final = 1e-5
_MOST_TOLERANCE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Tried:
    """One form, and what it was measured to be; ``why_not``: why it was not or cannot be taken.

    ``run_ms``: processor time of a row alone. ``ratio``: of that to the original's, measured in
    turns. ``difference``: 1 - the least cosine of an embedding, or the largest relative difference
    of any number.
    """

    name: str
    run_ms: float | None = None
    ratio: float | None = None
    difference: float | None = None
    why_not: str = ""

    def to_json(self) -> JsonObject:
        """Return the row of the table."""
        return {
            "name": self.name,
            "run_ms": self.run_ms,
            "ratio": self.ratio,
            "difference": self.difference,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class Optimized:
    """What was tried, and the fastest that holds: None where that is the original.

    ``measure``: "1 - cosine" or "largest difference".
    """

    tried: tuple[Tried, ...]
    best: Package | None
    best_name: str
    measure: str
    tolerance: float


def optimize(
    base: Package, sample: Sample, tolerance: float | None, folder: Path,
    told: Callable[[str], None] = lambda _: None,
) -> Optimized:  # fmt: skip
    """Try every form that the model and this processor allow, and return what was found.

    ``folder`` must stay until the best one was sent. ``told`` is called with the name of what is
    tried next. Raises ConversionRefused where the original itself cannot be tried.
    """
    if engine_name(base.manifest) != "onnx":
        raise ConversionRefused("--optimize speed: this model has no graph, so nothing to choose")
    with tempfile.TemporaryDirectory(prefix="ramrack-") as place, opened(base) as original:
        graph = unpacked(base, Path(place))
        rows = rows_for(original, sample)
        trial = _Trial(original, rows, sample, tolerance)
        tried = [trial.itself()]
        packages: dict[str, Package] = {}
        for name, make in _forms(base, graph, folder):
            told(name)
            try:
                package = make()
                found, packages[name] = trial.of(name, package)
            except (ConversionRefused, LoadFailed) as error:
                found = Tried(name, why_not=str(error))
            tried.append(found)
    best = _fastest(tried)
    return Optimized(tuple(tried), packages.get(best), best, trial.measure, trial.tolerance)


def recorded(optimized: Optimized, original_version: int) -> Package | None:
    """Return the best package with a note of the version that it was made from."""
    if optimized.best is None:
        return None
    manifest = optimized.best.manifest
    forms: list[Json] = [each.to_json() for each in optimized.tried]
    meta: JsonObject = {
        **manifest.meta,
        "optimized_from": original_version,
        "optimized": {"form": optimized.best_name, "tried": forms},
    }
    return Package(replace(manifest, meta=meta), optimized.best.objects)


class _Trial:
    """The original, ready to run beside another form."""

    def __init__(
        self, original: Servable, rows: Inputs, sample: Sample, tolerance: float | None
    ) -> None:
        self._original = original
        self._rows = rows
        self._sample = sample
        self._wanted = answer_of(original, _CHUNK_ROWS)(rows)
        is_embedding = least_cosine(self._wanted, self._wanted) is not None
        self.measure = "1 - cosine" if is_embedding else "largest difference"
        usual = COSINE_TOLERANCE if is_embedding else DIFFERENCE_TOLERANCE
        self.tolerance = usual if tolerance is None else tolerance

    def itself(self) -> Tried:
        """Return the first row of the table."""
        times, _ = _timed(self._original, self._original, self._rows)
        return Tried(ORIGINAL, times * 1000, 1.0, 0.0)

    def of(self, name: str, package: Package) -> tuple[Tried, Package]:
        """Return how a form does, and its package with the record of that."""
        with opened(package) as form:
            got = answer_of(form, _CHUNK_ROWS)(self._rows)
            parity, cosine = self._compared(got)
            run_s, ratio = _timed(form, self._original, self._rows)
        difference = parity.max_difference if cosine is None else max(0.0, 1.0 - cosine)
        why_not = ""
        if not difference <= self.tolerance:
            why_not = "too far from the original"
        elif parity.label_disagreements:
            why_not = f"{parity.label_disagreements} labels differ"
        tried = Tried(name, run_s * 1000, ratio, difference, why_not)
        return tried, with_record(package, parity, self._sample, cosine)

    def _compared(self, got: Mapping[str, Array]) -> tuple[Parity, float | None]:
        cosine = least_cosine(got, self._wanted)

        def compared(tolerance: float) -> Parity:
            return compare(lambda _: got, lambda _: self._wanted, self._rows, tolerance)

        parity = compared(self.tolerance)
        if cosine is not None:
            # Angles are not what the check at a load compares: it gets what was seen of numbers.
            seen = max(_ELSEWHERE * parity.max_difference, _LEAST_TOLERANCE)
            parity = compared(min(seen, _MOST_TOLERANCE))
        return parity, cosine


def _forms(base: Package, graph: Path, folder: Path) -> list[tuple[str, Callable[[], Package]]]:
    """Return the forms to try by name; making one raises the reason why it cannot be."""
    forms: list[tuple[str, Callable[[], Package]]] = []
    makers: dict[Mode, Callable[[], Package]] = {}
    for mode in MODES:
        place = folder / mode
        place.mkdir(exist_ok=True)
        # Kept: two runtimes compute the same smaller weights.
        makers[mode] = cache(partial(_smaller, base, mode, graph, place))
        forms.append((f"onnx, {mode}", makers[mode]))
    forms.append(("openvino, float32", lambda: with_openvino(base, "f32")))
    forms.append(("openvino, bfloat16", lambda: _bfloat16(base)))
    small = makers["int8-weights"]
    forms.append(("openvino, int8-weights", lambda: with_openvino(small(), "int8")))
    return forms


def _smaller(base: Package, mode: Mode, graph: Path, folder: Path) -> Package:
    return smaller(base, mode, graph, folder)[0]


def _bfloat16(base: Package) -> Package:
    from models.runtime.openvino import has_bf16

    if not has_bf16():
        raise ConversionRefused("this processor has no bfloat16: it would compute in float32")
    return with_openvino(base, "bf16")


def _timed(form: Servable, original: Servable, rows: Inputs) -> tuple[float, float]:
    """Return the processor seconds of one row in ``form``, and the ratio to the original's."""
    count = min(len(array) for array in rows.values())
    mine: list[float] = []
    theirs: list[float] = []
    begin = time.perf_counter()
    for number in range(-1, _ROUNDS):
        place = max(number, 0) % count
        row = {name: array[place : place + 1] for name, array in rows.items()}
        pair = []
        for servable in (form, original):
            start = time.process_time()
            servable.run(row)
            pair.append(time.process_time() - start)
        if number < 0:
            continue  # what a first run sets up
        mine.append(pair[0])
        theirs.append(pair[1])
        if len(mine) >= _MIN_ROUNDS and time.perf_counter() - begin > _ROUNDS_S:
            break
    ratios = [a / max(b, 1e-9) for a, b in zip(mine, theirs, strict=True)]
    return statistics.median(mine), statistics.median(ratios)


def _fastest(tried: list[Tried]) -> str:
    best = ORIGINAL
    least = _GAIN
    for each in tried[1:]:
        if not each.why_not and each.ratio is not None and each.ratio < least:
            best, least = each.name, each.ratio
    return best
