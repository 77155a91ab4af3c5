"""A table of keys: what is in it, what is another program's, and which key someone may have meant."""

import pytest

from storage.config.key_table import KeyTable
from storage.config.kinds import TEXT, Key, KeyGroup

HERE = Key(name="tier.here", kind=TEXT, doc="Here.", aliases=("tier.heres",))
OURS_TOO = Key(name="proxy.shared", kind=TEXT, doc="In this table though the beginning is another program's.")
TABLE = KeyTable((KeyGroup("One", (HERE,)), KeyGroup("Two", (OURS_TOO,))), others=("proxy.", "cache."))
PLUGINS = ("rsm.config.", "rlmm.config.")


def test_keys_are_found_by_every_spelling_and_listed_once() -> None:
    assert dict(TABLE.by_name) == {"tier.here": HERE, "tier.heres": HERE, "proxy.shared": OURS_TOO}
    assert list(TABLE.all_keys()) == [HERE, OURS_TOO]


def test_a_key_is_anothers_by_its_beginning_unless_it_is_in_the_table() -> None:
    assert TABLE.is_anothers("proxy.listen")
    assert not TABLE.is_anothers("proxy.shared")
    assert not TABLE.is_anothers("proxies.listen")
    assert not KeyTable(TABLE.groups).is_anothers("proxy.listen")


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
