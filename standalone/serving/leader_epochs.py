"""A connection's OffsetForLeaderEpoch, where the tier is our own (docs/protocol.md#list-offsets-standalone).

The request is the broker's: it is sent on as it came, and its answer stands, errors first. But a broker forgets the
leader epochs of what it has deleted. Below its first epoch it answers with the epoch that was asked and the offset
where its log starts; those answers, and no others, are replaced by what a broker would say that had kept all of the
tier: the highest epoch up to the one that was asked, and where it ends.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import partial

from protocol.offset_for_leader_epoch import (
    LeaderEpochAnswer,
    LeaderEpochPartition,
    decode_request,
    decode_response,
    patch,
)
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import decode_request_header
from proxy.connection.request_handlers import RELAY, Answer, Relay, UpstreamWire
from proxy.connection.slices import BYTES_AT_ONCE, off_loop
from proxy.offsets.timestamp_lookup import Key
from standalone.serving.tier_offsets import TierOffsets, forward


@dataclass(frozen=True, slots=True)
class _Told:
    asked_epoch: int
    answer: LeaderEpochAnswer

    @property
    def key(self) -> Key:
        return self.answer.topic, self.answer.partition

    @property
    def may_be_forgotten(self) -> bool:
        """The broker names another epoch where it knows one; version 0 does not say which."""
        answer = self.answer
        return not answer.error_code and answer.end_offset >= 0 and answer.leader_epoch in (None, self.asked_epoch)


class LeaderEpochsService:
    """Keeps nothing."""

    def __init__(self, tier_offsets: TierOffsets) -> None:
        self._tier_offsets = tier_offsets

    async def handle(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        """Decide about one request, and answer it if it is not to be relayed.

        Raises:
            PeerProtocolError: the request is malformed, or too large.
        """
        header, is_large = decode_request_header(frame), len(frame) > BYTES_AT_ONCE
        asked = await off_loop(is_large, partial(decode_request, frame, header))
        if not any(self._tier_offsets.may_hold(each.topic) for each in asked):
            return RELAY
        version = header.api_version
        response = await forward(frame, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, wire, header.correlation_id)
        answers = await off_loop(is_large, partial(decode_response, memoryview(response), version, len(asked)))
        told = [each for each in _matched(asked, answers) if each.may_be_forgotten]
        for answer in await self._told_by_tier(told, wire.node_id):
            patch(response, answer)
        return [response]

    async def _told_by_tier(self, told: list[_Told], node_id: int | None) -> list[LeaderEpochAnswer]:
        """The answers that are to be replaced, with what replaces them."""
        tier = self._tier_offsets
        keys = {each.key: None for each in told if tier.may_hold(each.answer.topic)}
        if not keys:
            return []
        held = (await tier.place(keys, node_id)).held
        # Asked after the broker's answer: its log starts no lower now than it did for that.
        frontiers = await tier.frontiers(held.values(), node_id)
        lineages = await tier.lineages(frontiers)
        replaced = []
        for each in told:
            partition = held.get(each.key)
            if partition is None or partition not in lineages:
                continue
            if each.asked_epoch >= frontiers[partition].leader_epoch:
                continue  # the leader's own, of which it may have deleted all
            local_log_start_offset = frontiers[partition].local_log_start_offset
            if each.answer.end_offset <= local_log_start_offset:
                log_start_offset = tier.log_start(partition, local_log_start_offset)
                epoch, end = lineages[partition].told(each.asked_epoch, log_start_offset)
                leader_epoch = None if each.answer.leader_epoch is None else epoch
                replaced.append(
                    replace(each.answer, leader_epoch=leader_epoch, end_offset=min(end, each.answer.end_offset))
                )
        return replaced


def _matched(asked: list[LeaderEpochPartition], answers: list[LeaderEpochAnswer]) -> list[_Told]:
    """Each answer with the epoch that it is for: an answer does not say, the order within a partition does."""
    epochs: dict[Key, deque[int]] = {}
    for each in asked:
        epochs.setdefault((each.topic, each.partition), deque()).append(each.leader_epoch)
    told = []
    for answer in answers:
        waiting = epochs.get((answer.topic, answer.partition))
        if waiting:
            told.append(_Told(waiting.popleft(), answer))
    return told
