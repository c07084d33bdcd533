"""What smaller weights lose: the rewritten graph beside the original, on given or made-up rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.convert.onnx_file import About, package_onnx, read_onnx
from models.convert.quantize import Mode, copy_flat, opens_in_place, quantize
from models.convert.sample import Sample
from models.errors import ConversionRefused, InputRefused, RunFailed
from models.graph_signature import graph_signature
from models.package import Package
from models.parity import Answer, Inputs, Parity, compare, graph_answer, labels_text
from models.servable import Array
from models.signature import Signature
from models.synthetic import MAX_ROWS, first_inputs, make_inputs
from registry.manifest import JsonObject

# What each mode is allowed to lose unless the user says otherwise.
TOLERANCES: Final[dict[Mode, float]] = {"int8": 0.1, "int8-weights": 0.05, "fp16": 0.01}
# A long text takes megabytes in each layer; many of them at once would take gigabytes.
_CHUNK_ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class Request:
    """What to make smaller, and how much of the answers may be lost for it.

    ``folder``: where the smaller weights are written; they must stay until the push is over.
    ``tolerance``: None takes that of the mode.
    """

    mode: Mode
    folder: Path
    tolerance: float | None = None


def package_smaller(
    name: str, path: Path, request: Request, sample: Sample | None, about: About
) -> Package:
    """Return the package of the ONNX file at ``path`` with smaller weights, its loss recorded.

    Raises ConversionRefused, with the figures, where more is lost than the tolerance allows.
    """
    small = quantize(path, request.mode, request.folder)
    model = read_onnx(path)
    signature = about.signature or graph_signature(model, ConversionRefused)
    tolerance = TOLERANCES[request.mode] if request.tolerance is None else request.tolerance
    original = path if opens_in_place(path, model) else copy_flat(path, request.folder)
    del model  # the sessions to come need the room
    parity = _measured(original, small.path, signature, sample, tolerance)
    refuse_loss(parity, request.mode, sample)
    source: JsonObject = {
        **about.source,
        "quantize": {
            "mode": request.mode,
            "weights": small.weights,
            "before_bytes": small.before_bytes,
            "after_bytes": small.after_bytes,
        },
    }
    record = _record(parity, sample, about.parity)
    return package_onnx(name, small.path, About(about.signature, record, source, about.meta))


def _measured(
    original: Path, small: Path, signature: Signature, sample: Sample | None, tolerance: float
) -> Parity:
    # One session after the other: each may hold a copy of its weights.
    original_answer, small_answer = _opened_late(original), _opened_late(small)
    inputs = _made_up(original, signature) if sample is None else sample.inputs(signature)
    return compare(small_answer, original_answer, inputs, tolerance)


def _opened_late(path: Path) -> Answer:
    return lambda inputs: graph_answer(path, _chunk_rows(inputs))(inputs)


def _chunk_rows(inputs: Inputs) -> int:
    return min([_CHUNK_ROWS, *(len(array) for array in inputs.values())])


def _made_up(path: Path, signature: Signature) -> Inputs:
    """Return rows that the original accepts."""
    answer = graph_answer(path, _CHUNK_ROWS)

    def run(inputs: Mapping[str, Array], _: object) -> list[Array]:
        try:
            return list(answer(dict(inputs)).values())
        except ConversionRefused as error:
            raise RunFailed(str(error)) from error

    try:
        style, _ = first_inputs(run, signature, MAX_ROWS)
    except (InputRefused, RunFailed) as error:
        raise ConversionRefused(
            f"no made-up row is accepted by the model ({error}): give real ones with --sample FILE"
        ) from error
    return make_inputs(signature, style, MAX_ROWS)


def refuse_loss(parity: Parity, mode: Mode, sample: Sample | None) -> None:
    """Raise ConversionRefused, with the figures, where more is lost than the tolerance allows."""
    if parity.is_within:
        return
    rows = "made-up rows" if sample is None else f"rows of {sample.file}"
    raise ConversionRefused(
        f"--quantize {mode} loses too much on {parity.rows} {rows}: largest difference "
        f"{parity.max_difference:.3g} ({parity.worst}), 99.9 % are below "
        f"{parity.p999_difference:.3g}, {labels_text(parity.label_disagreements, parity.ties)}; "
        f"the tolerance is {parity.tolerance:g}: raise it with --tolerance, or use a mode that "
        "loses less"
    )


def _record(parity: Parity, sample: Sample | None, before: JsonObject | None) -> JsonObject:
    """Return the record for the manifest; ``before`` is the conversion's own, if there was one."""
    record = parity.to_json()
    record["against"] = "the original"
    record["sample"] = sample.file if sample is not None else None
    if before is not None:
        # Its golden rows are not those of the graph that is served.
        record["conversion"] = {key: before[key] for key in before if key != "golden"}
    return record
