"""Bytes that Tidegate's own code copies, counted in a Tidegate that runs in this process.

Counted: what is moved or joined into new buffers (a frame held across the receive buffer's end, an upstream answer that
an exchange awaits, requests of our own, the parts of an answer that are encoded). Not counted: what the system copies
between sockets and buffers, which no relay can do without. Record bytes of the tier are views and show up as 0; would
anyone join them, the answer's encoded bytes would tell.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio

from benchmarks.support.stage import Address
from protocol.fetch.requests import encode_request
from protocol.fetch.response import encode_response
from protocol.wire.framing import FrameBuffer
from proxy.connection.request_handlers import PendingAnswer
from tidegate import serve as application
from tidegate.config import load
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

START_S_MAX = 60.0
ENCODERS: Mapping[str, Callable[..., Any]] = {
    "proxy.fetch.sent_fetch.encode_request": encode_request,
    "proxy.fetch.answer.encode_response": encode_response,
}


class CopyCounter:
    """`copied_bytes` since the start."""

    def __init__(self) -> None:
        self.copied_bytes = 0

    def after(self, function: Callable[..., Any], size_of: Callable[[tuple[Any, ...], Any], int]) -> Callable[..., Any]:
        """`function`, counting what `size_of` makes of its arguments and its result."""

        def counted(*arguments: Any, **named: Any) -> Any:
            before = size_of(arguments, None)
            result = function(*arguments, **named)
            self.copied_bytes += before + size_of((), result)
            return result

        return counted


@contextmanager
def counting_tidegate(cluster: KafkaCluster, folder: Path) -> Iterator[tuple[Address, CopyCounter]]:
    """A Tidegate in a thread of this process, ready, and what it copies."""
    counter = CopyCounter()
    ready = threading.Event()
    started: dict[str, Any] = {}
    file = folder / "counting.properties"
    lines: Mapping[str, str] = {
        "upstream.bootstrap.servers": cluster.bootstrap_servers,
        "broker.config": str(cluster.server_properties_path(1)),
        "proxy.listen": "127.0.0.1:0",
        "proxy.broker.port.start": "0",
        "admin.listen": "127.0.0.1:0",
    }
    file.write_text(properties_text(lines), encoding="utf-8")

    async def run() -> None:
        stop = trio.Event()
        async with application.run(load(file, {})) as running:
            await running.readiness.wait_ready()
            started.update(address=running.bootstrap, stop=stop, token=trio.lowlevel.current_trio_token())
            ready.set()
            await stop.wait()

    with ExitStack() as stack:
        for target, replacement in _counted(counter).items():
            stack.enter_context(patch(target, replacement))
        thread = threading.Thread(target=trio.run, args=(run,), daemon=True)
        thread.start()
        if not ready.wait(START_S_MAX):
            raise RuntimeError(f"no Tidegate in this process after {START_S_MAX} s")
        try:
            yield started["address"], counter
        finally:
            started["token"].run_sync_soon(started["stop"].set)
            thread.join()


def _counted(counter: CopyCounter) -> dict[str, Callable[..., Any]]:
    counted: dict[str, Callable[..., Any]] = {
        target: counter.after(function, lambda _, made: 0 if made is None else _made_bytes(made))
        for target, function in ENCODERS.items()
    }
    counted["proxy.connection.request_handlers.PendingAnswer.deliver"] = counter.after(
        PendingAnswer.deliver, lambda arguments, _: len(arguments[1]) if arguments else 0
    )
    for name in ("_to_front", "_replace"):
        counted[f"protocol.wire.framing.FrameBuffer.{name}"] = counter.after(
            getattr(FrameBuffer, name), lambda arguments, _: len(arguments[0]) if arguments else 0
        )
    return counted


def _made_bytes(result: Any) -> int:
    """Return the number of bytes that an encoder made, views left out."""
    if result is None:
        return 0
    buffers = [result] if isinstance(result, bytes | bytearray) else result
    return sum(len(buffer) for buffer in buffers if not isinstance(buffer, memoryview))
