"""One place in the pool of own connections: a connection that is opened once for all who want it.

The first caller opens it, the others wait for that attempt and share its outcome, good or bad. After a failed
attempt the next one waits: 50 ms at first, doubled up to a second (settings), until one succeeds.
"""

from collections.abc import Awaitable, Callable

import trio

from protocol.client.errors import UpstreamConnectionError, UpstreamError
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import BrokerConnection


class PooledConnection:
    """Owns at most one connection."""

    def __init__(self, settings: ClientSettings) -> None:
        self.backoff_s = 0.0
        self._settings = settings
        self._connection: BrokerConnection | None = None
        self._lock = trio.Lock()
        self._attempts = 0
        self._failure: UpstreamError | None = None
        self._not_before = float("-inf")
        self._closed = False

    @property
    def usable(self) -> bool:
        """Return whether `get` would return at once."""
        return self._connection is not None and self._connection.usable

    async def get(self, open_connection: Callable[[], Awaitable[BrokerConnection]]) -> BrokerConnection:
        """The usable connection, opened by `open_connection` if there is none.

        Raises:
            UpstreamError: what the attempt failed with, also when it was another task's.
        """
        attempts_seen = self._attempts
        async with self._lock:
            if self._connection is not None and self._connection.usable:
                return self._connection
            if self._failure is not None and self._attempts != attempts_seen:
                raise type(self._failure)(*self._failure.args) from self._failure
            await trio.sleep_until(self._not_before)
            if self._connection is not None:
                self._connection.retire()
                self._connection = None
            return await self._open(open_connection)

    def close(self) -> None:
        """Retire the connection, also one that is being opened just now."""
        self._closed = True
        if self._connection is not None:
            self._connection.retire()

    async def _open(self, open_connection: Callable[[], Awaitable[BrokerConnection]]) -> BrokerConnection:
        try:
            connection = await open_connection()
        except UpstreamError as error:
            self._attempts += 1
            self._failure = error
            first, most = self._settings.reconnect_backoff_s, self._settings.reconnect_backoff_max_s
            self.backoff_s = min(most, max(first, self.backoff_s * 2))
            self._not_before = trio.current_time() + self.backoff_s
            raise
        if self._closed:
            connection.retire()
            raise UpstreamConnectionError(f"{connection.broker_name} is not this broker's address any more")
        self._failure = None
        self.backoff_s = 0.0
        self._connection = connection
        return connection
