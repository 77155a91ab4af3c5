"""Retention that passes a running read: what is gone by now fails the read as in planning, or is left out.

Brokers move the log start first and delete then, and so do we in a tier of our own. So what is below the log start of
now was deleted by right. Whatever else is missing stays the error that it is, which names the object.
"""

from collections.abc import Callable

import structlog

from protocol.client.errors import UpstreamError
from storage.errors import RemoteResourceNotFoundError
from table.planning.offset_bounds import GOES_ON, OffsetBoundsError, below_log_start
from table.planning.partition_view import OffsetRange
from table.planning.tier_view import TierViewError

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LostToRetention:
    """What retention took of one partition while a task reads it.

    Args:
        log_start: asks where the log starts now; only when something is missing.
    """

    def __init__(self, name: str, log_start: Callable[[], int], *, fails_on_data_loss: bool) -> None:
        self._name, self._fails_on_data_loss = name, fails_on_data_loss
        self._ask, self._log_start = log_start, -1

    def skip(self, wanted: OffsetRange, missing: Exception, *, deleted_below: int) -> int:
        """The offset behind what is left out of what is wanted.

        Args:
            missing: what reading it raised.
            deleted_below: the log start from which on that is retention's doing.

        Raises:
            OffsetBoundsError: it is, and the read is to fail then.
            RemoteResourceNotFoundError: it is not known whether it is.
            Exception: `missing`, if it is not.
        """
        if self._log_start < deleted_below:
            try:
                self._log_start = self._ask()
            except (UpstreamError, TierViewError) as error:
                raise RemoteResourceNotFoundError(f"{missing}; retention may have deleted it: {error}") from missing
        if self._log_start < deleted_below:
            raise missing
        gone = OffsetRange(wanted.first_offset, min(wanted.end_offset, self._log_start))
        sentence = below_log_start(self._name, gone, self._log_start)
        if self._fails_on_data_loss:
            raise OffsetBoundsError([f"{sentence}; {GOES_ON}"]) from missing
        _log.warning("offsets_lost", partitions=sentence, offsets=gone.end_offset - gone.first_offset)
        return gone.end_offset
