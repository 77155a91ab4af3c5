"""`tidegate copy FILE`: the copier alone, without the proxy (docs/standalone.md).

Runs until SIGTERM; with `--once` until everything that upstream had at the beginning is in the tier, segments under way
too, retention was looked at once, and what the tier has of topics that are gone is deleted or marked. What happens is
in the log, a line for each event; how far a first catch-up is stands in a bar on a terminal, elsewhere in a line of the
log every PROGRESS_INTERVAL_S.

SIGTERM lets go of all partitions: a segment that is being copied is finished or given back, what is staged is copied. A
second one stops at once; what that leaves the next owner cleans up.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
import trio

from protocol.client.errors import UpstreamError
from proxy.readiness import Readiness
from standalone.copier.membership import MembershipError
from standalone.copier.progress import PartitionProgress
from standalone.copying import NOT_OF_ONE_MIND, Copying
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import LOG_START_GROUP, CommittedLogStarts
from storage.errors import StorageConfigError
from storage.metadata.catalog import Catalog
from storage.sizes import shown_size
from tidegate import exit_codes
from tidegate.admin import OwnPages, serve_admin
from tidegate.catalog import start_catalog
from tidegate.commands.output import Progress as Bar
from tidegate.config.load import load
from tidegate.config.model import Config
from tidegate.copy_wiring import open_copying
from tidegate.life_cycle import SIGNALS, LifeCycle, SystemdNotify, exit_code_of
from tidegate.log_lines import lines_in_thread
from tidegate.logs import configure_logs
from tidegate.process import Process, open_process
from tidegate.read_tier import open_manager_of
from tidegate.reload import Reloader
from tidegate.standalone_wiring import open_guard
from tidegate.start_lines import say_end, say_start, tell_start
from tidegate.status.collect import TROUBLES_LOOK_S, empty_status
from tidegate.status.copying import CopyTroubles, copy_status
from tidegate.status.model import Query, Status
from tidegate.upkeep import UPSTREAM_INTERVAL_S, UPSTREAM_RETRY_S, watch_tier

PROGRESS_INTERVAL_S: Final = 10.0
BAR_INTERVAL_S: Final = 0.5
ONCE_POLL_S: Final = 0.1
ONCE_ASSIGNED_S_MAX: Final = 60.0
"""Longer than the session of a copier that died: until then the group may still think that it has the partitions."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """`once`: end when everything is copied."""

    once: bool


def run(config: Config, options: CopyOptions) -> int:
    """Copy; the exit code. Whether the configuration is one to copy by was asked (`copy_problems`)."""
    configure_logs(config.log.level, config.log.format)
    with lines_in_thread():
        say_start(config)
        exit_code = trio.run(_copy, config, options)
        say_end(exit_code)
    return exit_code


async def _copy(config: Config, options: CopyOptions) -> int:
    outcome = _Outcome()

    async def live(signals: AsyncIterator[int]) -> None:
        send, hear = trio.open_memory_channel[int](8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, signals, send)
            life = LifeCycle(hear, SystemdNotify(os.environ))
            await life.run(lambda: _application(config, options, send, outcome))
            nursery.cancel_scope.cancel()

    with trio.open_signal_receiver(*SIGNALS) as signals:
        return await exit_code_of(live(signals)) or outcome.exit_code


@dataclass(slots=True)
class _Outcome:
    exit_code: int = exit_codes.DONE


async def _pass_on(signals: AsyncIterator[int], send: trio.MemorySendChannel[int]) -> None:
    async for number in signals:
        await send.send(number)


class _NoClients:
    """Implements `tidegate.life_cycle.Draining`: there are none."""

    connections = 0

    def drain(self) -> None:
        """Nothing listens."""

    async def wait_empty(self) -> None:
        """Nobody is waited for."""
        await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class CopyApplication:
    """What runs; implements `tidegate.life_cycle.Running`."""

    readiness: Readiness
    reloader: Reloader
    copying: Copying
    admin: tuple[str, int]
    server: _NoClients = field(default_factory=_NoClients)
    closing: trio.CancelScope = field(default_factory=trio.CancelScope)
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 1.0

    @property
    def ready_line(self) -> str:
        """Return what is said at the first readiness."""
        return f"ready: copying, admin {self.admin[0]}:{self.admin[1]}"


@asynccontextmanager
async def _application(
    config: Config, options: CopyOptions, stop: trio.MemorySendChannel[int], outcome: _Outcome
) -> AsyncIterator[CopyApplication]:
    copy = replace(config.copy, is_enabled=True)
    config = replace(config, copy=replace(copy, lag_ms=0, lag_bytes=0) if options.once else copy)
    # `serve` beside us writes it.
    config = replace(config, catalog=replace(config.catalog, snapshot_is_written=False))
    async with open_process(config, ends=(StorageConfigError, MembershipError)) as process:
        readiness, tasks = process.readiness, process.tasks
        tell_start(config, readiness)
        manager = open_manager_of(process)
        catalog = Catalog(config.catalog.segments_max)
        started = await start_catalog(process, catalog)
        guard = open_guard(process, started, catalog, manager)
        log_starts = CommittedLogStarts(GroupOffsets(process.cluster, LOG_START_GROUP))
        copying = open_copying(process, started, catalog, manager, log_starts, guard, copies_all=options.once)
        status_page = _StatusPage(readiness, copying)
        pages = OwnPages(readiness, process.meters.registry, lambda: (), status_page.status, None)
        admin: tuple[str, int] = await tasks.nursery.start(serve_admin, config.admin, pages)
        read_again = partial(load, config.files[""], os.environ)
        reloader = Reloader(config, read_again, process.settings.follow, process.meters, readiness)
        limiter = trio.CapacityLimiter(config.tier.concurrent_gets_max)
        tasks.keep("configuration", reloader.run)
        tasks.keep("upstream", partial(_follow_brokers, process))
        tasks.keep(
            "tier", partial(watch_tier, manager, catalog.some_segments, limiter, readiness, process.reasons.tier)
        )
        tasks.keep("metadata guard", guard.run)
        tasks.keep("copying", copying.run)
        tasks.keep("status", status_page.run)
        tasks.keep("progress", partial(_tell_progress, copying))
        if options.once:
            tasks.keep("end", partial(_end_when_copied, copying, stop, outcome))
        application = CopyApplication(readiness, reloader, copying, admin)
        yield application
        with application.closing:
            await copying.aclose()


class _StatusPage:
    def __init__(self, readiness: Readiness, copying: Copying) -> None:
        self._readiness, self._copying = readiness, copying
        self._troubles = CopyTroubles(copying, readiness)

    async def status(self, query: Query) -> Status:
        """Return what there is to see of a copier alone."""
        await trio.lowlevel.checkpoint()
        self._troubles.tell()
        status = empty_status(self._readiness, query)
        status["copy"] = copy_status(self._copying)
        return status

    async def run(self) -> None:
        """Tell readiness of what copying runs into, for ever."""
        while True:
            self._troubles.tell()
            await trio.sleep(TROUBLES_LOOK_S)


async def _follow_brokers(process: Process) -> None:
    cluster, readiness = process.cluster, process.readiness
    while True:
        try:
            await cluster.refresh()
        except UpstreamError as error:
            readiness.upstream_unavailable(process.reasons.no_broker(error))
            await trio.sleep(UPSTREAM_RETRY_S)
            continue
        readiness.upstream_answered(len(cluster.brokers))
        await trio.sleep(UPSTREAM_INTERVAL_S)


# How far a first catch-up is.


async def _tell_progress(copying: Copying) -> None:
    """Until it is over."""
    is_terminal = sys.stderr.isatty()
    with Bar("copying", "records", is_wanted=is_terminal) as bar:
        started_s, told_s = trio.current_time(), trio.current_time()
        while True:
            await trio.sleep(BAR_INTERVAL_S)
            progress = copying.progress()
            if not progress or any(each.looks == 0 and not each.is_poisoned for each in progress):
                done, total = _records(progress)
                copied_bytes = sum(each.copied_bytes for each in progress)
                rate = copied_bytes / max(0.001, trio.current_time() - started_s)
                bar.told(done, total, f", {shown_size(rate)}/s")
                if trio.current_time() - told_s >= PROGRESS_INTERVAL_S and not is_terminal:
                    told_s = trio.current_time()
                    _log.info(
                        "copy_progress",
                        partitions=len(progress),
                        records=done,
                        of_records=total,
                        copied_bytes=copied_bytes,
                        bytes_per_s=round(rate),
                    )
                continue
            break
    _log.info(
        "copy_caught_up",
        partitions=len(progress),
        copied_bytes=sum(each.copied_bytes for each in progress),
        duration_s=round(trio.current_time() - started_s, 1),
    )


def _records(progress: Iterable[PartitionProgress]) -> tuple[int, int]:
    """(records in the tier, records that there are), as offsets tell it."""
    known = [each for each in progress if each.last_stable_offset >= 0]
    total = sum(each.last_stable_offset for each in known)
    return sum(min(each.copied_offset + 1, each.last_stable_offset) for each in known), total


# `--once`.


async def _end_when_copied(copying: Copying, stop: trio.MemorySendChannel[int], outcome: _Outcome) -> None:
    await copying.joined.wait()
    poisoned: dict[tuple[str, int], bool] = {}  # of those that are done
    had_all_s = trio.current_time()
    while True:
        wanted, mine = copying.partitions(), {(each.topic, each.partition) for each in copying.assigned()}
        for each in copying.progress():
            if each.looks or each.is_poisoned:
                poisoned[each.topic, each.partition] = each.is_poisoned
        done, left = poisoned.keys(), copying.left_to_group()
        if wanted <= mine | done and not left:
            had_all_s = trio.current_time()
        is_waiting = trio.current_time() < had_all_s + ONCE_ASSIGNED_S_MAX
        is_done = wanted <= done and not left if is_waiting else mine <= done
        if is_done and all(each.deletion or each.last_error for each in copying.gone()):
            break
        await trio.sleep(ONCE_POLL_S)
    if missing := len(wanted - done):
        _log.warning("copy_once_partial", partitions=missing, reason="other members of the group have these partitions")
    if left:
        _log.warning("copy_once_partial", topics=left, reason="nothing is deleted of these: " + NOT_OF_ONE_MIND)
    if missing or left or any(poisoned.values()) or copying.topics.refused:
        outcome.exit_code = exit_codes.FOUND_WRONG
    _log.info("copy_once_done", partitions=len(done), poisoned=sum(poisoned.values()))
    await stop.send(signal.SIGTERM)
