"""In which order, and how many at once, what was loaded comes back: at a start, or later."""

from __future__ import annotations

from typing import Final

from registry.desired import Key
from registry.errors import Conflict
from serving.control.state_writer import StateWriter

# Each batch costs two rounds through all workers, a tenth of a second for a tiny version alone. A
# version of a batch answers when all of it is there, so what is large comes alone.
BATCH_VERSIONS: Final = 32
BATCH_BYTES: Final = 256 << 20
ROOM_AGAIN: Final = "there is memory for it again"


def restore_batches(writer: StateWriter) -> list[list[Key]]:
    """Return the versions that wait to be restored: routed ones first, then those with aliases.

    No batch mixes these ranks, so that what most clients ask for is there first.
    """
    batches: list[list[Key]] = []
    batch_rank, batch_bytes = -1, 0
    for rank, key in sorted((_urgency(writer, key), key) for key in writer.restoring):
        size_bytes = writer.record(*key).disk_bytes
        is_room = batch_bytes + size_bytes <= BATCH_BYTES
        if rank == batch_rank and is_room and len(batches[-1]) < BATCH_VERSIONS:
            batches[-1].append(key)
            batch_bytes += size_bytes
        else:
            batches.append([key])
            batch_rank, batch_bytes = rank, size_bytes
    return batches


def waiting_for_memory(writer: StateWriter) -> list[Key]:
    """Return what waits for memory, routed versions first."""
    found = [key for key in writer.state.loaded if writer.is_waiting(key)]
    return sorted(found, key=lambda key: (_urgency(writer, key), key))


def refuse_restoring(writer: StateWriter, key: Key) -> None:
    """Raise Conflict for a version that the start has not brought back yet."""
    if key in writer.restoring or key in writer.warming:
        raise Conflict(
            f"{key[0]}/{key[1]} is still being loaded again after the server's start: try again "
            "when it is READY"
        )


def _urgency(writer: StateWriter, key: Key) -> int:
    return writer.state.model(key[0]).urgency(key[1])
