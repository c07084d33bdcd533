"""How workers hold weights: what is measured decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.weight_mode import (
    MIB,
    Measured,
    choose,
    choose_compact,
    is_in_graph,
    reason_not_to_pack,
)


def form(private_mib: float, *ratios: float, difference: float = 0.0) -> Measured:
    by_rows = dict(zip((1, 8, 32), ratios, strict=False))
    return Measured(0.01, int(private_mib * MIB), difference, by_rows, by_rows)


class TestChoosing:
    def test_a_table_is_mapped_at_once(self) -> None:
        """Where under 5 % of the bytes are copied, packing 2 GB to save them is not worth it."""
        choice = reason_not_to_pack(2048 * MIB, 12 * MIB)
        assert choice is not None
        assert choice.mode == "mapped"
        assert reason_not_to_pack(100 * MIB, 12 * MIB) is None

    def test_weights_inside_the_graph_are_private(self) -> None:
        """Trees stand in attributes of nodes, which nothing maps."""
        choice = reason_not_to_pack(0, MIB)
        assert choice is not None
        assert choice.mode == "private"
        assert is_in_graph(0)
        assert not is_in_graph(100 * MIB)

    def test_packed_is_chosen_where_it_is_as_fast(self) -> None:
        """It says what it saves and at which sizes it was timed."""
        choice = choose(
            {
                "private": form(100, 1, 1, 1),
                "mapped": form(1, 1, 2.5, 1.5),
                "packed": form(1, 1, 1.02, 0.99),
            }
        )
        assert choice.mode == "packed"
        assert "1.0 MiB private instead of 100 MiB" in choice.text
        assert "1.02 x the time at 1, 8, 32 rows" in choice.text

    def test_mapped_is_chosen_where_packing_gains_nothing(self) -> None:
        """It needs no disk and no second reading at each load."""
        forms = {"private": form(100, 1), "mapped": form(1, 1.0), "packed": form(1, 1.0)}
        assert choose(forms).mode == "mapped"

    @pytest.mark.parametrize(("load_s", "mode"), [(1.9, "mapped"), (2.1, "packed")])
    def test_a_form_that_loads_for_long_is_not_chosen(self, load_s: float, mode: str) -> None:
        """Twice as long, or a second more, is what memory may cost a load."""
        forms = {
            "private": replace(form(100, 1), load_s=1.0),
            "mapped": replace(form(1, 1), load_s=load_s),
            "packed": replace(form(1, 1), load_s=1.0),
        }
        assert choose(forms).mode == mode
        slow = replace(form(1, 1), load_s=2.1)
        choice = choose({"private": replace(form(100, 1), load_s=1.0), "mapped": slow})
        assert choice.mode == "private"
        assert choice.text == "mapped takes 2.1 s to load instead of 1.0"
        slow = replace(form(1, 1), load_s=0.9)
        assert choose({"private": form(100, 1), "mapped": slow}).mode == "mapped"

    @pytest.mark.parametrize(("compact_mib", "mode"), [(25, "packed"), (90, "private")])
    def test_trees_take_the_format_that_saves(self, compact_mib: float, mode: str) -> None:
        """The reason says what each worker holds."""
        choice = choose_compact({"private": form(100, 1), "packed": form(compact_mib, 1)})
        assert choice.mode == mode
        assert f"{compact_mib:.0f} MiB private" in choice.text

    @pytest.mark.parametrize(
        ("packed", "reason"),
        [
            (form(1, 1, 1.2, 1), "packed takes 1.20 x the time at 8 rows"),
            (form(60, 1, 1, 1), "packed saves too little: 60 MiB private instead of 100 MiB"),
            (form(1, 1, 1, difference=0.01), "packed answers differently, by 0.01"),
        ],
    )
    def test_private_says_why_not_packed(self, packed: Measured, reason: str) -> None:
        """What a form costs is the reason against it."""
        forms = {"private": form(100, 1, 1, 1), "mapped": form(1, 3), "packed": packed}
        choice = choose(forms)
        assert choice.mode == "private"
        assert reason in choice.text
