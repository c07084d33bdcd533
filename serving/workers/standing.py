"""How versions stand over all workers, by what each slot's worker said last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from registry.lifecycle import State
from serving.fleet import VersionKey, VersionReport
from serving.workers.slot import Slot


def is_settled(slots: Iterable[Slot], generation: int, dangerous: Collection[VersionKey]) -> bool:
    """Return whether every worker that counts holds ``generation`` or a later one.

    ``dangerous``: wanted versions that are not quarantined; a worker that one of them killed counts
    until it is back, for whether that version can serve is not known before. One that was not told
    of a version yet, for its objects are checked, does not hold the generation either.
    """
    present = [slot for slot in slots if not slot.is_retired]
    if not any(slot.speaks_for_itself for slot in present):
        return False
    counted = [
        s for s in present
        if s.is_listening or s.is_early or not s.blamed.isdisjoint(dangerous)
    ]  # fmt: skip
    return all(
        s.speaks_for_itself and s.generation >= generation and s.owed.isdisjoint(dangerous)
        for s in counted
    )


def standing(
    slots: Sequence[Slot],
    wanted: Iterable[VersionKey],
    quarantined: Mapping[VersionKey, str],
) -> dict[VersionKey, VersionReport]:
    """Return how each wanted version stands, those that killed too many workers as FAILED."""
    found = {}
    for key in wanted:
        reports = [s.reports[key] for s in slots if s.speaks_for_itself and key in s.reports]
        if reports:
            found[key] = _merged(reports)
    for key, reason in quarantined.items():
        found[key] = VersionReport(State.FAILED, reason)
    return found


def _merged(reports: Sequence[VersionReport]) -> VersionReport:
    """Return how a version stands over all workers: FAILED if any failed it."""
    failed = [report for report in reports if report.state == State.FAILED]
    # What more memory would not mend is the one to tell.
    first = min(failed or reports, key=lambda report: report.is_out_of_memory)
    return VersionReport(
        first.state,
        first.reason,
        max(report.load_s for report in reports),
        max(report.private_bytes for report in reports),
        first.is_out_of_memory,
        tuple(report.private_bytes for report in reports if report.state == State.READY),
    )
