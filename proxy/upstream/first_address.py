"""The first of several addresses that can be connected to, without waiting long for one that does not even refuse.

As RFC 8305 (Happy Eyeballs) has it between the addresses of one name, and trio.open_tcp_stream does it: the next
attempt begins when the one before fails, or NEXT_ATTEMPT_S after it began, and the first that succeeds ends the
others. One after the other would be simpler, and was: a server that drops packets then cost every client the whole
time limit of one attempt, which is as long as librdkafka waits in all.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TypeVar

import trio

from protocol.client.errors import UpstreamError

NEXT_ATTEMPT_S = 0.3
"""trio and RFC 8305 say 0.25; a connection with a TLS handshake across a continent takes about that."""

ATTEMPTS_AT_ONCE_MAX = 8

Connected = TypeVar("Connected")


async def race(
    attempts: Sequence[Callable[[], Awaitable[Connected]]],
    failures: MutableMapping[int, UpstreamError],
    *,
    discard: Callable[[Connected], None],
) -> tuple[int, Connected] | None:
    """Which attempt succeeded first, and what it gave; None if all failed.

    Args:
        attempts: in the order in which they begin.
        failures: gets those that have failed, and how.
        discard: closes what succeeded beside the first, and what nobody takes as we are cancelled.
    """
    won: list[tuple[int, Connected]] = []
    slots = trio.Semaphore(ATTEMPTS_AT_ONCE_MAX)

    async def attempt(number: int, failed: trio.Event) -> None:
        try:
            connected = await attempts[number]()
        except UpstreamError as error:
            failures[number] = error
            failed.set()
            slots.release()
            return
        if won:
            discard(connected)
        else:
            won.append((number, connected))
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for number in range(len(attempts)):
                await slots.acquire()
                failed = trio.Event()
                nursery.start_soon(attempt, number, failed)
                with trio.move_on_after(NEXT_ATTEMPT_S):
                    await failed.wait()
    except BaseException:
        for _, connected in won:
            discard(connected)
        raise
    return won[0] if won else None
