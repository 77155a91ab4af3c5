"""Merging probe answers, tier records and the broker's own answers into one Fetch response. Pure
(ARCHITECTURE.md#one-request-end-to-end).

Offsets are the broker's live ones, from the probe; record bytes are the tier's. Every partition of the request
has one answer, in request order.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import replace

from protocol.fetch.messages import FetchPartition, FetchRequest, FetchResponse, PartitionAnswer
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from protocol.wire.slices import Slices, at_once, cut
from proxy.fetch.answer import FetchAnswer
from proxy.fetch.authority import Authority
from proxy.fetch.plan import PartitionKey, TierPart, key_of
from storage.reader import TierRecords


def tier_answer(
    request: FetchRequest, part: TierPart, authority: Authority, result: TierRecords | None
) -> PartitionAnswer:
    """The answer of one vouched-for part; a result of None is a read that was not there in time."""
    asked = part.asked
    return PartitionAnswer(
        asked.topic,
        asked.topic_id,
        asked.partition,
        ErrorCode.NONE,
        authority.high_watermark,
        authority.last_stable_offset,
        authority.log_start_offset,
        aborted_transactions=_aborted(request, authority, result),
        records=() if result is None else result.buffers,
    )


def lacks_aborts(authority: Authority, result: TierRecords | Exception | None) -> bool:
    """Whether aborted transactions of a READ_COMMITTED answer may be known to neither the tier nor the probe."""
    if not isinstance(result, TierRecords) or result.aborts is None or result.aborts.is_complete:
        return False
    return authority.aborted_tail is None or result.aborts.searched_below < authority.local_log_start_offset


def _aborted(request: FetchRequest, authority: Authority, result: TierRecords | None) -> list[tuple[int, int]] | None:
    """As at the broker: null where nothing was looked for, a list where READ_COMMITTED was answered with records."""
    if request.isolation_level != IsolationLevel.READ_COMMITTED or result is None or result.first_batch_too_large:
        return None
    aborts = result.aborts
    assert aborts is not None, "a READ_COMMITTED read without its search for aborts"
    aborted = [*aborts.transactions]
    if not aborts.is_complete:
        aborted += [entry for entry in authority.aborted_tail or () if entry[1] < aborts.upper_bound_offset]
    return list(dict.fromkeys(aborted))


def withhold_excess(
    request: FetchRequest, answers: MutableMapping[PartitionKey, PartitionAnswer], exceeding: Collection[PartitionKey]
) -> set[PartitionKey]:
    """Empty those answers beyond their limit that stand behind one with records (proxy.fetch.plan, rule 3); which.

    A Fetch of our own grants the first partition that has records a batch beyond its limit; in the client's request
    that right may be another's, and there is one.
    """
    withheld: set[PartitionKey] = set()
    are_records_given = False
    for asked in request.partitions if exceeding else ():
        key = key_of(asked)
        answer = answers.get(key)
        if answer is None or not answer.records_bytes:
            continue
        if are_records_given and key in exceeding:
            answers[key] = replace(answer, records=(), aborted_transactions=None)
            withheld.add(key)
        are_records_given = True
    return withheld


def starved_behind(
    withheld: Collection[PartitionKey],
    asked: Sequence[FetchPartition],
    answers: Mapping[PartitionKey, PartitionAnswer],
) -> list[FetchPartition]:
    """Of what was asked for by a Fetch of our own: those without records behind one that is withheld. It may have taken
    what the broker would have given them."""
    keys = [key_of(each) for each in asked]
    first = next((at for at, key in enumerate(keys) if key in withheld), len(keys))
    return [
        each
        for each, key in zip(asked[first:], keys[first:], strict=True)
        if key not in withheld and (answer := answers.get(key)) is not None and not answer.records_bytes
        if not answer.error_code
    ]


def assemble_in_slices(
    request: FetchRequest,
    answers: Mapping[PartitionKey, PartitionAnswer],
    throttle_time_ms: int,
    sections: Sequence[bytes] = (),
) -> Slices[FetchAnswer]:
    """One answer per partition of the request; `sections` as FetchAnswer has them."""
    assembled: list[PartitionAnswer] = []
    for some in cut(request.partitions):
        if assembled:
            yield
        assembled += [answers.get(key_of(asked)) or _unanswered(asked) for asked in some]
    return FetchAnswer(assembled, throttle_time_ms, sections=sections)


assemble = at_once(assemble_in_slices)


def is_whole(answer: FetchResponse | FetchAnswer) -> bool:
    """Whether it answers the request as a whole: throttled, without partitions, or an error."""
    return bool(answer.error_code) or (not answer.partitions and answer.throttle_time_ms > 0)


def pass_whole(response: FetchResponse) -> FetchAnswer:
    """What the broker answered to our part of the request, as the answer to all of it."""
    return FetchAnswer((), response.throttle_time_ms, response.error_code)


def _unanswered(asked: FetchPartition) -> PartitionAnswer:
    """Upstream left out a partition that it was asked for: nothing is known of it."""
    return PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
