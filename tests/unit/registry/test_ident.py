"""Names, numbers and digests: what is allowed and what is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from registry.errors import InvalidInput
from registry.ident import (
    MAX_VERSION,
    check_alias,
    check_digest,
    check_model_name,
    check_version,
    digest_hex,
    parse_selector,
    parse_version,
    shown,
)

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize("name", ["a", "A", "0", "a.b", "a..b", "a-b_c.", "x" * 64, "latest"])
def test_model_names_of_the_pattern_are_allowed(name: str) -> None:
    """The name comes back unchanged."""
    assert check_model_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "-a", "_a", "a/b", "../x", "%2e", "a\0", "a\n", "\u0430bc", "\uff41",
     "x" * 65, "x" * 300, "stats", None, 1, b"a", ["a"]],
)  # fmt: skip
def test_other_model_names_are_refused(name: object) -> None:
    """Dots, slashes, NUL, look-alikes, the reserved word and other types: the value is named."""
    with pytest.raises(InvalidInput, match="model name"):
        check_model_name(name)


@pytest.mark.parametrize("alias", ["a", "stable", "a-b_9", "x" * 32])
def test_aliases_of_the_pattern_are_allowed(alias: str) -> None:
    """The alias comes back unchanged, also as a selector."""
    assert check_alias(alias) == alias == parse_selector(alias)


@pytest.mark.parametrize("alias", ["", "A", "1", "-a", "a.b", "a\n", "x" * 33, "latest", None, 1])
def test_other_aliases_are_refused(alias: object) -> None:
    """``latest`` is the server's own."""
    with pytest.raises(InvalidInput, match="alias"):
        check_alias(alias)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("1", 1), ("10", 10), ("latest", "latest"), (str(MAX_VERSION), MAX_VERSION)],
)
def test_a_selector_is_a_number_or_an_alias(text: str, meaning: int | str) -> None:
    """Numbers become integers, everything else a name."""
    assert parse_selector(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "0", "010", "-1", "+1", "1.0", "1e3", " 1", "1\n", "\u0661", "9" * 16, "9" * 400]
)
def test_c05_a_number_has_one_spelling(text: str) -> None:
    """010 is not another name of 10, and other scripts' digits are none."""
    for parse in (parse_version, parse_selector):
        with pytest.raises(InvalidInput, match="version"):
            parse(text)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, MAX_VERSION + 1])
def test_a_json_version_is_a_positive_integer(value: object) -> None:
    """Booleans and floats are not versions."""
    with pytest.raises(InvalidInput, match="version"):
        check_version(value)
    assert check_version(MAX_VERSION) == MAX_VERSION


def test_a_digest_names_its_file() -> None:
    """The hex part is the file name; every other form is refused."""
    assert digest_hex(f"sha256:{HEX}") == HEX
    for bad in (HEX, f"sha256:{HEX.upper()}", f"sha256:{HEX}\n", f"sha256:{HEX[:-1]}", None):
        with pytest.raises(InvalidInput, match="digest"):
            check_digest(bad)


@pytest.mark.parametrize("check", [check_model_name, check_alias, check_digest, check_version])
def test_a_message_never_carries_a_long_value(check: Callable[[object], object]) -> None:
    """What was sent is quoted up to 80 characters, control characters escaped."""
    with pytest.raises(InvalidInput) as caught:
        check("\n" * 100_000)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)
    assert shown("a") == "'a'"
