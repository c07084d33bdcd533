"""Reading UBJSON, whole and damaged."""

from __future__ import annotations

import numpy as np
import pytest

from models.convert.ubjson import parse_ubjson


def test_all_kinds_of_values():
    """Objects, arrays with and without a type, text, numbers and constants come out as written."""
    data = (
        b"{i\x01aSi\x02hii\x01b[$l#i\x02\x00\x00\x00\x01\xff\xff\xff\xffi\x01c[#i\x02TZ"
        b"i\x01d[U\xffL\x00\x00\x00\x00\x00\x00\x00\x05]i\x01ed\x3f\x80\x00\x00}"
    )
    found = parse_ubjson(data)
    assert found.pop("b").tolist() == [1, -1]
    assert found == {"a": "hi", "c": [True, None], "d": [255, 5], "e": 1.0}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut off"),
        (b"{i\x01a", "cut off"),
        (b"[$l#L\x7f\xff\xff\xff\xff\xff\xff\xff", "cut off"),
        (b"[$l#i\xff", "cut off"),
        (b"[#L\x7f\xff\xff\xff\xff\xff\xff\xff", "does not fit"),
        (b"[$S#i\x01", "no length"),
        (b"Q", "no UBJSON type"),
        (b"S\x00", "no length"),
        (b"Si\xff", "cut off"),
        (b"[" * 100_000, "nested"),
        (b"TT", "behind its end"),
        (b"Si\x01\xff", "utf-8"),
    ],
)
def test_damage_is_a_value_error(data, says):
    """Nothing in a damaged file reads past its end, allocates what it claims, or recurses."""
    with pytest.raises(ValueError, match=says):
        parse_ubjson(data)


def test_random_damage_is_never_anything_else():
    """Whatever byte is changed, the answer is a document or a ValueError."""
    whole = b"{i\x01a[$l#i\x02\x00\x00\x00\x01\x00\x00\x00\x02i\x01b{i\x01c[#i\x01Si\x02xy}}"
    rng = np.random.default_rng(3)
    for _ in range(2000):
        data = bytearray(whole)
        data[rng.integers(len(data))] = rng.integers(256)
        try:
            parse_ubjson(bytes(data))
        except ValueError:
            continue
