"""When does a segment go that is to go: at once, after the grace, or when an operator says so. Without input or output.

What is asked for goes (standalone.copier.retention): what retention takes at once, what DeleteRecords takes after the
grace, so that one by mistake can be held. What is inferred (another segment has the same offsets) goes after the grace.
Above a share of the partition in one look something is wrong more often than not: an asked deletion then waits the
grace too, whatever asks, and an inferred one waits for an operator's word.

An operator can hold a partition's deletions, and can approve what waits (`tidegate deletions`). After a truncation that
took more than the newest segment nothing goes until that is approved: which of two logs is the right one, nobody but an
operator knows.

What has to outlast a restart is a `Noted`, kept beside the committed log starts (standalone.serving.deletion_notes). A
wait is withdrawn by not being asked for any more: nothing has to be taken back.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from standalone.copier.config import CopyConfig
from standalone.copier.retention import Cause, Expired, Expiry
from storage.model import RemoteLogSegmentMetadata

WAVES: Final = 16
"""Deletions that were asked for within this part of the grace wait as one: a stream of DeleteRecords is a few waves."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Asked for at a time: what ends before these offsets, of the lineage and of what is dead."""

    since_ms: int
    live_before: int
    dead_before: int

    def covers(self, expired: Expired) -> bool:
        """Return whether the segment was asked for by then."""
        if expired.is_dead:
            return expired.segment.end_offset < self.dead_before
        return expired.behind_offset <= self.live_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What is kept of a partition's deletions.

    `waves`: oldest first. `approved_ms`: what waited then may go. `cut`: since when a truncation stops deletions, and
    the highest epoch that it took; `known_epoch`: truncations of such epochs, and lower ones, were approved.
    """

    waves: tuple[Wave, ...] = ()
    is_held: bool = False
    approved_ms: int = 0
    cut: tuple[int, int] | None = None
    known_epoch: int = -1

    def as_text(self) -> str:
        """For a commit's metadata: some hundred characters."""
        waves = [[wave.since_ms, wave.live_before, wave.dead_before] for wave in self.waves]
        kept = {"waves": waves, "held": self.is_held, "approved": self.approved_ms, "known_epoch": self.known_epoch}
        return json.dumps({**kept, "cut": self.cut}, separators=(",", ":"))


def noted_from(text: str) -> Noted:
    """Return what `as_text` wrote.

    Raises:
        ValueError: it did not.
    """
    try:
        kept = json.loads(text)
        waves = tuple(Wave(*map(int, wave)) for wave in kept["waves"])
        cut = None if kept["cut"] is None else (int(kept["cut"][0]), int(kept["cut"][1]))
        return Noted(
            waves=waves,
            is_held=bool(kept["held"]),
            approved_ms=int(kept["approved"]),
            cut=cut,
            known_epoch=int(kept["known_epoch"]),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a note of deletions: {text[:100]!r}") from error


def wait_ms(settings: CopyConfig) -> int:
    """Return how long a wave waits: with the time until it is noted that makes the grace at most."""
    return settings.delete_grace_ms - settings.delete_grace_ms // WAVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What of a partition waits. `until_ms` None: for an operator's word, or for what `why` says to pass.

    `is_alarming`: more than a share of the partition waits, or an operator is wanted.
    """

    segments: int
    size_bytes: int
    until_ms: int | None
    why: str
    is_alarming: bool


@dataclass(slots=True, kw_only=True)
class Plan:
    """`goes`: now, in this order. `noted`: to be kept before anything goes, if it is another than before."""

    goes: list[Expired] = field(default_factory=list)
    waiting: Waiting | None = None
    noted: Noted


Spares = Sequence[tuple[RemoteLogSegmentMetadata, int]]
"""Segments of which another one has all offsets, each with the time since when."""


def plan(
    expiry: Expiry, spares: Spares, noted: Noted, settings: CopyConfig, *, stopped: str | None, now_ms: int
) -> Plan:
    """Return what goes now, and what waits.

    Args:
        stopped: why nothing may be deleted by anybody now; a sentence.
    """
    kept = noted
    noted = _noting_cut(noted, expiry.dead, now_ms)
    noted, asked, is_alarming = _waves(expiry, noted, settings, now_ms)
    waits = [*asked, *_spares(spares, noted, settings, expiry.size_bytes)]
    if stopped is not None:
        return Plan(noted=kept, waiting=_waiting(waits, stopped, is_alarming=is_alarming, is_open=True))
    if why := why_nothing_goes(noted):
        return Plan(noted=noted, waiting=_waiting(waits, why, is_alarming=noted.cut is not None, is_open=True))
    due = [each for each, until_ms in waits if until_ms is not None and until_ms <= now_ms]
    waits = [(each, until_ms) for each, until_ms in waits if until_ms is None or until_ms > now_ms]
    is_for_word = any(until_ms is None for _, until_ms in waits)
    why = "an operator's word" if is_for_word else "copy.delete.grace.ms"
    waiting = _waiting(waits, why, is_alarming=is_alarming or is_for_word)
    return Plan(goes=due, noted=noted, waiting=waiting)


def _noting_cut(noted: Noted, dead: Iterable[RemoteLogSegmentMetadata], now_ms: int) -> Noted:
    """A truncation that took more than one segment, and what an operator has said of it."""
    if noted.cut is not None and noted.approved_ms >= noted.cut[0]:
        noted = replace(noted, cut=None, known_epoch=max(noted.known_epoch, noted.cut[1]))
    epochs = [max(segment.segment_leader_epochs) for segment in dead]
    if noted.cut is None and sum(epoch > noted.known_epoch for epoch in epochs) > 1:
        noted = replace(noted, cut=(now_ms, max(epochs)))
    return noted


def why_nothing_goes(noted: Noted) -> str | None:
    """Why all of a partition waits for an operator, if it does."""
    if noted.is_held:
        return "an operator holds it"
    if noted.cut is not None:
        return "a truncation of upstream's log took more than the newest segment: an operator's word"
    return None


def _waves(
    expiry: Expiry, noted: Noted, settings: CopyConfig, now_ms: int
) -> tuple[Noted, list[tuple[Expired, int]], bool]:
    """The waves from now on; each that was asked for, and until when it waits; whether that is more than a share."""
    waves = _still_asked(noted.waves, expiry.expired)
    covering = [(each, next((wave for wave in waves if wave.covers(each)), None)) for each in expiry.expired]
    found = [(each, _until_ms(wave, noted, settings, now_ms)) for each, wave in covering if wave is not None]
    fresh = [each for each, wave in covering if wave is None]
    is_excess = _is_excess(fresh, expiry.size_bytes, settings)
    # What is on the lineage goes in order: behind what waits, all waits.
    waits_before = any(until_ms > now_ms and not each.is_dead for each, until_ms in found)
    for each in fresh:
        waits = is_excess or each.cause is Cause.LOG_START or (waits_before and not each.is_dead)
        found.append((each, now_ms + settings.delete_grace_ms if waits else now_ms))
    new = [each for each, until_ms in found[-len(fresh) :] if until_ms > now_ms] if fresh else []
    if new and (is_excess or not waves or now_ms - waves[-1].since_ms >= settings.delete_grace_ms // WAVES):
        waves = (*waves, _extent(now_ms, new))
    waiting = [each for each, until_ms in found if until_ms > now_ms]
    return replace(noted, waves=waves), found, _is_excess(waiting, expiry.size_bytes, settings)


def _still_asked(waves: Iterable[Wave], expired: Sequence[Expired]) -> tuple[Wave, ...]:
    """The waves without what was withdrawn: should it be asked for once more, its wait begins once more."""
    kept = []
    for wave in waves:
        covered = [each for each in expired if wave.covers(each)]
        if covered:
            kept.append(_extent(wave.since_ms, covered))
    return tuple(kept)


def _extent(since_ms: int, going: Sequence[Expired]) -> Wave:
    live = max((each.behind_offset for each in going), default=-1)
    dead = max((each.segment.end_offset + 1 for each in going if each.is_dead), default=-1)
    return Wave(since_ms, live, dead)


def _until_ms(wave: Wave, noted: Noted, settings: CopyConfig, now_ms: int) -> int:
    """A wave of which a clock has said that it begins in the future begins now."""
    if wave.since_ms <= noted.approved_ms:
        return now_ms
    return min(wave.since_ms, now_ms) + wait_ms(settings)


def _spares(
    superseded: Spares, noted: Noted, settings: CopyConfig, size_bytes: int
) -> list[tuple[Expired, int | None]]:
    """Each spare one, and until when it waits; None: for an operator's word."""
    spares = [(Expired(segment, Cause.SUPERSEDED, -1), since_ms) for segment, since_ms in superseded]
    is_excess = settings.delete_grace_ms > 0 and _is_excess([each for each, _ in spares], size_bytes, settings)
    found: list[tuple[Expired, int | None]] = []
    for each, since_ms in spares:
        if since_ms <= noted.approved_ms:
            found.append((each, since_ms))
        else:
            found.append((each, None if is_excess else since_ms + settings.delete_grace_ms))
    return found


def _is_excess(going: Sequence[Expired], size_bytes: int, settings: CopyConfig) -> bool:
    """One segment alone is what retention takes as a rule, however small the partition is."""
    gone_bytes = sum(each.segment.segment_size_bytes for each in going)
    return len(going) > 1 and gone_bytes > settings.delete_share_max * size_bytes


def _waiting(
    waits: Sequence[tuple[Expired, int | None]], why: str, *, is_alarming: bool, is_open: bool = False
) -> Waiting | None:
    if not waits:
        return None
    ends = [until_ms for _, until_ms in waits if until_ms is not None]
    return Waiting(
        segments=len(waits),
        size_bytes=sum(each.segment.segment_size_bytes for each, _ in waits),
        until_ms=None if is_open or len(ends) < len(waits) else max(ends),
        why=why,
        is_alarming=is_alarming,
    )
