"""What an operator gets wrong at night: it ends with 1 or 2, says what is allowed, changes nothing.

The real commands against a real server with tokens and a small budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.cli import main
from tests import graphs
from tests.process.server import RunningServer, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
TOKEN = "night-shift-0123456789"
MIB = 1 << 20
Ramrack = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """fraud 1 to 4: routed, READY, not loaded, FAILED. dense/1 READY, and dense/2 has no room."""
    with running_server(
        tmp_path_factory.mktemp("night"),
        settings={"memory_budget": 32 * MIB},
        environ={"RAMRACK_ADMIN_TOKEN": TOKEN},
        is_waiting=False,
    ) as server:
        server.headers = {"authorization": f"Bearer {TOKEN}"}
        server.wait_until_ready()
        server.push("fraud", graphs.id32())
        server.push("fraud", graphs.gath())
        server.push("fraud", graphs.gath(rows=20), is_loading=False)
        failed = server.push("fraud", graphs.unknown_operator(), is_loading=False)
        assert server.load("fraud", failed).status_code == 400
        server.push("dense", graphs.big(12))
        server.push("dense", graphs.big(12, seed=1))
        server.push("dense", graphs.big(16, seed=2), is_loading=False)
        yield server


@pytest.fixture
def ramrack(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Ramrack:
    """Run a command here against the server; returns exit code, stdout, stderr."""
    monkeypatch.setenv("RAMRACK_URL", server.url)
    monkeypatch.setenv("RAMRACK_ADMIN_URL", server.admin_url)
    monkeypatch.setenv("RAMRACK_ADMIN_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "row.json").write_text("[[1, 2, 3, 4]]")
    (tmp_path / "gone.toml").write_text("[models.fraud]\nroute = 9\n")
    (tmp_path / "failed.toml").write_text("[models.fraud]\nroute = { 1 = 50, 4 = 50 }\n")
    (tmp_path / "sum.toml").write_text("[models.fraud]\nroute = { 1 = 50, 2 = 40 }\n")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def seen(server: RunningServer) -> object:
    """Everything that a command could have changed."""
    models = server.expect(server.admin("GET", "/admin/v1/models"))["models"]
    for model in models:
        for version in model["versions"]:
            version.pop("memory")
    events = server.expect(server.admin("GET", "/admin/v1/events", params={"newest": 1}))
    return models, events["next"], sorted(path.name for path in server.store.iterdir())


KNOWN = "there are dense, fraud"
VERSIONS = "it has 1, 2, 3, 4"
WRONG: list[tuple[str, int, list[str]]] = [
    # names and versions that are not there
    ("load frud 1", 1, ["'frud' is not known", KNOWN]),
    ("plan fraud 9", 1, ["'fraud' has no version 9", VERSIONS]),
    ("unload frud 1", 1, [KNOWN]),
    ("rm fraud 9", 1, [VERSIONS]),
    ("ls frud", 1, [KNOWN]),
    ("alias frud prod 1", 1, [KNOWN]),
    ("alias fraud prod 9", 1, [VERSIONS]),
    ("alias fraud nope --delete", 1, ["fraud has no alias 'nope': it has none"]),
    ("route frud", 1, [KNOWN]),
    ("route fraud 1=50 9=50", 1, [VERSIONS]),
    ("route fraud 1 --shadow 9", 1, [VERSIONS]),
    ("rollback frud", 1, [KNOWN]),
    ("rollback fraud --to 9", 1, [VERSIONS]),
    ("release fraud=1 frud=1", 1, [KNOWN]),
    ("settings frud", 1, [KNOWN]),
    ("apply -f gone.toml", 1, ["nothing was changed", VERSIONS]),
    ("predict frud -i row.json", 1, [KNOWN]),
    ("predict fraud -i row.json --version 9", 1, [VERSIONS]),
    ("predict fraud -i row.json --version prod", 1, ["no alias 'prod'", VERSIONS, "latest"]),
    ("snippet frud", 1, [KNOWN]),
    # names that cannot be
    ("alias fraud latest 1", 2, ["'latest' is reserved", "highest READY"]),
    ("alias fraud 3 1", 2, ["alias '3' is not allowed", "no alias looks like a version"]),
    ("load fraud 0", 2, ["version '0' is not allowed", "positive integer"]),
    ("load ../x 1", 2, ["model name '../x' is not allowed"]),
    # traffic that cannot be
    ("route fraud 1=50 2=40", 2, ["weights sum to 90", "must sum to 100"]),
    ("route fraud 1=0 2=100", 2, ["'1=0': weight 0 is not allowed", "1 to 100"]),
    ("release fraud=1:50,2:40", 2, ["fraud", "weights sum to 90"]),
    ("apply -f sum.toml", 2, ["line 2", "weights sum to 90"]),
    ("route fraud 1=50 4=50", 1, ["cannot name fraud/4: FAILED: "]),
    ("route fraud 1 --shadow 4", 1, ["cannot name fraud/4: FAILED: "]),
    ("release fraud=4", 1, ["cannot name fraud/4: FAILED: "]),
    ("apply -f failed.toml", 1, ["nothing was changed: fraud/4 is FAILED: the runtime refuses"]),
    ("alias fraud prod 4", 1, ["cannot name fraud/4: FAILED: "]),
    ("route fraud 3", 1, ["cannot name fraud/3", "load it first"]),
    ("route fraud 1=50 2=50", 1, ["versions 1 and 2 cannot share", "'x'", "--allow-incompatible"]),
    ("route fraud 2 --if-match 999", 1, ["If-Match", "999", "read it and try again"]),
    ("release fraud=2 --if-match fraud=999", 1, ["fraud: If-Match", "999"]),
    ("settings fraud --set queue_rows=9 --if-match 999", 1, ["If-Match", "999"]),
    ("settings fraud --set queue_rows=0", 2, ["queue_rows: 0 is not allowed", "from 1 to 1000"]),
    # what is used, and what does not fit
    ("unload fraud 1", 1, ["the route sends requests to it", "ramrack route fraud --delete"]),
    ("rm fraud 2", 1, ["it is loaded", "ramrack unload fraud 2"]),
    # missing files, wrong places
    ("predict fraud -i none.csv", 2, ["--input", "'none.csv' does not exist"]),
    ("predict fraud -i /dev/null", 2, ["--input", "'/dev/null' is no file"]),
    ("push fraud none.onnx", 2, ["none.onnx", "does not exist"]),
    ("apply -f none.toml", 2, ["none.toml: No such file"]),
    ("verify --store none", 2, ["--store", "none", "does not exist"]),
    ("backup copy --store none", 1, ["there is no folder", "/none", "--store"]),
    ("restore none --store new", 1, ["there is no folder", "/none", "ramrack backup"]),
    ("serve --memory-budget 0", 2, ["--memory-budget", "'0'", "at least 1048576"]),
    (f"load fraud 1 --reason {'x' * 1001}", 2, ["--reason", "1001 characters", "at most 1000"]),
]


@pytest.mark.parametrize(("words", "code", "says"), WRONG, ids=[each[0][:60] for each in WRONG])
def test_what_is_wrong_is_said_and_nothing_is_changed(
    ramrack: Ramrack, server: RunningServer, words: str, code: int, says: list[str]
) -> None:
    """The exit code, the field, the value and what is allowed; the same models and events after."""
    before = seen(server)
    found, out, err = ramrack(*words.split())
    assert found == code, err
    # Only apply shows what it would have changed before it says why it does not.
    assert out == "" or words.startswith("apply")
    assert [part for part in says if part not in err] == [], err
    assert seen(server) == before


def test_a_version_without_room_is_refused_with_the_commands_that_make_some(
    ramrack: Ramrack, server: RunningServer
) -> None:
    """Needs, free and budget of the real ledger; doing what it says works."""
    code, out, err = ramrack("load", "dense", "3")
    assert (code, out) == (1, "")
    words = " ".join(err.split())
    assert "needs at least 16.0 MiB" in words
    assert "budget 32.0 MiB" in words
    assert "ramrack unload dense 2 gives 12." in words
    assert words.endswith("then try again: ramrack load dense 3")
    assert ramrack("plan", "dense", "3")[1].splitlines()[-1].split() == ["fits", "no"]
    assert ramrack("unload", "dense", "2")[0] == 0
    code, out, err = ramrack("load", "dense", "3")
    assert (code, err) == (0, "")
    first, *_, budget = ramrack("plan", "dense", "3")[1].splitlines()
    assert first.startswith("dense/3 is READY")
    assert budget.split() == ["budget", "32.0", "MiB"]


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("", "a token is needed: set RAMRACK_ADMIN_TOKEN"),
        ("wrong", "the token is not known here: check RAMRACK_ADMIN_TOKEN"),
    ],
)
def test_without_the_right_token_nothing_is_told(
    ramrack: Ramrack, monkeypatch: pytest.MonkeyPatch, token: str, says: str
) -> None:
    """Not even which models there are."""
    monkeypatch.setenv("RAMRACK_ADMIN_TOKEN", token)
    for command in ("ls frud", "load frud 1", "ps", "events"):
        assert ramrack(*command.split()) == (1, "", f"ramrack: {says}\n")


def test_an_address_of_the_other_plane_or_of_nobody_says_which_flag_to_set(
    ramrack: Ramrack, server: RunningServer
) -> None:
    """Both planes are named, with the flag and the variable."""
    code, _, err = ramrack("ls", "--admin-url", server.url)
    assert code == 1
    assert f"{server.url} is not the admin plane" in err
    assert "--admin-url or RAMRACK_ADMIN_URL" in err
    code, _, err = ramrack("predict", "fraud", "-i", "row.json", "--url", "http://127.0.0.1:1")
    assert code == 1
    assert "no server at http://127.0.0.1:1" in err
    assert "--url or RAMRACK_URL" in err


def test_history_rollback_shadows_and_guards_work_by_command_alone(
    ramrack: Ramrack, server: RunningServer
) -> None:
    """A canary with a shadow and an etag, its history, and the way back in one command."""
    tag = json.loads(ramrack("route", "fraud", "--json")[1])["etag"]
    code, out, err = ramrack(
        "route", "fraud", "1=90", "2=10", "--allow-incompatible", "--if-match", tag,
        "--reason", "canary",
    )  # fmt: skip
    assert (code, out) == (
        0, "fraud: version 1 gets 90 %, version 2 gets 10 %; before that version 1 gets 100 %\n",
    ), err  # fmt: skip
    assert "canary" in ramrack("route", "fraud", "--history")[1]
    assert ramrack("rollback", "fraud")[1].startswith("fraud: version 1 gets 100 %; before that")
    code, out, err = ramrack("route", "fraud", "1", "--shadow", "2", "--allow-incompatible")
    assert (code, "shadowed by 2" in out) == (0, True), err
    assert ramrack("rollback", "fraud")[0] == 0
    assert ramrack("alias", "fraud", "prod", "1")[0] == 0
    tag = json.loads(ramrack("alias", "fraud", "--json")[1])["etags"]["prod"]
    assert ramrack("alias", "fraud", "prod", "2", "--if-match", tag)[0] == 0
    assert ramrack("alias", "fraud", "prod", "1", "--if-match", tag)[0] == 1
    assert ramrack("alias", "fraud", "prod", "--delete")[0] == 0
