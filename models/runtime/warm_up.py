"""The last step of each load: a run with made-up inputs, so that a caller's is never the first."""

from __future__ import annotations

from typing import TypeVar

from models.errors import ModelsError, warm_up_failed
from models.memory import trim
from models.servable import Servable
from models.synthetic import first_inputs

ServableT = TypeVar("ServableT", bound=Servable)


def warmed(servable: ServableT) -> ServableT:
    """Return the servable once it has run, or close it and raise LoadFailed.

    OutOfMemory where that is why.
    """
    try:
        first_inputs(servable.run, servable.signature)
    except ModelsError as error:
        servable.close()
        raise warm_up_failed(error) from None
    trim()
    return servable
