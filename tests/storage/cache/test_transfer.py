"""One GET in one thread: what it hands over, when it ends, what it gives away."""

from collections.abc import Callable

import pytest

from storage.cache.memory import Block
from storage.cache.transfer import Transfer
from storage.errors import CorruptObjectError, RetriableRemoteStorageError
from tests.support.scripted_gets import Script, ScriptedSegment, expected


class Listener:
    """Keeps what it is told; `at_block` is called with each block."""

    def __init__(self, wanted: bool = True, at_block: Callable[[int], None] = lambda _: None) -> None:
        self.wanted = wanted
        self.at_block = at_block
        self.begun = 0
        self.blocks: dict[int, bytes] = {}

    def may_begin(self, transfer: Transfer) -> bool:
        return self.wanted

    def on_begun(self, transfer: Transfer) -> None:
        self.begun += 1

    def on_block(self, transfer: Transfer, number: int, block: Block) -> None:
        self.blocks[number] = bytes(block.data)
        self.at_block(number)


def post(call: Callable[..., None], *args: object) -> None:
    call(*args)


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment(10)


def transfer_of(segment: ScriptedSegment, listener: Listener, numbers: range = range(2, 8)) -> Transfer:
    return Transfer(segment.source, numbers, listener, sent_s=0.0)


def test_a_transfer_is_one_get_that_hands_over_block_after_block(segment: ScriptedSegment) -> None:
    listener = Listener()
    transfer = transfer_of(segment, listener)
    transfer.run(post)
    assert listener.begun == 1
    assert list(listener.blocks.values()) == expected(segment, range(2, 8))
    assert segment.ranges() == [(2, 7)]
    assert (transfer.numbers_read, transfer.was_cut) == (range(2, 8), False)
    assert segment.open_gets == []


def test_one_that_may_not_begin_closes_without_reading(segment: ScriptedSegment) -> None:
    listener = Listener(wanted=False)
    transfer = transfer_of(segment, listener)
    transfer.run(post)
    assert (list(transfer.numbers_read), transfer.was_cut) == ([], True)
    assert (listener.begun, listener.blocks, segment.gets[0].read_bytes) == (1, {}, 0)
    assert segment.open_gets == []


def test_blocks_before_a_failure_are_handed_over(segment: ScriptedSegment) -> None:
    segment.script(Script(fails={5: RetriableRemoteStorageError("reset")}))
    listener = Listener()
    transfer = transfer_of(segment, listener)
    with pytest.raises(RetriableRemoteStorageError):
        transfer.run(post)
    assert list(listener.blocks) == list(transfer.numbers_read) == [2, 3, 4]
    assert not transfer.was_cut
    assert segment.open_gets == []


def test_a_stream_that_gives_too_little_is_corrupt(segment: ScriptedSegment) -> None:
    segment.script(Script(short=True))
    with pytest.raises(CorruptObjectError, match="block 2 has 15 bytes, 16 wanted"):
        transfer_of(segment, Listener()).run(post)


def test_a_stopped_transfer_ends_between_two_blocks(segment: ScriptedSegment) -> None:
    listener = Listener(at_block=lambda number: transfer.stop() if number == 4 else None)
    transfer = transfer_of(segment, listener)
    transfer.run(post)
    assert list(listener.blocks) == list(transfer.numbers_read) == [2, 3, 4]
    assert transfer.was_cut
    assert segment.open_gets == []


def test_half_of_what_is_left_is_given_away_until_one_block_is_left(segment: ScriptedSegment) -> None:
    given = list[range | None]()
    listener = Listener(at_block=lambda number: given.extend(transfer.give_away() for _ in range(4 * (number == 2))))
    transfer = transfer_of(segment, listener)
    transfer.run(post)
    # Block 2 is being read, 3 to 7 are to come.
    assert given == [range(5, 8), range(4, 5), range(3, 4), None]
    assert list(listener.blocks) == list(transfer.numbers_read) == [2]
    assert not transfer.was_cut, "what was given away is another GET's"


def test_blocks_that_are_decoded_together_stay_together() -> None:
    segment = ScriptedSegment(9, unit_blocks=3)
    transfer = transfer_of(segment, Listener(), range(9))
    assert transfer.give_away() == range(6, 9)
    assert transfer.give_away() == range(3, 6)
    assert transfer.give_away() is None
