"""What is said of a name that is not known: what there is instead, in bounded time and length."""

from __future__ import annotations

import pytest

from registry.errors import NotFound
from registry.known import MOST_NAMED, close_to, unknown_alias, unknown_model, unknown_version

MANY = [f"churn-{number}" for number in range(200)]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ([], "model 'fraude' is not known: there are no models yet"),
        (["fraud"], "model 'fraude' is not known: there is fraud"),
        (["search", "fraud"], "model 'fraude' is not known: there are fraud, search"),
        (
            [*MANY, "fraud", "Fraude", "search"],
            (
                "model 'fraude' is not known: did you mean Fraude or fraud? there are 203 models, "
                "`ramrack ls` and POST /v2/repository/index list them"
            ),
        ),
        (
            MANY,
            (
                "model 'fraude' is not known: there are 200 models, `ramrack ls` and POST "
                "/v2/repository/index list them"
            ),
        ),
    ],
)
def test_an_unknown_model_is_answered_with_those_there_are(known: list[str], said: str) -> None:
    """A few are listed, of many those that were perhaps meant."""
    refusal = unknown_model("fraude", known)
    assert isinstance(refusal, NotFound)
    assert str(refusal) == said


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ([], "model 'm' has no version 9: it has none"),
        ([10, 2, 1], "model 'm' has no version 9: it has 1, 2, 10"),
        (
            range(20, 60),
            (
                "model 'm' has no version 9: it has 40, the newest of them 52, 53, 54, 55, 56, 57, "
                "58, 59"
            ),
        ),
    ],
)
def test_an_unknown_version_is_answered_with_the_newest_ones(known: list[int], said: str) -> None:
    """All of a few, and the newest of many."""
    assert str(unknown_version("m", 9, known)) == said


def test_an_unknown_alias_is_answered_with_versions_and_no_other_alias() -> None:
    """Who predicts may name a version or latest; what aliases there are is not told."""
    assert str(unknown_alias("m", "prd", {3: "x", 1: "y"})) == (
        "model 'm' has no alias 'prd': it has 1, 3 as versions, and latest is the highest that is "
        "READY"
    )


def test_strangers_can_make_neither_the_search_nor_the_answer_long() -> None:
    """What is too long for a name is compared with nothing, and few names are ever listed."""
    assert close_to("c" * 65, MANY) == []
    assert close_to("", MANY) == []
    assert close_to("churn-7", MANY)[0] == "churn-7"
    longest = unknown_model("a" * 64, ["a" * 63 + str(n) for n in range(MOST_NAMED)])
    assert len(str(longest)) < 700
