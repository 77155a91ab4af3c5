"""Which of our files one missing block goes through: profiles a cold and a warm Fetch in this process, without Kafka.

    python -m tools.block_path [--store filesystem] [--functions]

The client's connection, the exchange, the tier's reader and its caches are the real ones. The segment has one block, in
Aiven's format (encrypted, zstd), in an S3 server on this machine; the broker is a model. The cold Fetch finds nothing
in memory, the warm one asks the same once more. The engine is what is entered from the moment at which the block is
missing to the one at which it is in memory, by the calls of the cache's own meters.

A file counts when a function of it is called. Imports, constructors, comparisons and properties do not count, so files
of which nothing else is called are listed apart. A file leads on when it calls another of ours in its room; the others
are asked something and return, so that who follows the block need not enter them.
"""

import argparse
import ast
import inspect
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from unittest import mock

import trio
from trio._core import _thread_cache

from protocol.fetch.response import decode_response
from proxy.connection.client_reads import ClientReads
from proxy.fetch.lineages import Lineages
from proxy.fetch.service import FetchService
from proxy.fetch.tier import Tier
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.files.store import FileSystemStore
from storage.object_store.object_store import ObjectStore
from storage.object_store.s3.store import S3Store
from tests.support.aiven_writer import AivenWriterOptions, make_key_pair, write_segment
from tests.support.memory_transport import conversation
from tests.support.s3_server import s3_server
from tests.support.segments import SyntheticSegment, filled_segment, metadata_of, topic_partition
from tests.support.tier import Tier as TierStack
from tests.support.tier import open_reader
from tests.support.tier_world import LEADER_EPOCH, TierWorld, ask, client_frame, fetch_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("metrics", "protocol", "proxy", "storage")
ENGINE_ROOM = "storage/cache"
METERS = "metrics/cache_meters.py"
MISSING, LANDED = "CacheMeter.on_miss", ("CacheMeter.on_fill", "CacheMeter.on_resident")
"""Functions of METERS: the first call of the one, the last of the others."""

PLUMBING = frozenset({"__init__", "__post_init__", "__new__", "__eq__", "__hash__", "__repr__", "__len__", "__bool__"})
BLOCK_BYTES = 1024 * 1024
CHUNK_BYTES = 64 * 1024
READAHEAD_BYTES = 32 * BLOCK_BYTES
ANSWER_BYTES = 128 * 1024
FETCH_VERSION = 17
MAX_WAIT_MS = 30_000
"""Profiled code is slow."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of ours. `file`: relative to the project. `caller`: the file of ours that called it."""

    file: str
    function: str
    is_plumbing: bool
    caller: str = ""

    @property
    def room(self) -> str:
        return _room(self.file)


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of one Fetch, in order, of all threads."""

    calls: Sequence[Call]

    def files(self) -> dict[str, list[str]]:
        """The functions called of each file, all in the order of their first call."""
        found: dict[str, dict[str, None]] = {}
        for call in self.calls:
            if not call.is_plumbing:
                found.setdefault(call.file, {})[call.function] = None
        return {file: [*functions] for file, functions in found.items()}

    def leads_on(self, room: str) -> list[str]:
        """Files of the room that call another one of it, in the order of their first such call."""
        inside = (call for call in self.calls if not call.is_plumbing and call.room == room)
        return [
            *dict.fromkeys(call.caller for call in inside if call.caller != call.file and _room(call.caller) == room)
        ]

    def types(self) -> list[str]:
        """Files of which only constructors, comparisons or properties were called."""
        counted = self.files()
        return [file for file in dict.fromkeys(call.file for call in self.calls) if file not in counted]

    def engine(self) -> "Trace":
        """From the miss to the landing.

        Raises:
            LookupError: the meters do not say; their names have changed, or nothing was missing.
        """
        probed = {at: call.function for at, call in enumerate(self.calls) if call.file == METERS}
        missing = next((at for at, function in probed.items() if function == MISSING), None)
        landed = [at for at, function in probed.items() if function in LANDED]
        if missing is None or not landed or landed[-1] < missing:
            raise LookupError(f"{METERS}: no call of {MISSING} before one of {' or '.join(LANDED)}")
        return Trace(self.calls[missing : landed[-1] + 1])


class Profiler:
    """Every call of a function of ours while `recording`, in all threads that start within `installed`."""

    def __init__(self) -> None:
        self._calls: list[Call] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Before the first worker thread: those that run already are not seen."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """The list is filled while the block runs."""
        calls = self._calls = list[Call]()
        try:
            yield calls
        finally:
            self._calls = None

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        calls = self._calls
        if calls is not None and event == "call" and (call := _call_of(frame.f_code)) is not None:
            calls.append(replace(call, caller=_caller(frame)))


def _room(file: str) -> str:
    return file.rpartition("/")[0]


def _caller(frame: FrameType) -> str:
    """The nearest file of ours above; empty at the beginning of a task, a thread or a callback."""
    above = frame.f_back
    while above is not None:
        if (call := _call_of(above.f_code)) is not None:
            return call.file
        above = above.f_back
    return ""


@cache
def _call_of(code: CodeType) -> Call | None:
    """None for what is not ours, and for bodies of modules and classes, which an import runs."""
    path = Path(code.co_filename)
    if not code.co_flags & inspect.CO_OPTIMIZED or not path.is_relative_to(ROOT):
        return None
    file = path.relative_to(ROOT).as_posix()
    if file.partition("/")[0] not in PACKAGES:
        return None
    is_plumbing = code.co_name in PLUMBING or code.co_firstlineno in _property_lines(path)
    return Call(file, code.co_qualname, is_plumbing)


@cache
def _property_lines(path: Path) -> frozenset[int]:
    """The first lines of properties' functions, decorators included, as code objects have them."""
    return frozenset(
        min(decorator.lineno for decorator in node.decorator_list)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id.endswith("property") for each in node.decorator_list)
    )


def trace_fetches(store: ObjectStore, folder: Path) -> tuple[Trace, Trace]:
    """A cold and a warm Fetch of a segment that is written to `store`; key files go to `folder`."""
    pair = make_key_pair(folder, "key1")
    segment = filled_segment(batch_count=40, records_per_batch=10, value_bytes=1000, leader_epoch=LEADER_EPOCH)
    options = AivenWriterOptions(chunk_bytes=CHUNK_BYTES, compression=True, key_pair=pair)
    metadata = metadata_of(topic_partition(), segment)
    metadata = replace(metadata, custom_metadata=write_segment(store, metadata, segment.objects(), options))
    keys = {"chunk.size": str(CHUNK_BYTES), "compression.enabled": "true", **pair}
    profiler = Profiler()
    # A thread that trio keeps from another run knows nothing of the profiler.
    threads_of_this_run = mock.patch.object(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache())
    with threads_of_this_run, profiler.installed():
        return trio.run(_two_fetches, profiler, AivenRemoteStorageManager(keys, store=store), metadata, segment)


async def _two_fetches(
    profiler: Profiler,
    manager: AivenRemoteStorageManager,
    metadata: RemoteLogSegmentMetadata,
    segment: SyntheticSegment,
) -> tuple[Trace, Trace]:
    manager.warm_up()
    async with trio.open_nursery() as nursery:
        stack = open_reader(
            nursery, manager, [(metadata, segment.log)], block_bytes=BLOCK_BYTES, readahead_bytes_max=READAHEAD_BYTES
        )
        world = _world(nursery, stack, segment)
        partition, offset = metadata.topic_id_partition, segment.end_offset // 2
        frame = client_frame(
            fetch_of(
                [ask(partition, offset, max_bytes=ANSWER_BYTES)], api_version=FETCH_VERSION, max_wait_ms=MAX_WAIT_MS
            )
        )
        service = FetchService(
            tier=world.tier,
            client=ClientReads(),
            fallback=world.fallback,
            settings=world.settings,
            generation=world.generation,
            slots=world.slots,
            meters=world.meters,
        )
        traces = []
        async with conversation(handle_fetch=service.handle) as talk, trio.open_nursery() as brokers:

            async def broker() -> None:
                while True:
                    await talk.upstream.send(await world.broker.answer(await talk.upstream.receive_frame()))

            brokers.start_soon(broker)
            for _ in range(2):
                with profiler.recording() as calls:
                    await talk.client.send(frame)
                    received = await talk.client.receive_frame()
                    await stack.settled()
                (answer,) = decode_response(memoryview(received), FETCH_VERSION).partitions
                if answer.error_code or not answer.records:
                    raise RuntimeError(f"error code {answer.error_code} and no records")
                traces.append(Trace(calls))
            brokers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    return traces[0], traces[1]


def _world(nursery: trio.Nursery, stack: TierStack, segment: SyntheticSegment) -> TierWorld:
    """A model of the broker, and the tier as exchanges see it over the real reader."""
    world = TierWorld(nursery)
    end = segment.end_offset + 1
    world.add_partition(segments=[], local_log_start_offset=end, high_watermark=end)
    world.tier = Tier(
        catalog=stack.catalog,
        tail=world.tail,
        reader=stack.reader,
        frontiers=world.frontiers,
        lineages=Lineages(world.frontier_client, world.own_cluster, stack.catalog, nursery),
        cluster=world.own_cluster,
        meter=world.meters.tier,
    )
    return world


def report(name: str, trace: Trace, *, has_functions: bool) -> Iterator[str]:
    """The lines that show it: rooms and their files in the order in which they are first entered."""
    files = trace.files()
    rooms: dict[str, list[str]] = {}
    for file in files:
        rooms.setdefault(_room(file), []).append(file)
    yield f"{name}: {len(files)} files"
    for room, entered in rooms.items():
        yield f"  {room}: {len(entered)}"
        for file in entered:
            functions = f"  ({', '.join(files[file])})" if has_functions else ""
            yield f"    {file.rpartition('/')[2]}{functions}"
    if types := trace.types():
        yield f"  types alone, not counted: {', '.join(types)}"


def main(arguments: list[str] | None = None) -> int:
    """Print it all; the counts are the last line."""
    parser = argparse.ArgumentParser(description="The files of ours that one missing block goes through.")
    parser.add_argument("--store", choices=("s3", "filesystem"), default="s3")
    parser.add_argument("--functions", action="store_true", help="also the functions that are called of each file")
    chosen = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store: ObjectStore
        if chosen.store == "s3":
            server = stack.enter_context(s3_server())
            store = S3Store(server.settings(server.make_bucket()))
        else:
            store = FileSystemStore(folder / "objects")
        stack.callback(store.close)
        cold, warm = trace_fetches(store, folder / "keys")
    engine = cold.engine()
    parts = {"a cold Fetch": cold, "a warm Fetch": warm, "the engine, from missing to in memory": engine}
    for name, trace in parts.items():
        print(*report(name, trace, has_functions=chosen.functions), sep="\n", end="\n\n")
    in_cache = sum(_room(file) == ENGINE_ROOM for file in engine.files())
    print(
        f"cold {len(cold.files())} files, warm {len(warm.files())}; one missing block {len(engine.files())}, "
        f"of them in {ENGINE_ROOM} {in_cache}; there lead on {len(leading := engine.leads_on(ENGINE_ROOM))} (aim 5): "
        + " ".join(file.rpartition("/")[2] for file in leading)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
