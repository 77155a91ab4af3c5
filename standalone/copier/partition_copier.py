"""One partition, for as long as this copier has it: copies what is due and deletes what is old, every interval.

    PartitionCopier.run                     terms, one after another, until it is cancelled
      Term (standalone.copier.term)         from a claim to the next owner's: a ledger, a staging
        look()                              resume · tidy · fetch, stage and copy, segment by segment · deletions

- A term begins with a ledger that has noted all records up to now. It ends when somebody else has claimed the partition
  (standalone.copier.ledger); should it still be ours after an interval, the next term claims it back.
- What cannot be done now (RemoteStorageError) is tried again, with back-off, within the term. A staging folder that
  fails (OSError) is given up, and what was in it fetched again.
"""

from pathlib import Path

import structlog
import trio

from metrics.copy_meters import Stall
from standalone.copier.backlog import Backlog
from standalone.copier.ledger import Ledger
from standalone.copier.progress import PartitionProgress
from standalone.copier.seams import TopicGoneError
from standalone.copier.term import Term
from standalone.copier.tools import RETRY_S_MAX, CopierTools
from storage.backoff import Backoff
from storage.errors import RemoteStorageError
from storage.model import TopicIdPartition

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PartitionCopier:
    """Args:
    generation: of the group, when the partition was assigned.
    folder: for its segments under way; nobody else's.
    """

    def __init__(self, partition: TopicIdPartition, generation: int, folder: Path, tools: CopierTools) -> None:
        self.partition = partition
        self.progress = PartitionProgress(
            topic=partition.topic, partition=partition.partition, is_copied=tools.is_copied(partition.topic)
        )
        self.backlog = Backlog()
        self.generation = generation
        self._folder = folder
        self._tools = tools
        self._gap = (0, 0)

    async def run(self) -> None:
        """For ever.

        Cancellation: a segment that is being copied is finished or given back first, what is staged is copied, and what
        only this owner knows of is deleted, for GIVE_BACK_S at most.
        """
        backoff = Backoff(max_s=RETRY_S_MAX)
        tools = self._tools
        try:
            while True:
                delay_s = tools.settings.interval_ms / 1000
                try:
                    await self._own(backoff)
                    tools.meter.on_superseded()
                    _log.warning("copy_superseded", partition=str(self.partition))
                    self._stop(Stall.ANOTHER_COPIER, "another copier, which has claimed the partition")
                except TopicGoneError as error:
                    _log.warning("topic_gone", **self._noted(error))
                    self._stop(Stall.TOPIC_GONE, "its topic, which upstream does not have any more")
                    delay_s = max(delay_s, RETRY_S_MAX)
                except (RemoteStorageError, OSError) as error:
                    _log.warning("copy_not_begun", **self._noted(error))
                    delay_s = backoff.next_delay_s()
                await trio.sleep(delay_s)
        finally:
            tools.meter.on_released((self.partition.topic, self.partition.partition))

    async def _own(self, backoff: Backoff) -> None:
        """One term. Returns when another owner has the partition."""
        ledger = Ledger(self.partition)
        async with self._tools.feed.followed(ledger):
            ledger.claim(self.generation)
            term = Term(self, ledger, self._folder, self._tools)
            try:
                while not ledger.is_superseded:
                    delay_s = self._tools.settings.interval_ms / 1000
                    try:
                        await term.look()
                        backoff.reset()
                        self.progress.last_error = None
                        self.progress.looks += 1
                    except OSError as error:
                        await term.give_staging_up()
                        _log.warning("staging_failed", **self._noted(error))
                        delay_s = backoff.next_delay_s()
                    except RemoteStorageError as error:
                        _log.warning("copy_delayed", **self._noted(error))
                        delay_s = backoff.next_delay_s()
                    if not ledger.is_superseded:
                        await trio.sleep(delay_s)
            finally:
                await term.end()

    def note_gap(self, start_offset: int, end_offset: int, hint: str) -> None:
        """Upstream had deleted these offsets (end exclusive) before they were copied. A later term may find the same
        gap, or more of it, if what was staged before it did not get into the tier: each offset is counted once."""
        counted_start, counted_end = self._gap
        for start, end in (
            (start_offset, min(end_offset, counted_start)),
            (max(start_offset, counted_end), end_offset),
        ):
            if start >= end:
                continue
            self._tools.meter.on_gap(end - start)
            _log.error("copy_gap", partition=str(self.partition), start_offset=start, end_offset=end, hint=hint)
        is_apart = end_offset < counted_start or counted_end < start_offset
        self._gap = (
            (start_offset, end_offset) if is_apart else (min(start_offset, counted_start), max(end_offset, counted_end))
        )

    def _stop(self, stall: Stall, waits_for: str) -> None:
        self.progress.stall, self.progress.waits_for = stall, waits_for
        self._tools.meter.on_stall((self.partition.topic, self.partition.partition), stall)

    def _noted(self, error: Exception) -> dict[str, str]:
        """The error for the log, and kept for `progress`."""
        self.progress.last_error = str(error)
        return {"partition": str(self.partition), "reason": str(error), "kind": type(error).__name__}
