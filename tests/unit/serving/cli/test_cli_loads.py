"""Commands that load, unload, and say what a load needs."""

from __future__ import annotations

import json

import pytest

from tests.unit.serving.cli.conftest import FakeServer, operation


def test_load_waits_for_the_end_of_the_operation(ramrack, server: FakeServer):
    """A load that is still running is asked for until it is over."""
    server.add_version("m")["traffic"] = 100
    server.answers["POST", "/admin/v1/models/m/versions/1:load"] = [
        (202, operation("load", "running"))
    ]
    server.answers["GET", "/admin/v1/operations/op1"] = [
        (200, operation("load", "running")), (200, operation("load", "succeeded")),
    ]  # fmt: skip
    code, out, _ = ramrack("load", "m", "1", "--reason", "ticket 5")
    assert code == 0
    assert "loaded in 0.25 s, gets 100 % of the traffic" in out
    post = next(call for call in server.calls if call[0] == "POST")
    assert post[2] == {"reason": ["ticket 5"], "wait": ["1.0"]}


def test_a_failed_load_ends_with_one_and_its_reason(ramrack, server: FakeServer):
    """The reason of the server is on stderr, whether it comes at once or later."""
    server.add_version("m")
    path = "/admin/v1/models/m/versions/1:load"
    server.answers["POST", path] = [(507, {"error": "needs 5 GiB, 1 GiB is free"})]
    assert ramrack("load", "m", "1") == (1, "", "ramrack: needs 5 GiB, 1 GiB is free\n")
    server.answers["POST", path] = [(202, operation("load", "running"))]
    failed = operation("load", "failed", "the graph is damaged")
    server.answers["GET", "/admin/v1/operations/op1"] = [(200, failed)]
    assert ramrack("load", "m", "1") == (1, "", "ramrack: the graph is damaged\n")


def test_a_load_that_takes_longer_than_asked_goes_on(ramrack, server: FakeServer):
    """--timeout ends the waiting, not the load, and says where to ask."""
    server.add_version("m")
    server.answers["POST", "/admin/v1/models/m/versions/1:load"] = [
        (202, operation("load", "running"))
    ]
    code, _, err = ramrack("load", "m", "1", "--timeout", "0")
    assert code == 1
    assert "still warming up after 0 s; it goes on in the server as operation op1" in err


def test_unload_waits_for_its_end(ramrack, server: FakeServer):
    """One sentence when the memory is given back."""
    server.add_version("m", "READY")
    assert ramrack("unload", "m", "1") == (0, "m/1 is unloaded\n", "")


def plan_document(**more: object) -> dict[str, object]:
    return {
        "model": "m", "version": 1, "budget_bytes": 4096, "needs_bytes": 2048, "free_bytes": 1024,
        "fits": False, "new_bytes": 1024, "private_bytes_per_worker": 512, "workers": 2,
        "would_evict": [], "fits_after_evicting": False, "is_estimated": False, **more,
    }  # fmt: skip


WITH_ROOM = {
    "would_evict": [
        {"model": "n", "version": 7, "frees_bytes": 3072},
        {"model": "other", "version": 12, "frees_bytes": 512},
    ],
    "fits_after_evicting": True,
}


@pytest.mark.parametrize(
    ("more", "out_has", "err"),
    [
        (
            {},
            ["lacks 1.0 KiB", "fits no"],
            ("nothing can be unloaded: every other loaded version is routed, aliased, or what a "
            "rollback goes back to (`ramrack ps` shows them); start the server with a larger "
            "--memory-budget\n"),
        ),
        (
            WITH_ROOM,
            ["budget 4.0 KiB", "fits no"],
            ("nothing is unloaded by itself; these versions answer nobody, so unload them:\n"
            "  ramrack unload n 7        gives 3.0 KiB\n"
            "  ramrack unload other 12   gives 512 B\n"
            "then try again: ramrack load m 1\n"),
        ),
        (
            {"fits": True, "free_bytes": 4096, "is_estimated": True,
             "private_bytes_per_worker": None, "state": "UNLOADED"},
            ["needs at least 2.0 KiB", "not known before the first load", "fits yes"],
            "",
        ),
        (
            {"fits": True, "free_bytes": 4096, "needs_bytes": 0, "state": "LOADING"},
            ["load of m/1, which is under way"],
            "",
        ),
        (
            {"state": "FAILED", "state_reason": "it waits; it comes back by itself", **WITH_ROOM},
            ["fits no"],
            ("m/1 is FAILED: it waits; it comes back by itself\n"
            "nothing is unloaded by itself; these versions answer nobody, so unload them:\n"
            "  ramrack unload n 7        gives 3.0 KiB\n"
            "  ramrack unload other 12   gives 512 B\n"
            "then try again: ramrack load m 1\n"),
        ),
    ],
)  # fmt: skip
def test_plan_says_what_a_load_needs_and_how_to_make_room(
    ramrack, server: FakeServer, more, out_has, err
):
    """Needs, free and budget; what does not fit comes with the commands to type."""
    server.answers["POST", "/admin/v1/models/m/versions/1:plan"] = [(200, plan_document(**more))]
    code, out, said = ramrack("plan", "m", "1")
    assert (code, said) == (0, err)
    words = " ".join(out.split())
    assert [part for part in out_has if part not in words] == []
    assert json.loads(ramrack("plan", "m", "1", "--json")[1]) == plan_document(**more)


def test_plan_of_a_loaded_version_says_what_it_holds(ramrack, server: FakeServer):
    """Nothing more is needed, and that is said first; what it has now is listed."""
    server.add_version("m", "READY")["memory"] |= {
        "object_bytes": 3072, "shared_bytes": 2048,
        "shared_with": [{"model": "m", "version": n} for n in range(2, 12)],
    }  # fmt: skip
    plan = plan_document(state="READY", needs_bytes=0, fits=True)
    server.answers["POST", "/admin/v1/models/m/versions/1:plan"] = [(200, plan)]
    code, out, err = ramrack("plan", "m", "1")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "m/1 is READY: it is in the sum of `ramrack ps` already",
        "it holds",
        "graph and weights, once for all workers 3.0 KiB",
        "of it shared with m/2, m/3, m/4, m/5, m/6, m/7, m/8, m/9 and others 2.0 KiB",
        "private, each of 2 workers 1.0 KiB",
        "a load would need nothing more",
        "free 1.0 KiB",
        "budget 4.0 KiB",
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_load_without_room_says_what_to_unload(ramrack, server: FakeServer, is_late: bool):
    """Whether refused at once or in the end: the figures and commands, in --json the plan."""
    server.add_version("m")
    path, plan = "/admin/v1/models/m/versions/1:load", plan_document(**WITH_ROOM)
    server.answers["POST", path] = [(507, {"error": "no room", "plan": plan})]
    if is_late:
        server.answers["POST", path] = [(202, operation("load", "running"))]
        failed = operation("load", "failed", "no room") | {"plan": plan}
        server.answers["GET", "/admin/v1/operations/op1"] = [(200, failed)]
    code, out, err = ramrack("load", "m", "1")
    assert (code, out) == (1, "")
    assert [" ".join(line.split()) for line in err.splitlines()] == [
        "ramrack: no room", "needs 2.0 KiB",
        "of it graph and weights that are not here yet 1.0 KiB",
        "of it private, each of 2 workers 512 B", "free 1.0 KiB", "budget 4.0 KiB",
        "lacks 1.0 KiB",
        "nothing is unloaded by itself; these versions answer nobody, so unload them:",
        "ramrack unload n 7 gives 3.0 KiB", "ramrack unload other 12 gives 512 B",
        "then try again: ramrack load m 1",
    ]  # fmt: skip
    code, out, _ = ramrack("load", "m", "1", "--json")
    assert (code, json.loads(out)) == (1, {"error": "no room", "plan": plan})
