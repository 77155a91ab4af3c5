"""Readiness: four named conditions, each with a reason, and what they amount to. Used from the loop only.

It does nothing by itself: what watches catalog, brokers and tier tells it, and it tells the metrics and the log. All
troubles that last are here (`metrics.troubles`), also those that do not degrade.

Rules:
1. Ready = the catalog is live, at least one upstream broker has answered, the tier has answered (an empty one too),
   no background task fails again and again (proxy.tasks), and nobody has asked to drain. A tier that fails before it
   ever answered is not ready, so that a rollout with a wrong bucket or without credentials does not pass; one that
   fails later degrades: what brokers hold is still served.
   Upstream is met only while this process listens for at least half of the known brokers. Brokers that do not answer
   its own questions degrade, and none of them does so before the first readiness: then it is not ready. Later a
   balancer must not drop clients whom other brokers, or the same ones by their own sign-in, may well answer.
2. Degraded = ready, but something is served worse than it should be: a condition is met with a complaint, or a
   metadata partition or a broker's listener has a problem. It never takes a proxy out of rotation.
3. A problem of one metadata partition is named and degrades: its look-ups fail closed, the others go on
   (docs/kafka-tier.md#readiness). One that concerns the topic as a whole (partitions added, no topic id) is
   `catalog_unavailable`: not ready.
4. The first readiness is latched for `wait_ready`; later changes show in `ready` alone.
"""

import enum
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog
import trio

from metrics.process_meters import HealthMeter
from metrics.troubles import DEGRADING, TROUBLES, UNLOGGED, Severity, TroubleId, TroubleView, view


class ConditionName(enum.StrEnum):
    """What readiness depends on."""

    CATALOG = "catalog"
    UPSTREAM = "upstream"
    TIER = "tier"
    TASKS = "tasks"


class ConditionState(enum.StrEnum):
    """How a condition stands."""

    PENDING = "pending"
    MET = "met"
    DEGRADED = "degraded"


class Stage(enum.StrEnum):
    """How far the process is in its life."""

    STARTING = "starting"
    """It has never been ready."""
    SERVING = "serving"
    """It has been ready, whether it is now or not."""
    DRAINING = "draining"
    """It was asked to stop: not ready, though its listeners may still accept."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; the reason is a sentence for an operator. `trouble`: what it is unless it is met."""

    state: ConditionState
    reason: str
    trouble: TroubleId | None = None


Reason = tuple[int | None, str]
"""Which metadata partition or broker it is, if that can be said, and a sentence."""


_NOBODY: Mapping[int, str] = {}

EXAMPLES_MAX = 3

REASONS_MAX = 100
"""A trouble has at most so many; those with a number are kept all."""

_NUMBERED = {
    TroubleId.METADATA_PARTITION_NOT_READ: "metadata partition",
    TroubleId.BROKER_WITHHELD: "clients will not hear of broker",
    TroubleId.CATALOG_BEHIND: "metadata partition",
}
"""What the numbers of these stand for."""

_TASKS_RUN = Condition(ConditionState.MET, "all background tasks run")


_log = structlog.get_logger(__name__)


class Readiness:
    """The process's readiness. All conditions but `tasks` begin pending.

    Args:
        meter: None in tests of no metric.
        logs: whether the log gets a line when a trouble begins, and one when it ends: of workers the supervisor's does.
        complete: what each reason becomes.
    """

    def __init__(
        self, meter: HealthMeter | None = None, *, logs: bool = True, complete: Callable[[str], str] = str
    ) -> None:
        reasons = {
            ConditionName.CATALOG: "the catalog is being loaded",
            ConditionName.UPSTREAM: "no upstream broker has answered yet",
            ConditionName.TIER: "the tier has not answered yet",
        }
        self._conditions = {
            name: Condition(ConditionState.PENDING, reason, TroubleId.STARTING) for name, reason in reasons.items()
        }
        self._conditions[ConditionName.TASKS] = _TASKS_RUN
        self._told: dict[TroubleId, list[Reason]] = {}
        self._since_s: dict[TroubleId, float] = {}
        """When each trouble that lasts began."""
        self._draining = False
        self._catalog_was_live = trio.Event()
        self._tier_has_answered = False
        self._first_ready = trio.Event()
        self._meter = meter
        self._logs = logs
        self._complete = complete
        self._tell()

    @property
    def conditions(self) -> Mapping[ConditionName, Condition]:
        """Every condition as it stands."""
        return dict(self._conditions)

    @property
    def told(self) -> Mapping[str, Sequence[Reason]]:
        """Return the troubles beside the conditions, for `take_told` of another process."""
        return {trouble.value: reasons for trouble, reasons in self._told.items() if reasons}

    def by_number(self, trouble: TroubleId) -> Mapping[int, str]:
        """Return what has it, and why."""
        return {number: reason for number, reason in self._told.get(trouble, ()) if number is not None}

    @property
    def troubles(self) -> list[TroubleView]:
        """Return all there are, the worst first."""
        found = [view(each, reason, keeps_unready=is_pending) for each, reason, is_pending in self._lasting()]
        return sorted(found, key=lambda each: (each["about"] != "not ready", each["severity"] != Severity.CRITICAL))

    @property
    def stage(self) -> Stage:
        """Starting, serving or draining."""
        if self._draining:
            return Stage.DRAINING
        return Stage.SERVING if self._first_ready.is_set() else Stage.STARTING

    @property
    def ready(self) -> bool:
        """Return whether clients should be sent here."""
        return not self._draining and all(
            condition.state is not ConditionState.PENDING for condition in self._conditions.values()
        )

    @property
    def degraded(self) -> bool:
        """Return whether it is ready with complaints."""
        return self.ready and bool(self.complaints)

    @property
    def reasons(self) -> list[str]:
        """Why it is not ready; empty when it is."""
        reasons = ["draining"] if self._draining else []
        return reasons + self._reasons_of(ConditionState.PENDING)

    @property
    def complaints(self) -> list[str]:
        """Return what is served worse than it should be, whether ready or not."""
        told = [reason for trouble in TroubleId if trouble in DEGRADING for reason in self._reasons(trouble)]
        return self._reasons_of(ConditionState.DEGRADED) + told

    @property
    def catalog_was_live(self) -> bool:
        """Return whether the catalog has ever caught up."""
        return self._catalog_was_live.is_set()

    async def wait_catalog(self) -> None:
        """Wait until the catalog has caught up for the first time."""
        await self._catalog_was_live.wait()

    async def wait_ready(self) -> None:
        """Wait for the first readiness; returns at once when it has been."""
        await self._first_ready.wait()

    def catalog_live(self, segments: int) -> None:
        """The catalog has caught up."""
        self._set(ConditionName.CATALOG, ConditionState.MET, f"{segments} segments")

    def catalog_degraded(self, reason: str, trouble: TroubleId = TroubleId.CATALOG_FULL) -> None:
        """The catalog is live but incomplete, as when it is full."""
        self._set(ConditionName.CATALOG, ConditionState.DEGRADED, reason, trouble)

    def catalog_unavailable(self, reason: str, trouble: TroubleId = TroubleId.CATALOG_NOT_READ) -> None:
        """The catalog is behind, or the metadata topic as a whole cannot be trusted."""
        self._set(ConditionName.CATALOG, ConditionState.PENDING, reason, trouble)

    def tell(self, trouble: TroubleId, reasons: Iterable[str] | Mapping[int, str] = ()) -> None:
        """Note why this trouble lasts now, a sentence each; none: it is over."""
        told: list[Reason]
        if isinstance(reasons, Mapping):
            told = [(number, self._complete(reason)) for number, reason in sorted(reasons.items())]
        else:
            told = [(None, self._complete(reason)) for reason in islice(reasons, REASONS_MAX)]
        self._take({trouble: told})

    def take_told(self, processes: Sequence[Mapping[str, Sequence[Sequence[Any]]]]) -> None:
        """Note what several processes tell of all troubles (`told`), as one."""
        together: dict[TroubleId, list[Reason]] = {}
        for trouble in TroubleId:
            reasons = [(number, reason) for told in processes for number, reason in told.get(trouble, ())]
            together[trouble] = [*dict.fromkeys(reasons)]
        self._take(together)

    def upstream_answered(
        self, brokers: int, withheld: Mapping[int, str] = _NOBODY, silent: Mapping[int, str] = _NOBODY
    ) -> None:
        """A broker has answered; `brokers` are known.

        Args:
            withheld: why some of them cannot be listened for.
            silent: why some of them do not answer.
        """
        listened = f"{brokers - len(withheld)} of {brokers} brokers" if withheld else f"{brokers} brokers"
        if 2 * len(withheld) > brokers:
            reason = f"this process listens for {listened} only: {_examples(withheld)}"
            self._set(ConditionName.UPSTREAM, ConditionState.PENDING, reason, TroubleId.BROKER_WITHHELD)
        elif silent:
            reason = f"{len(silent)} of {brokers} brokers do not answer our own questions: {_examples(silent)}"
            self._set(ConditionName.UPSTREAM, ConditionState.DEGRADED, reason, TroubleId.BROKER_SILENT)
        else:
            self._set(ConditionName.UPSTREAM, ConditionState.MET, listened)

    def upstream_unavailable(self, reason: str) -> None:
        """No broker answers."""
        state = ConditionState.DEGRADED if self._first_ready.is_set() else ConditionState.PENDING
        self._set(ConditionName.UPSTREAM, state, reason, TroubleId.UPSTREAM_UNAVAILABLE)

    def tier_answered(self) -> None:
        """The object store has answered."""
        self._tier_has_answered = True
        self._set(ConditionName.TIER, ConditionState.MET, "the tier answers")

    def tier_failed(self, reason: str) -> None:
        """The object store does not answer, or not as it should."""
        state = ConditionState.DEGRADED if self._tier_has_answered else ConditionState.PENDING
        self._set(ConditionName.TIER, state, reason, TroubleId.TIER_UNAVAILABLE)

    def tasks_fail(self, reasons: Sequence[str]) -> None:
        """Which background tasks fail again and again, a sentence each; none: they run."""
        failing = Condition(ConditionState.PENDING, "; ".join(reasons), TroubleId.TASK_FAILS) if reasons else _TASKS_RUN
        self.take(ConditionName.TASKS, failing)

    def take(self, name: ConditionName, condition: Condition) -> None:
        """A condition as somebody else has found it: workers, by a supervisor."""
        self._set(name, condition.state, condition.reason, condition.trouble)

    def drain(self) -> None:
        """Shutdown has begun: not ready from here on."""
        self._draining = True
        self._tell()

    def _set(self, name: ConditionName, state: ConditionState, reason: str, trouble: TroubleId | None = None) -> None:
        self._conditions[name] = Condition(state, self._complete(reason), trouble)
        self._tell()
        if self._conditions[ConditionName.CATALOG].state is not ConditionState.PENDING:
            self._catalog_was_live.set()
        if self.ready:
            self._first_ready.set()

    def _take(self, told: Mapping[TroubleId, list[Reason]]) -> None:
        if any(self._told.get(trouble, []) != reasons for trouble, reasons in told.items()):
            self._told |= told
            self._tell()

    def _lasting(self) -> Iterator[tuple[TroubleId, str, bool]]:
        """Yield troubles with a reason each, and whether they keep it from being ready."""
        if self._draining:
            yield TroubleId.DRAINING, "draining", True
        for condition in self._conditions.values():
            if condition.trouble is not None:
                yield condition.trouble, condition.reason, condition.state is ConditionState.PENDING
        for trouble in TroubleId:
            for reason in self._reasons(trouble):
                yield trouble, reason, False

    def _reasons(self, trouble: TroubleId) -> list[str]:
        """Return the reasons of one trouble."""
        told = self._told.get(trouble, ())
        return [reason if number is None else f"{_NUMBERED[trouble]} {number}: {reason}" for number, reason in told]

    def _tell(self) -> None:
        lasting: dict[TroubleId, str] = {}
        for trouble, reason, _ in self._lasting():
            lasting.setdefault(trouble, reason)
        if self._logs:
            self._log_changes(lasting)
        if self._meter is None:
            return
        self._meter.on_state(self.ready, self.degraded)
        self._meter.on_partition_problems(len(self.by_number(TroubleId.METADATA_PARTITION_NOT_READ)))
        self._meter.on_troubles(lasting)
        for name, condition in self._conditions.items():
            self._meter.on_condition(name.value, condition.state.value)

    def _log_changes(self, lasting: Mapping[TroubleId, str]) -> None:
        for trouble in [each for each in lasting if each not in self._since_s and each not in UNLOGGED]:
            self._since_s[trouble] = time.monotonic()
            known = TROUBLES[trouble]
            log = _log.error if known.severity is Severity.CRITICAL else _log.warning
            reason = known.sentence(lasting[trouble])
            log("trouble_begun", id=trouble.value, severity=known.severity.value, reason=reason, runbook=known.runbook)
        for trouble in [each for each in self._since_s if each not in lasting]:
            lasted_s = round(time.monotonic() - self._since_s.pop(trouble))
            _log.info("trouble_ended", id=trouble.value, seconds=lasted_s)

    def _reasons_of(self, state: ConditionState) -> list[str]:
        return [f"{name}: {at.reason}" for name, at in self._conditions.items() if at.state is state]


def _examples(reasons: Mapping[int, str]) -> str:
    """Why brokers are not as they should be, some by node id."""
    named = [f"broker {node_id}: {reasons[node_id]}" for node_id in sorted(reasons)[:EXAMPLES_MAX]]
    return "; ".join(named if len(reasons) <= EXAMPLES_MAX else [*named, "…"])
