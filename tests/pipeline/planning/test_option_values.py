"""Values of options by themselves; what they are for is in test_options.py."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.options import OptionReader

_POWERS = {"": 0, "k": 1, "kb": 1, "m": 2, "M": 2, "MB": 2, "g": 3, "t": 4}


def reader_of(**values: str) -> OptionReader:
    return OptionReader(values, [])


@given(st.integers(0, 10**6))
def test_a_size_is_its_number_times_its_unit(number: int) -> None:
    for unit, power in _POWERS.items():
        reader = reader_of(bytes=f"{number}{unit}")
        assert reader.size("bytes", None, minimum=0) == number * 1024**power, unit
        assert reader.problems == [], unit


def test_a_wrong_value_gives_the_default_and_one_sentence_with_a_part_of_it() -> None:
    reader = reader_of(mode="x" * 1_000, flag="maybe")

    assert reader.choice("mode", ("one", "two"), also="three") == "one"
    assert reader.boolean("flag", default=True) is True
    assert reader.problems == [
        f"mode is {'x' * 80 + '…'!r}: it has to be one or two or three",
        "flag is 'maybe': it has to be true or false",
    ]


def test_what_is_not_given_is_the_default_without_a_word() -> None:
    reader = reader_of()

    assert reader.size("bytes", 7, minimum=8) == 7
    assert reader.moment("time", rounds_up=True) is None
    assert reader.boolean("flag", default=False) is False
    assert reader.problems == []
