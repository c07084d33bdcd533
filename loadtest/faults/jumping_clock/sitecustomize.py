"""Imported by every interpreter that has this folder on its path: its wall clock jumps by days."""

from __future__ import annotations

import datetime
import itertools
import time
from typing import TypeAlias

_DAY_S = 86_400.0
_days = itertools.cycle((0.0, 400 * _DAY_S, -400 * _DAY_S, _DAY_S, -_DAY_S))
_real_time, _real_time_ns = time.time, time.time_ns
_RealDatetime: TypeAlias = datetime.datetime


def _jumping() -> float:
    return _real_time() + next(_days)


def _jumping_ns() -> int:
    return _real_time_ns() + int(next(_days)) * 10**9


class _Known(type(_RealDatetime)):  # type: ignore[misc]
    """What is one stays one: only ``now`` is another."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RealDatetime)


class _JumpingDatetime(_RealDatetime, metaclass=_Known):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _RealDatetime:  # type: ignore[override]
        return _RealDatetime.fromtimestamp(_jumping(), tz)


time.time, time.time_ns = _jumping, _jumping_ns
datetime.datetime = _JumpingDatetime  # type: ignore[misc]
