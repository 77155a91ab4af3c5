import signal

import pytest

from tools.demo.interrupts import Interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def test_the_first_signal_raises_and_later_ones_do_nothing() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    for first in SIGNALS:
        with Interrupts():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(first)
            for number in SIGNALS:
                signal.raise_signal(number)
        assert [signal.getsignal(number) for number in SIGNALS] == before, "they are put back"


def test_a_signal_waits_for_the_end_of_a_held_block() -> None:
    reached = []

    def start_something(interrupts: Interrupts) -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")
        reached.append("behind the block")

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            start_something(interrupts)
        assert reached == ["the end of the block"]
        start_something(interrupts)
        assert reached[-1] == "behind the block"
