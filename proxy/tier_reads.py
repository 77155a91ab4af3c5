"""The tier reads of one Fetch, side by side, under one deadline (design L3).

A read that is not there in time is answered empty; its fills go on, and the next request finds them. A read
that finds no segment is given back to the broker.
"""

from collections.abc import Sequence, Set

import structlog
import trio

from metrics.probes import TierProbe
from proxy.fetch_plan import TierPart, share_out
from proxy.tier import Tier
from storage.errors import RemoteStorageError
from storage.reader import OffsetNotInTierError, TierRecords

ReadResult = TierRecords | Exception
"""Records, or the fault. OffsetNotInTierError: give it back."""

_log = structlog.get_logger(__name__)


class TierReads:
    """Reads under way. `results` has a part's index once its read ended by itself."""

    def __init__(self, tier: Tier, probe: TierProbe, parts: Sequence[TierPart], deadline_s: float) -> None:
        self.results: dict[int, ReadResult] = {}
        self.deadline_s = deadline_s
        self.any_records = False
        self._tier = tier
        self._probe = probe
        self._parts = parts
        self._scope = trio.CancelScope(deadline=deadline_s)
        self._progress = trio.Event()
        self._ended = 0

    @property
    def pending(self) -> bool:
        return self._ended < len(self._parts)

    async def run(self) -> None:
        """All reads; returns when the last ended, by itself or at the deadline."""
        self._probe.on_delayed_fetch_parked()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for index, part in enumerate(self._parts):
                        nursery.start_soon(self._read, index, part)
            if self._scope.cancelled_caught:
                self._probe.on_remote_fetch_expired()
        finally:
            self._probe.on_delayed_fetch_completed()

    def stop(self) -> None:
        """Wait no longer for what has not ended."""
        self._scope.cancel()

    async def again_without(self, refused: Set[int], max_bytes: int) -> dict[int, ReadResult]:
        """Read anew for the parts to which the budgets of refused ones fall; results by the id of the part.

        A part that is refused each time must not keep those behind it without bytes for good.
        """
        had = [(part, part.budget_bytes, part.minimum_one_batch) for part in self._parts if id(part) not in refused]
        share_out([part for part, *_ in had], max_bytes)
        richer = [part for part, *before in had if before != [part.budget_bytes, part.minimum_one_batch]]
        if not richer:
            return {}
        reads = TierReads(self._tier, self._probe, richer, self.deadline_s)
        await reads.run()
        return {id(part): reads.results[index] for index, part in enumerate(richer) if index in reads.results}

    async def wait_until(self, time_s: float) -> None:
        """Return when all reads have ended, or at that time."""
        with trio.move_on_at(time_s):
            while self.pending:
                self._progress = trio.Event()
                await self._progress.wait()

    async def wait_any_until(self, time_s: float) -> None:
        """Return when one read has records or all have ended, or at that time."""
        with trio.move_on_at(time_s):
            while self.pending and not self.any_records:
                self._progress = trio.Event()
                await self._progress.wait()

    async def _read(self, index: int, part: TierPart) -> None:
        try:
            result = self.results[index] = await self._result(part)
            self.any_records |= isinstance(result, TierRecords) and result.size_bytes > 0
        finally:
            self._ended += 1
            self._progress.set()

    async def _result(self, part: TierPart) -> ReadResult:
        if part.budget_bytes == 0:
            return TierRecords([], 0, first_batch_too_large=True)
        try:
            return await self._tier.read(
                part.partition,
                part.asked.fetch_offset,
                part.frontier.leader_epoch,
                max_bytes=part.budget_bytes,
                minimum_one_batch=part.minimum_one_batch,
            )
        except OffsetNotInTierError as error:
            return error
        except RemoteStorageError as error:
            _log.warning(
                "tier_read_failed",
                partition=str(part.partition),
                offset=part.asked.fetch_offset,
                reason=str(error),
            )
            return error
        except Exception as error:
            _log.exception("tier_read_fault", partition=str(part.partition), offset=part.asked.fetch_offset)
            return error
