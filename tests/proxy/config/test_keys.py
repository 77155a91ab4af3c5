"""Serve's table: what must hold of every key."""

from proxy.config.keys import SERVE_KEYS
from storage.config.environment import key_name, variable_name
from storage.config.kinds import Key
from storage.config.tier_client import TIER_CLIENT_KEYS


def test_no_two_keys_of_the_table_share_a_variable() -> None:
    assert len({variable_name(key) for key in SERVE_KEYS.by_name}) == len(SERVE_KEYS.by_name)
    assert all(key_name(variable_name(key)) == key for key in SERVE_KEYS.by_name)


def test_other_readers_of_the_same_file_check_a_key_or_pass_it_over() -> None:
    """A key of a new group needs a word in `storage.config.tier_client`, or a Spark job calls it misspelt."""
    strangers = {name for name in SERVE_KEYS.by_name if not TIER_CLIENT_KEYS.is_anothers(name)}
    assert strangers == set(TIER_CLIENT_KEYS.by_name)


def test_every_beginning_that_is_passed_over_is_one_of_serves() -> None:
    for beginning in TIER_CLIENT_KEYS.others:
        assert any(name.startswith(beginning) for name in SERVE_KEYS.by_name), beginning


def test_serve_itself_passes_nothing_over() -> None:
    assert SERVE_KEYS.others == ()


def test_every_default_parses_within_its_own_limits() -> None:
    def text_of(key: Key[object]) -> str | None:
        return key.default if key.stand_in is None else key.stand_in

    for key in SERVE_KEYS.all_keys():
        text = text_of(key)
        if text is not None:
            key.kind.parse(text)
