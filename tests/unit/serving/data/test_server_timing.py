"""The Server-Timing header: there for those who ask, and for nobody else."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.unit.serving.data.rig import Plane, serve

V2 = "/v2/models/fraud/infer"
V1 = "/v1/models/fraud:predict"
BODIES = {
    V2: {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
    V1: {"instances": [[1, 2, 3, 4]]},
}
PARTS = ["total", "queue", "input", "infer", "output"]


def parts_of(header: str) -> dict[str, float]:
    """Return the durations of a header in milliseconds; each is written as the standard has it."""
    found = {}
    for part in header.split(", "):
        match = re.fullmatch(r"([a-z]+);dur=(\d+\.\d{3})", part)
        assert match, part
        found[match[1]] = float(match[2])
    return found


@pytest.mark.parametrize("path", [V2, V1])
@pytest.mark.parametrize("has_lane", [True, False])
async def test_who_asks_is_told_where_the_time_went(
    plane: Plane, path: str, has_lane: bool
) -> None:
    """Total is no less than any part, on a head seen before, too; a bad request has none."""
    plane.add()
    async with (
        serve(plane.app, plane.settings, lane=plane.lane if has_lane else None) as served,
        httpx.AsyncClient(base_url=served.url, trust_env=False) as client,
    ):
        for asked in ("1", "1", "1", "0", None, "1"):
            headers = {} if asked is None else {"x-server-timing": asked}
            answer = await client.post(path, json=BODIES[path], headers=headers)
            assert answer.status_code == 200
            if asked != "1":
                assert "server-timing" not in answer.headers
                continue
            found = parts_of(answer.headers["server-timing"])
            assert list(found) == PARTS
            assert max(found.values()) == found["total"] > 0
            assert answer.headers["x-ramrack-version"] == "3"
        bad = await client.post(path, json={}, headers={"x-server-timing": "1"})
        assert (bad.status_code, "server-timing" in bad.headers) == (400, False)
