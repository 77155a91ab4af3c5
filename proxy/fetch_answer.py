"""What a Fetch is answered with, before and after it is bytes. Pure.

Node endpoints of the parts are left out of a merged response: the partitions' current-leader tags stay, and clients
that miss an address ask for metadata.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.api_01_fetch import NO_SESSION_ID, FetchRequest, PartitionAnswer
from protocol.api_01_fetch_response import encode_response
from protocol.errors import ErrorCode
from protocol.record_batches import Buffer

TOP_LEVEL_ERROR_VERSION_MIN = 7
"""Before, an error of the whole request stands in every partition."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Answers to the partitions of a request, in its order; none in a throttled answer, or one with an error of the
    whole request."""

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int = 0
    error_code: int = ErrorCode.NONE

    @property
    def is_whole(self) -> bool:
        """Whether the request is answered as a whole: throttled, or refused."""
        return bool(self.error_code) or (not self.partitions and self.throttle_time_ms > 0)


def encode_answer(request: FetchRequest, answer: FetchAnswer, session_id: int = NO_SESSION_ID) -> list[Buffer]:
    """The whole response frame, in buffers. What the version cannot say of the whole it says of each partition."""
    partitions, error_code = answer.partitions, answer.error_code
    if error_code and request.api_version < TOP_LEVEL_ERROR_VERSION_MIN:
        partitions = [
            PartitionAnswer.error(asked.topic, asked.topic_id, asked.partition, error_code)
            for asked in request.partitions
        ]
        error_code = ErrorCode.NONE
    return encode_response(
        request.api_version,
        request.correlation_id,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        answers=partitions,
    )
