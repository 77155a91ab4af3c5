"""A spell is said once."""

from proxy.connection.slots import SPELL_S, Spells


def test_it_is_said_when_it_begins_and_when_it_comes_back() -> None:
    now_s = 0.0
    spells = Spells(lambda: now_s)
    assert spells.begins("flood")
    for pause_s in (1.0, SPELL_S, SPELL_S):
        now_s += pause_s
        assert not spells.begins("flood")
    assert spells.begins("another")
    now_s += SPELL_S + 1
    assert spells.begins("flood")


def test_a_spell_may_be_known_to_be_over() -> None:
    spells = Spells(lambda: 0.0)
    assert spells.begins("full")
    spells.end("full")
    spells.end("never began")
    assert spells.begins("full")
