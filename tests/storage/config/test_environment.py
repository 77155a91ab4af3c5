"""Variable names both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config.environment import key_name, unknown_variable, variable_name

WORDS = st.text(alphabet="abcxyz019", min_size=1, max_size=5)


@st.composite
def key_names(draw: st.DrawFn) -> str:
    """Words joined by single separators, as every key of ours and nearly every plug-in's key is."""
    name = draw(WORDS)
    for word in draw(st.lists(WORDS, max_size=6)):
        name += draw(st.sampled_from("._-")) + word
    return name


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("mode", "TIDEGATE_MODE"),
        ("cache.disk.bytes", "TIDEGATE_CACHE_DISK_BYTES"),
        ("rsm.config.a_b-c", "TIDEGATE_RSM_CONFIG_A__B___C"),
    ],
)
def test_a_key_becomes_a_variable_and_back(key: str, variable: str) -> None:
    assert variable_name(key) == variable
    assert key_name(variable) == key


@given(key_names())
def test_every_key_in_small_letters_survives_both_ways(key: str) -> None:
    assert key_name(variable_name(key)) == key


def test_an_unknown_variable_is_told_its_nearest_key_only_when_it_is_near() -> None:
    known = ("cache.disk.bytes", "tier.linger.ms")
    assert "TIDEGATE_CACHE_DISK_BYTES" in unknown_variable("TIDEGATE_CACHE_DISC_BYTES", known)
    assert "nearest" not in unknown_variable("TIDEGATE_SERVICE_HOST", known)
