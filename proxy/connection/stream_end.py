"""Why a client connection ended: an exception that its two loops end by, and what other errors amount to."""

from collections.abc import Iterator

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.wire.errors import PeerProtocolError


class ConnectionEnd(Exception):
    """The connection is over. `detail` goes into the one log line; empty when there is nothing to say.

    `fault` is an error that nobody expected: the log line shows it as such.
    """

    def __init__(self, cause: CloseCause, detail: str = "", *, fault: Exception | None = None) -> None:
        super().__init__(detail or cause.value)
        self.cause = cause
        self.detail = detail
        self.fault = fault


def end_of(group: BaseExceptionGroup[Exception], destination: CloseCause) -> ConnectionEnd:
    """Why a loop ended; a fault of ours wins over what came with it.

    Args:
        group: groups may hold groups: an exchange has nurseries inside nurseries.
        destination: the side that broke when a send failed; a receive says itself which side it was.
    """
    ends = [_end_of_one(error, destination) for error in _leaves(group)]
    return next((end for end in ends if end.fault is not None), ends[0])


def _end_of_one(error: Exception, destination: CloseCause) -> ConnectionEnd:
    match error:
        case ConnectionEnd():
            return error
        case PeerProtocolError():
            return ConnectionEnd(CloseCause.MALFORMED_FRAME, str(error))
        case TransportError():
            return ConnectionEnd(destination, str(error))
        case _:
            return ConnectionEnd(CloseCause.FAULT, repr(error), fault=error)


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
