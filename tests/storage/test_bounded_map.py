"""BoundedMap: never larger than it was made to be; what was set or used longest ago goes first."""

from storage.bounded_map import BoundedMap


def test_what_was_set_or_used_longest_ago_goes_first() -> None:
    known: BoundedMap[str, int] = BoundedMap(3)
    for number, key in enumerate("abc"):
        known[key] = number
    assert (known.use("a"), known.use("z"), known.get("b")) == (0, None, 1)
    known["d"] = 3
    assert [*known] == ["c", "a", "d"]
    known["c"] = 4
    assert known.setdefault("e", 5) == 5
    assert [*known.items()] == [("d", 3), ("c", 4), ("e", 5)]
    assert known.pop("c", None) == 4
    known.update(f=6, g=7)
    assert [*known] == ["e", "f", "g"]


def test_none_is_kept_in_one_that_has_room_for_nothing() -> None:
    known: BoundedMap[str, None] = BoundedMap(0)
    known["a"] = None
    assert not known
