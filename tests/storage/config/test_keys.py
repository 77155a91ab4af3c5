"""Keys and tables of them: what is in one, what is another program's, and which key someone may have meant."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.config.keys import PATH, TEXT, KeyTable, Reload, integer, key, keys_of, optional


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    here: str = key("tier.here", TEXT, "Here.", aliases=("tier.heres",), reload=Reload.AT_ONCE)
    count: int = key("tier.count", integer(1, 9), "How many.", default="3")
    length: int = key("tier.length", integer(1, 9), "How long.", default_words="the count")
    file: Path | None = key("tier.file", optional(PATH), "Where.")
    secret: str | None = key("tier.secret", optional(TEXT), "A secret.", secret=True)
    made: str = "no key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    shared: str = key("proxy.shared", TEXT, "In this table though the beginning is another program's.")


TABLE = KeyTable(Here, Shared, others=("proxy.", "cache."))
PLUGINS = ("rsm.config.", "rlmm.config.")


def test_a_group_has_a_key_for_each_field_that_is_one() -> None:
    assert {field: found.name for field, found in keys_of(Here).items()} == {
        "here": "tier.here",
        "count": "tier.count",
        "length": "tier.length",
        "file": "tier.file",
        "secret": "tier.secret",
    }


def test_a_key_without_a_default_of_any_sort_is_required() -> None:
    assert [found.name for found in TABLE.keys if found.required] == ["tier.here", "proxy.shared"]


def test_a_group_can_be_made_by_hand_with_the_keys_defaults() -> None:
    made = Here(here="a", length=1, secret="hunter2")
    assert (made.count, made.file, made.made) == (3, None, "no key")
    assert "hunter2" not in repr(made)
    with pytest.raises(TypeError, match="here"):
        Here(length=1)


def test_a_default_beyond_the_keys_own_limits_is_a_fault_at_once() -> None:
    with pytest.raises(ValueError, match="at most 9"):
        key("tier.count", integer(1, 9), "How many.", default="10")


def test_keys_are_found_by_every_spelling_and_listed_once() -> None:
    names = ["tier.here", "tier.count", "tier.length", "tier.file", "tier.secret", "proxy.shared"]
    assert [found.name for found in TABLE.keys] == names
    assert {*TABLE.by_name} == {*names, "tier.heres"}
    assert TABLE.by_name["tier.heres"] is TABLE.by_name["tier.here"]


def test_a_key_is_anothers_by_its_beginning_unless_it_is_in_the_table() -> None:
    assert TABLE.is_anothers("proxy.listen")
    assert not TABLE.is_anothers("proxy.shared")
    assert not TABLE.is_anothers("proxies.listen")
    assert not KeyTable(Here, Shared).is_anothers("proxy.listen")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tier.hear", "tier.here"),
        ("rsm.confg.chunk.size", "rsm.config.chunk.size"),
        ("prxy.listen", "proxy.listen"),
        ("cahce.disk.bytes", "cache.disk.bytes"),
        ("zzz.listen", None),
        ("zzz", None),
    ],
)
def test_the_nearest_key_has_its_beginning_spelt_right(name: str, nearest: str | None) -> None:
    assert TABLE.nearest(name, PLUGINS) == nearest
