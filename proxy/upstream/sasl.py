"""The trio shell of `protocol.client.sasl`: its questions go over a connection, its computations into a thread."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from protocol.client import sasl
from protocol.client.messages import Api, Values

Ask = Callable[[Api, Values], Awaitable[Any]]
"""Send one request on the connection that is signing in, give its response."""


async def sign_in(ask: Ask, credentials: sasl.SaslCredentials) -> float:
    """Authenticate the connection behind `ask`.

    Returns:
        The session's lifetime in seconds; 0 is without end.

    Raises:
        AuthenticationFailedError, PeerProtocolError: as `protocol.client.sasl.sign_in`, besides what `ask` raises.
    """
    steps = sasl.sign_in(credentials)
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as done:
            lifetime_s: float = done.value
            return lifetime_s
        if isinstance(step, sasl.Compute):
            result = await trio.to_thread.run_sync(step.work)  # PBKDF2 would stall the loop
        else:
            result = await ask(step.api, step.values)
