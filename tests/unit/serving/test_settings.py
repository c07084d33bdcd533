"""Settings: the order of sources, and that nothing wrong gets past the start."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from registry.errors import InvalidInput
from serving.settings import Settings, Token, load_settings, parse_size


def test_defaults_hold_where_nothing_is_given():
    """Without any source the settings are the documented defaults."""
    assert load_settings(None, {}, {}) == Settings()


def test_flags_beat_environment_beats_file(tmp_path: Path):
    """Each later source wins over the earlier ones, key by key."""
    config = tmp_path / "ramrack.toml"
    config.write_text("port = 1\nworkers = 2\nqueue_rows = 3\n")
    environ = {"RAMRACK_WORKERS": "4", "RAMRACK_QUEUE_ROWS": "5", "OTHER_PORT": "9"}
    settings = load_settings(config, environ, {"queue_rows": 6, "host": None})
    assert (settings.port, settings.workers, settings.queue_rows) == (1, 4, 6)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"environ": {"RAMRACK_WORKERZ": "1"}}, ("RAMRACK_WORKERZ: unknown setting 'workerz': "
         "did you mean 'workers'?")),
        ({"flags": {"no_such_thing": 1}}, "--no-such-thing: unknown setting 'no_such_thing'"),
        ({"environ": {"RAMRACK_PORT": "eighty"}}, "RAMRACK_PORT: 'eighty' is not a whole number"),
        ({"environ": {"RAMRACK_PORT": ""}}, "RAMRACK_PORT: '' is not a whole number"),
        ({"flags": {"port": 65536}}, "--port: 65536 is too large: at most 65535"),
        ({"flags": {"port": -1}}, "--port: -1 is too small: at least 0"),
        ({"flags": {"port": True}}, "--port: True must be a number"),
        ({"flags": {"port": 80.5}}, "--port: 80.5 must be a whole number"),
        ({"environ": {"RAMRACK_MAX_RUN_S": "nan"}}, "RAMRACK_MAX_RUN_S: 'nan' is too small"),
        ({"environ": {"RAMRACK_MAX_RUN_S": "inf"}}, "RAMRACK_MAX_RUN_S: 'inf' is too large"),
        ({"environ": {"RAMRACK_HOST": ""}}, "RAMRACK_HOST: must not be empty"),
        ({"flags": {"host": 5}}, "--host: 5 must be a string"),
        ({"flags": {"store": ""}}, "--store: '' must be a path"),
        ({"environ": {"RAMRACK_LOG_LEVEL": "loud"}},
         "RAMRACK_LOG_LEVEL: 'loud' is not one of debug, info, warning, error"),
        ({"environ": {"RAMRACK_TOKENS": "x"}}, "RAMRACK_TOKENS: use [[tokens]] tables"),
        ({"flags": {"tls_cert": "a.pem"}}, "tls_cert and tls_key go together"),
        ({"environ": {"RAMRACK_MEMORY_BUDGET": "12 parsecs"}}, "use bytes, or KiB MiB GiB TiB"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(source: dict, expected: str):
    """A wrong key or value is refused with the source, the value and the limit."""
    with pytest.raises(InvalidInput) as caught:
        load_settings(None, source.get("environ", {}), source.get("flags", {}))
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["ADMIN_TOKEN", "URL", "ADMIN_URL", "TOKEN", "CONFIG"])
def test_the_clients_variables_are_no_settings(name: str):
    """Variables that only the command line reads do not stop the server."""
    assert load_settings(None, {f"RAMRACK_{name}": "x"}, {}) == Settings()


def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path):
    """A missing or broken file is refused by its path."""
    with pytest.raises(InvalidInput, match=r"config .*none.toml: No such file"):
        load_settings(tmp_path / "none.toml", {}, {})
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 1")
    with pytest.raises(InvalidInput, match="not TOML"):
        load_settings(broken, {}, {})


def test_tokens_come_from_tables_of_the_file(tmp_path: Path):
    """Tokens have a name, a hash and known scopes."""
    config = tmp_path / "ramrack.toml"
    config.write_text(
        f'[[tokens]]\nname = "ci"\nsha256 = "{"a" * 64}"\nscopes = ["push", "promote"]\n'
    )
    settings = load_settings(config, {}, {})
    assert settings.tokens == (Token("ci", "a" * 64, ("push", "promote")),)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('name = ""\nsha256 = "{hex}"\nscopes = ["push"]', "name: '' must be a non-empty string"),
        ('name = "a"\nsha256 = "abc"\nscopes = ["push"]', "must be 64 lower-case hex digits"),
        ('name = "a"\nsha256 = "{hex}"\nscopes = []', "must name some of"),
        ('name = "a"\nsha256 = "{hex}"\nscopes = ["fly"]', "must name some of"),
        ('name = "a"\nsha256 = "{hex}"', "needs exactly name, sha256 and scopes"),
    ],
)
def test_wrong_tokens_are_refused(tmp_path: Path, table: str, expected: str):
    """A token that could not work is refused at start."""
    config = tmp_path / "ramrack.toml"
    config.write_text("[[tokens]]\n" + table.replace("{hex}", "a" * 64))
    with pytest.raises(InvalidInput, match=expected):
        load_settings(config, {}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("17", 17), ("17B", 17), ("2K", 2048), ("2KiB", 2048), ("2KB", 2000),
        ("3 MiB", 3 << 20), ("3mb", 3_000_000), ("1G", 1 << 30), ("1GB", 10**9),
        (" 2TiB ", 2 << 40),
    ],
)  # fmt: skip
def test_sizes_are_read_with_their_unit(text: str, expected: int):
    """KiB and K are binary, KB is decimal, no unit is bytes."""
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5G", "1PiB", "GiB", "99999999TiB", "1e9"])
def test_sizes_that_make_no_sense_are_refused(text: str):
    """What is no size is an error, not a guess."""
    with pytest.raises(InvalidInput):
        parse_size(text)


def test_every_setting_is_described_and_its_default_passes_its_own_check():
    """No setting lacks its text, and giving the default explicitly changes nothing."""
    for field in dataclasses.fields(Settings):
        assert field.metadata["doc"].endswith("."), field.name
        # Where a default stands for "not set", giving it is refused with what to do instead.
        is_absence = field.metadata["instead"] or field.default == ""
        if not field.metadata["toml_only"] and not is_absence:
            given = load_settings(None, {}, {field.name: field.default})
            assert given == Settings(), field.name


def test_a_budget_of_nothing_is_refused_with_what_is_allowed():
    """0 is no budget: it says what to give, and what leaving it out means."""
    with pytest.raises(InvalidInput) as caught:
        load_settings(None, {"RAMRACK_MEMORY_BUDGET": "0"}, {})
    assert str(caught.value) == (
        "RAMRACK_MEMORY_BUDGET: '0' is too small: at least 1048576: leave it out for 75 % of what "
        "host and cgroup leave, or give 1MiB or more"
    )


def test_settings_cannot_be_changed():
    """The object is frozen: nobody adjusts it on the way."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]
