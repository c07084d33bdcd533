"""``route``, ``rollback``, ``release``, ``settings``, ``apply``: what is sent, shown, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from registry.model_settings import NAMES
from tests.unit.serving.cli.conftest import WHOLE, FakeServer

SPLIT = {
    "split": [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}], "shadow": [3],
}  # fmt: skip


@pytest.fixture
def ramrack(ramrack, server: FakeServer):
    """Run a command where there are three versions."""
    for _ in range(3):
        server.add_version("m", "READY")
    return ramrack


def route_document(**more: Any) -> dict[str, Any]:
    return {"model": "m", **WHOLE, "latest": False, "previous": None, "etag": '"4"', **more}


def sent(server: FakeServer, method: str = "PUT") -> list[tuple[str, Any]]:
    return [(call[1], json.loads(call[3])) for call in server.calls if call[0] == method]


def test_split_and_shadows_are_sent_and_told(ramrack, server: FakeServer):
    """Words become the body; the answer is a sentence."""
    server.answers["PUT", "/admin/v1/models/m/route"] = [
        (200, route_document(**SPLIT, previous=WHOLE))
    ]
    code, out, _ = ramrack("route", "m", "2=10", "1=90", "--shadow", "3", "--if-match", "4",
                           "--reason", "try")  # fmt: skip

    assert code == 0
    assert out == (
        "m: version 1 gets 90 %, version 2 gets 10 %, shadowed by 3; "
        "before that version 1 gets 100 %\n"
    )
    assert sent(server) == [("/admin/v1/models/m/route", SPLIT)]
    assert server.headers[-1]["if-match"] == '"4"'
    assert server.calls[-1][2] == {"reason": ["try"]}
    ramrack("route", "m", "1=90", "2=10", "--shadow", "3", "--allow-incompatible")
    assert sent(server)[-1][1] == {**SPLIT, "allow_incompatible": True}
    assert json.loads(ramrack("route", "m", "1", "--json")[1])["split"] == SPLIT["split"]


def test_rollback_tells_what_is_restored(ramrack, server: FakeServer):
    """The split and the shadows of before, and what a second rollback would bring."""
    server.answers["POST", "/admin/v1/models/m/route:rollback"] = [
        (200, route_document(**SPLIT, previous=WHOLE))
    ]
    code, out, _ = ramrack("rollback", "m", "--if-match", '"7"')

    assert code == 0
    assert "version 2 gets 10 %, shadowed by 3; before that version 1 gets 100 %" in out
    assert server.headers[-1]["if-match"] == '"7"'


def test_ps_and_ls_show_shares_and_shadows(ramrack, server: FakeServer):
    """Each version says what part it has in the traffic."""
    first, second, third = server.versions["m"]
    first["traffic"], second["traffic"] = 90, 10
    third |= {"is_shadow": True, "is_previous": True}
    for command in (["ls"], ["ps", "--seconds", "0"]):
        lines = ramrack(*command)[1].splitlines()[1:]
        assert [
            [word for word in ("90 %", "10 %", "shadow") if word in line] for line in lines
        ] == [["90 %"], ["10 %"], ["shadow"]]  # fmt: skip


def test_release_sends_all_routes_in_one_call(ramrack, server: FakeServer):
    """A version, latest and a split, each with its shadows."""
    server.answers["PUT", "/admin/v1/release"] = [
        (200, {"routes": [route_document(**SPLIT), route_document(model="n", latest=True)]})
    ]
    code, out, _ = ramrack("release", "m=1:90,2:10", "n=latest", "o=4", "--shadow", "m=3")

    assert code == 0
    assert out == (
        "m: version 1 gets 90 %, version 2 gets 10 %, shadowed by 3\n"
        "n: version 1 gets 100 % (follows latest)\n"
    )
    four = {"split": [{"version": 4, "weight": 100}], "shadow": []}
    assert sent(server) == [
        ("/admin/v1/release", {"routes": {"m": SPLIT, "n": {"latest": True}, "o": four}})
    ]
    assert len(json.loads(ramrack("release", "m=1", "--json")[1])["routes"]) == 2


def test_a_release_may_be_guarded_by_the_etag_of_each_route(ramrack, server: FakeServer):
    """Each route carries the etag that was given for it; the quotes may be left out."""
    server.answers["PUT", "/admin/v1/release"] = [(200, {"routes": []})]
    code, _, _ = ramrack(
        "release", "m=1", "n=latest", "o=2", "--if-match", "m=12", "--if-match", 'n="7"'
    )
    assert code == 0
    ((_, body),) = sent(server)
    assert [body["routes"][name].get("if_match") for name in "mno"] == ['"12"', '"7"', None]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--if-match", "12"], "'12' is not allowed: use NAME=ETAG"),
        (["--if-match", "n=12"], "--if-match: model 'n' is not in this release: it has m"),
        (["--if-match", "m=x"], "'x' is no etag"),
        (["--if-match", "m=1", "--if-match", "m=2"], "--if-match: model 'm' stands twice"),
        (["--shadow", "n=3"], "--shadow: model 'n' is not in this release: it has m"),
    ],
)
def test_a_wrong_guard_of_a_release_is_wrong_usage(ramrack, server: FakeServer, words, says):
    """Ends with 2, names what is wrong, and sends nothing."""
    code, out, err = ramrack("release", "m=1", *words)
    assert (code, out, server.calls) == (2, "", [])
    assert says in err


def settings_document(**values: Any) -> dict[str, Any]:
    return {"model": "m", "settings": {**dict.fromkeys(NAMES), **values}, "etag": '"5"'}


def test_settings_are_shown_and_changed(ramrack, server: FakeServer):
    """Values go as JSON values, --unset as null."""
    path = "/admin/v1/models/m/settings"
    server.answers["GET", path] = server.answers["PUT", path] = [
        (200, settings_document(queue_rows=7))
    ]
    code, out, _ = ramrack("settings", "m")
    assert code == 0
    assert [line.split(None, 1) for line in out.splitlines() if "queue_rows" in line] == [
        ["queue_rows", "7"]
    ]
    ramrack("settings", "m", "--set", "queue_rows=7", "--set", "batching=false", "--set",
            "max_run_s=0.5", "--unset", "priority")  # fmt: skip
    assert sent(server) == [
        (path, {"queue_rows": 7, "batching": False, "max_run_s": 0.5, "priority": None})
    ]
    assert json.loads(ramrack("settings", "m", "--json")[1]) == settings_document(queue_rows=7)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("route", "m", "1=90"), "the weights sum to 90: they must sum to 100"),
        (("route", "m", "1=90", "2=20"), "the weights sum to 110"),
        (("route", "m", "1", "2"), "'1' is not allowed: use VERSION=WEIGHT, such as 3=90 4=10"),
        (("route", "m", "1=50", "1=50"), "1 stands twice"),
        (("route", "m", "1=100", "2=0"), "'2=0': weight 0 is not allowed: use 1 to 100"),
        (("route", "m", "1=50.5", "2=49.5"), "'1=50.5' is not allowed"),
        (("route", "m", "1=-5", "2=105"), "'1=-5' is not allowed"),
        (("route", "m", "x=100"), "version 'x' is not allowed"),
        (("route", "m", "latest"), "latest is no version: use --latest"),
        (("route", "m", "1", "--shadow", "1"), "1 is in the split"),
        (("route", "m", "1", "--shadow", "x"), "version 'x' is not allowed"),
        (("route", "m", "--shadow", "1"), "--shadow goes with the versions that answer"),
        (("route", "m", "--latest", "--shadow", "1"), "--shadow goes with the versions"),
        (("route", "m", "1", "--history"), "exclude each other"),
        (("route", "m", "1", "--if-match", "x"), "'x' is no etag"),
        (("release",), "Missing argument"),
        (("release", "m"), "'m' is not allowed: use NAME=TRAFFIC"),
        (("release", "m="), "'m=' is not allowed: use NAME=TRAFFIC"),
        (("release", "m=1", "m=2"), "model 'm' stands twice"),
        (("release", "../m=1"), "model name '../m' is not allowed"),
        (("release", "m=1:90,2:20"), "m: route: split: the weights sum to 110"),
        (("release", "m=1", "--shadow", "n=2"), "--shadow: model 'n' is not in this release"),
        (("release", "m=latest", "--shadow", "m=2"), "m: --shadow does not go with latest"),
        (("settings", "m", "--set", "queue_rows"), "'queue_rows' is not allowed: use KEY=VALUE"),
        (("settings", "m", "--set", "queue_row=1"), "did you mean 'queue_rows'"),
        (("settings", "m", "--set", "queue_rows=0"), "queue_rows: 0 is not allowed"),
        (("settings", "m", "--set", "queue_rows=many"), "queue_rows: 'many' is not allowed"),
        (("settings", "m", "--unset", "retains"), "did you mean 'retain'"),
        (("settings", "m", "--set", "retain=1", "--unset", "retain"), "'retain' stands twice"),
        (("apply",), "Missing option '-f'"),
        (("apply", "-f", "none.toml"), "none.toml: No such file or directory"),
    ],
)
def test_wrong_words_end_with_two_and_send_nothing(ramrack, server: FakeServer, arguments, says):
    """What was seen and what is allowed, before any request."""
    code, out, err = ramrack(*arguments)
    assert (code, out, server.calls) == (2, "", [])
    assert says in err.splitlines()[-1]


# apply

FILE = """
[models.m]
route = { 1 = 90, 2 = 10 }
shadow = [3]
aliases = { prod = 1 }

[models.m.settings]
queue_rows = 7
"""


def model_document(server: FakeServer, **more: Any) -> dict[str, Any]:
    return {
        "name": "m", "versions": server.versions["m"], "aliases": {"old": 2},
        "route": route_document(), "settings": {**dict.fromkeys(NAMES), "priority": 1}, **more,
    }  # fmt: skip


@pytest.fixture
def applied(ramrack, server: FakeServer, tmp_path: Path):
    """Run apply on a text against a server whose model is as in ``model_document``."""

    def run(text: str, *arguments: str, **more: Any) -> tuple[int, str, str]:
        (tmp_path / "models.toml").write_text(text)
        models = {"models": [model_document(server, **more)]}
        server.answers["GET", "/admin/v1/models"] = [(200, models)]
        server.answers["PUT", "/admin/v1/release"] = [(200, {"routes": []})]
        server.answers["PUT", "/admin/v1/models/m/settings"] = [(200, settings_document())]
        return ramrack("apply", "-f", "models.toml", *arguments)

    return run


LINES = [
    "m: settings.queue_rows: not set -> 7",
    "m: settings.priority: 1 -> not set",
    "m: aliases.prod: not set -> 1",
    "m: route: version 1 gets 100 % -> version 1 gets 90 %, version 2 gets 10 %, shadowed by 3",
    "m: aliases.old: 2 -> not set",
]


def test_apply_makes_everything_what_the_file_says(applied, server: FakeServer):
    """Routes in one guarded release, then aliases and settings; what is not named goes."""
    code, out, err = applied(FILE, "--reason", "file")

    assert (code, sorted(out.splitlines()), err) == (0, sorted(LINES), "done: 5 of 5\n")
    guarded = {"routes": {"m": {**SPLIT, "if_match": '"4"'}}}
    assert sent(server) == [
        ("/admin/v1/release", guarded),
        ("/admin/v1/models/m/aliases/prod", {"version": 1}),
        ("/admin/v1/models/m/settings", {"queue_rows": 7, "priority": None}),
    ]
    deleted = [call[1] for call in server.calls if call[0] == "DELETE"]
    assert deleted == ["/admin/v1/models/m/aliases/old"]
    changes = [call for call in server.calls if call[0] != "GET"]
    assert {str(call[2]) for call in changes} == {"{'reason': ['file']}"}


def test_apply_dry_run_prints_the_difference_and_sends_nothing(applied, server: FakeServer):
    """Also as JSON."""
    code, out, _ = applied(FILE, "--dry-run")
    assert (code, sorted(out.splitlines())) == (0, sorted(LINES))
    changes = json.loads(applied(FILE, "--dry-run", "--json")[1])["changes"]
    assert {"model": "m", "what": "aliases.prod", "now": None, "wanted": 1} in changes
    assert len(changes) == 5
    assert {call[0] for call in server.calls} == {"GET"}


def test_apply_of_what_is_so_already_does_nothing(applied, server: FakeServer):
    """Applying twice is applying once."""
    now = {
        "route": route_document(**SPLIT), "aliases": {"prod": 1},
        "settings": {**dict.fromkeys(NAMES), "queue_rows": 7},
    }  # fmt: skip
    assert applied(FILE, **now) == (0, "", "nothing to do: everything is as the file says\n")
    latest = '[models.m]\nroute = "latest"\n'
    assert applied(latest, route=route_document(latest=True))[1] == ""
    assert "m: route: none -> latest" in applied(latest, "--dry-run", route=None)[1]
    assert {call[0] for call in server.calls} == {"GET"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models.n]\nroute = 1\n", "nothing was changed: model 'n' is not known: there is m"),
        (
            "[models.m]\nroute = 9\n",
            "nothing was changed: model 'm' has no version 9: it has 1, 2, 3",
        ),
        ("[models.m]\naliases = { prod = 4 }\n", "nothing was changed: m/4 is UNLOADED: load it"),
        ("[models.m]\nroute = 1\nshadow = [4]\n", "m/4 is UNLOADED"),
    ],
)
def test_apply_of_what_cannot_be_ends_with_one_and_changes_nothing(
    applied, server: FakeServer, text, says
):
    """Found before anything is changed."""
    server.add_version("m", "UNLOADED")
    code, _, err = applied(text)
    assert code == 1
    assert says in err
    assert {call[0] for call in server.calls} == {"GET"}


def test_apply_that_the_server_refuses_ends_with_one(applied, server: FakeServer):
    """A route that changed meanwhile stops it before aliases and settings."""
    (answers := server.answers)["PUT", "/admin/v1/release"] = []
    run = applied
    text = FILE

    class Stale(dict):
        def __setitem__(self, key, value):
            stale = [(409, {"error": 'm: If-Match "4": it is "5" now'})]
            super().__setitem__(key, stale if key[1] == "/admin/v1/release" else value)

    server.answers = Stale(answers)
    code, _, err = run(text)
    assert (code, 'it is "5" now' in err) == (1, True)
    assert [path for path, _ in sent(server)] == ["/admin/v1/release"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "models.toml: models: no model is named: use [models.NAME]"),
        ("[models.m\n", "not TOML"),
        ("[models.m]\nroute =\n", "(at line 2"),
        ("model = 1\n", "line 1: model: unknown key 'model': use [models.NAME]"),
        ("[models]\nm = 1\n", "line 2: models.m: 1 must be a table"),
        ('\n[models."a b"]\nroute = 1\n', "line 2: models.a b: model name 'a b'"),
        ("[models.m]\n\nroutes = 1\n", "line 3: models.m.routes: unknown key 'routes': use route"),
        ("[models.m]\nroute = { 1 = 90 }\n", "line 2: models.m.route: route: split: the weights"),
        ("[models.m]\nroute = { x = 100 }\n", "line 2: models.m.route: version 'x'"),
        (
            "[models.m.route]\nsplit = [{ version = 3, weight = 100 }]\n",
            "a route is a version, versions with their weights as in { 3 = 90, 4 = 10 }, or",
        ),
        ("[models.m]\nroute = 1.0\n", "line 2: models.m.route: version 1.0"),
        ("[models.m]\nroute = true\n", "models.m.route: version True"),
        ('[models.m]\nroute = "newest"\n', "models.m.route: 'newest' is not allowed"),
        ("[models.m.route]\n1 = 60\n2 = 60\n", "line 1: models.m.route: route: split: the weights"),
        ("[models.m]\nshadow = [1]\n", "line 2: models.m.shadow: shadow needs a route"),
        ("[models.m]\nroute = 1\nshadow = [1]\n", "models.m.route: route: shadow[0]: 1 is in"),
        ('[models.m]\nroute = "latest"\nshadow = [1]\n', 'shadow does not go with "latest"'),
        ("[models.m]\naliases = { latest = 1 }\n", "line 2: models.m.aliases: alias 'latest'"),
        ("[models.m]\naliases = { 3 = 1 }\n", "alias '3' is not allowed"),
        ("[models.m]\naliases = 3\n", "models.m.aliases: 3 must be a table"),
        ("[models.m]\nsettings.queue_row = 3\n", "line 2: models.m.settings: settings: unknown"),
        ("[models.m.settings]\nqueue_rows = 0\n", "line 1: models.m.settings: settings: queue_r"),
        ("[models.m]\nallow_incompatible = true\n", "allow_incompatible needs a route"),
        ("[models.m]\nroute=1\nallow_incompatible=1\n", "allow_incompatible 1 must be true"),
    ],
)
def test_wrong_file_ends_with_two_naming_line_and_key(applied, server: FakeServer, text, says):
    """Nothing is asked of the server."""
    code, out, err = applied(text)
    assert (code, out, server.calls) == (2, "", [])
    assert says in err.splitlines()[-1]
