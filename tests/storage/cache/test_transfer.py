"""One GET in one thread: what it hands over, when it tells, when it ends."""

from collections.abc import Callable

import pytest

from storage.cache.gets import POST_BYTES, Transfer
from storage.errors import CorruptObjectError, RetriableRemoteStorageError
from tests.support.scripted_gets import Script, ScriptedSegment, expected


class Listener:
    """Takes what it is told of, unless it `keeps_out`; `told`: the last block by then, of each telling."""

    def __init__(self, at_block: Callable[[int], None] = lambda _: None, *, keeps_out: bool = False) -> None:
        self.at_block = at_block
        self.keeps_out = keeps_out
        self.begun = 0
        self.told = list[int]()
        self.blocks: dict[int, bytes] = {}

    def on_begun(self, transfer: Transfer) -> None:
        self.begun += 1

    def on_blocks(self, transfer: Transfer) -> None:
        self.told.append(transfer.numbers_read[-1])
        if not self.keeps_out:
            self.blocks.update((number, bytes(block.data)) for number, block in transfer.take())
        self.at_block(self.told[-1])


def post(call: Callable[..., None], *args: object) -> None:
    call(*args)


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment(10)


def transfer_of(segment: ScriptedSegment, numbers: range = range(2, 8), *, is_waited_for: bool = True) -> Transfer:
    transfer = Transfer(segment.source, numbers)
    transfer.is_waited_for = is_waited_for
    return transfer


def test_of_blocks_that_nobody_waits_for_it_tells_every_few_mib() -> None:
    segment = ScriptedSegment(7, block_bytes=POST_BYTES // 2)
    listener = Listener()
    transfer_of(segment, range(7), is_waited_for=False).run(post, listener)
    assert listener.told == [1, 3, 5, 6], "and at the end of what is left"
    assert list(listener.blocks.values()) == expected(segment, range(7))


def test_it_tells_of_each_block_once_somebody_waits() -> None:
    segment = ScriptedSegment(7, block_bytes=POST_BYTES // 2)
    transfer = transfer_of(segment, range(7), is_waited_for=False)

    def begin_to_wait(number: int) -> None:
        transfer.is_waited_for = True

    listener = Listener(begin_to_wait)
    transfer.run(post, listener)
    assert listener.told == [1, 2, 3, 4, 5, 6]


def test_one_that_is_stopped_before_it_begins_asks_for_nothing(segment: ScriptedSegment) -> None:
    transfer, listener = transfer_of(segment), Listener()
    transfer.stop()
    transfer.run(post, listener)
    assert (list(transfer.numbers_read), transfer.was_cut, listener.begun, segment.gets) == ([], True, 0, [])


def test_one_that_is_stopped_as_its_answer_begins_closes_without_reading(segment: ScriptedSegment) -> None:
    transfer, listener = transfer_of(segment), Listener()

    def post_and_stop(call: Callable[..., None], *args: object) -> None:
        call(*args)
        transfer.stop()

    transfer.run(post_and_stop, listener)
    assert (list(transfer.numbers_read), transfer.was_cut) == ([], True)
    assert (listener.begun, listener.blocks, segment.gets[0].read_bytes) == (1, {}, 0)
    assert segment.open_gets == []


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_blocks_before_a_failure_are_handed_over(segment: ScriptedSegment, is_waited_for: bool) -> None:
    segment.script(Script(fails={5: RetriableRemoteStorageError("reset")}))
    transfer, listener = transfer_of(segment, is_waited_for=is_waited_for), Listener()
    with pytest.raises(RetriableRemoteStorageError):
        transfer.run(post, listener)
    assert list(listener.blocks) == list(transfer.numbers_read) == [2, 3, 4]
    assert listener.told == ([2, 3, 4] if is_waited_for else [4])
    assert not transfer.was_cut
    assert segment.open_gets == []


def test_a_stream_that_gives_too_little_is_corrupt(segment: ScriptedSegment) -> None:
    segment.script(Script(short=True))
    with pytest.raises(CorruptObjectError, match="block 2 has 15 bytes, 16 wanted"):
        transfer_of(segment).run(post, Listener())
    assert segment.open_gets == []


def test_one_that_is_stopped_at_its_end_was_not_cut(segment: ScriptedSegment) -> None:
    transfer = transfer_of(segment)
    transfer.run(post, Listener(lambda number: transfer.stop() if number == 7 else None))
    assert (transfer.is_stopped, transfer.was_cut) == (True, False)
