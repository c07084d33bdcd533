"""Who may ask the admin plane: hosts, and pages of other hosts."""

from __future__ import annotations

import pytest

from tests.unit.serving.admin.http_calls import MODELS

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8081"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"host": "10.1.2.3:8081"}, 403),
        ({"host": "localhost:9999"}, 200),
        ({"host": "LOCALHOST."}, 200),
        ({"host": "[::1]:8081"}, 200),
    ],
)
async def test_foreign_host_is_refused(client, headers, status):
    """A name that only a rebound DNS entry could bring here is a 403."""
    answer = await client.get(MODELS, headers=headers)

    assert answer.status_code == status


async def test_configured_host_is_accepted(world):
    """Names of admin_hosts may stand in the Host header."""
    import dataclasses

    world.settings = dataclasses.replace(world.settings, admin_hosts="ramrack, models.internal")
    async with world.client() as client:
        answers = [
            await client.get(MODELS, headers={"host": host})
            for host in ("ramrack:8081", "models.internal", "models.external")
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 403]


async def test_health_answers_whatever_the_host(client):
    """Probes come by addresses that nobody configures."""
    answer = await client.get("/v2/health/live", headers={"host": "10.1.2.3"})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9000"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://127.0.0.1:8081", "sec-fetch-site": "same-origin"}, 200),
    ],
)
async def test_change_from_another_page_is_refused(client, headers, status):
    """A page of another site cannot change anything, not even with an empty body."""
    answer = await client.post("/admin/v1/gc", headers=headers)

    assert answer.status_code == status
