"""Why a client connection ended, as an exception that its two loops end by."""

from metrics.probes import CloseCause


class ConnectionEnd(Exception):
    """The connection is over. `detail` goes into the one log line; empty when there is nothing to say."""

    def __init__(self, cause: CloseCause, detail: str = "") -> None:
        super().__init__(detail or cause.value)
        self.cause = cause
        self.detail = detail
