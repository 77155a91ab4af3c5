"""BatchSelection: what a header tells about a batch's rows."""

import dataclasses

from protocol.record_batches import BatchHeader, read_header
from table.reading.segment_task import BatchSelection
from table.tasks import AbortedTransaction
from tests.support.for_each import for_each
from tests.support.segments import ProducerFields, data_batch


def header(
    base_offset: int, *, producer_id: int = -1, transactional: bool = False, record_count: int = 10
) -> BatchHeader:
    producer = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional)
    return read_header(data_batch(base_offset, record_count=record_count, producer=producer), 0)


def test_a_message_that_wraps_others_may_begin_before_the_end() -> None:
    selection = BatchSelection(0, 31)

    assert selection.wants(dataclasses.replace(header(35), magic=1, last_offset_delta=0))


@for_each(
    "base_offset, producer_id, is_wanted",
    [(0, 7, True), (10, 7, False), (30, 7, False), (40, 7, True), (60, 7, False), (10, 8, True), (70, 8, False)],
)
def test_of_a_producer_what_lies_in_an_aborted_transaction_is_not_wanted(
    base_offset: int, producer_id: int, is_wanted: bool
) -> None:
    aborted = [AbortedTransaction(7, 55, 80), AbortedTransaction(8, 70, 90), AbortedTransaction(7, 10, 39)]
    selection = BatchSelection(0, 100, aborted)

    assert selection.wants(header(base_offset, producer_id=producer_id, transactional=True)) is is_wanted
    assert selection.wants(header(base_offset, producer_id=producer_id)), "it is no part of a transaction"
