"""How much a request may ask of the codec before anything is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from registry.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request.

    ``max_nesting``: lists within lists in ``data``. ``max_tensors``: inputs, and outputs, named.
    ``max_tensor_bytes``: all inputs together after conversion, 8 bytes for each BYTES element.
    """

    max_nesting: int = 8
    max_dimensions: int = 8
    max_tensors: int = 10_000
    max_tensor_bytes: int = 512 * 1024**2


DEFAULT_LIMITS: Final = Limits()


def checked_count(shape: tuple[int, ...], item_bytes: int, where: str, limits: Limits) -> int:
    """Return the elements of a tensor, or raise InvalidInput where the sizes are absurd.

    Zeros count as ones for the bound: ``[0, 2**62]`` has no element, yet no array can have it.
    """
    count = 1
    bound = 1
    for size in shape:
        count *= size
        bound *= size or 1
    if bound * item_bytes > limits.max_tensor_bytes:
        raise InvalidInput(
            f"{where}: shape {list(shape)} takes {bound * item_bytes} bytes, "
            f"at most {limits.max_tensor_bytes} are allowed"
        )
    return count
