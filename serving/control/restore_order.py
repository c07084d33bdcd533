"""In which order, and how many at once, what was loaded comes back: at a start, or later."""

from __future__ import annotations

from typing import Final

from registry.desired import Key
from serving.control.state_writer import StateWriter

# Each batch costs two rounds through all workers, a tenth of a second for a tiny version alone. A
# version of a batch answers when all of it is there, so what is large comes alone.
BATCH_VERSIONS: Final = 32
BATCH_BYTES: Final = 256 << 20
_ALIASED: Final = 1


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
    """Return what waits for memory and is asked for by name, routed versions first.

    The rest comes back when somebody loads it, or at a start: whoever makes room makes it for
    something, and that shall find it.
    """
    found = [key for key in writer.state.loaded if writer.is_waiting(key)]
    return sorted(
        (key for key in found if _urgency(writer, key) <= _ALIASED),
        key=lambda key: (_urgency(writer, key), key),
    )


def _urgency(writer: StateWriter, key: Key) -> int:
    return writer.state.model(key[0]).urgency(key[1])
