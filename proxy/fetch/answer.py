"""What a Fetch is answered with, before and after it is bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.fetch.endpoints import endpoints_of
from protocol.fetch.messages import NO_SESSION_ID, NO_TAGS, FetchRequest, PartitionAnswer
from protocol.fetch.response import encode_response_in_slices
from protocol.fetch.walker import ENDPOINTS_VERSION_MIN
from protocol.record_batches import Buffer
from protocol.wire.errors import ErrorCode
from protocol.wire.slices import Slices, at_once
from proxy.connection.slices import in_slices
from proxy.connection.upstream_wire import UpstreamWire

TOP_LEVEL_ERROR_VERSION_MIN = 7
"""Before, an error of the whole request stands in every partition."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Answers to the partitions of a request, in its order; none in a throttled answer, or one with an error of the
    whole request.

    `sections` are the tagged sections of the responses that it is made of: they name nodes, at upstream's addresses.
    """

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int = 0
    error_code: int = ErrorCode.NONE
    sections: Sequence[bytes] = ()


async def answer_frame(
    request: FetchRequest, answer: FetchAnswer, wire: UpstreamWire, session_id: int = NO_SESSION_ID
) -> list[Buffer]:
    """The whole response frame, in buffers. Listeners of the nodes that it names are bound when this returns."""
    tags = NO_TAGS
    if answer.sections and request.api_version >= ENDPOINTS_VERSION_MIN:
        endpoints = endpoints_of(answer.sections)
        if endpoints:
            tags = endpoints.section(await wire.advertise(endpoints.nodes))
    return await in_slices(encode_answer_in_slices(request, answer, session_id, tags))


def encode_answer_in_slices(
    request: FetchRequest, answer: FetchAnswer, session_id: int = NO_SESSION_ID, tags: bytes = NO_TAGS
) -> Slices[list[Buffer]]:
    """The same with a tagged section that is ready.

    What the version cannot say of the whole it says of each partition.
    """
    partitions, error_code = answer.partitions, answer.error_code
    if error_code and request.api_version < TOP_LEVEL_ERROR_VERSION_MIN:
        partitions = [
            PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, error_code)
            for asked in request.partitions
        ]
        error_code = ErrorCode.NONE
    return encode_response_in_slices(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        answers=partitions,
        tags=tags,
    )


encode_answer = at_once(encode_answer_in_slices)
