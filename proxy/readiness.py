"""Readiness: four named conditions, each with a reason, and what they amount to. Used from the loop only.

It does nothing by itself: what watches catalog, brokers and tier tells it, and it tells the metrics.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from metrics.process_meters import HealthMeter


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
    """One condition; the reason is a sentence for an operator."""

    state: ConditionState
    reason: str


_NOBODY: Mapping[int, str] = {}

EXAMPLES_MAX = 3

_TASKS_RUN = Condition(ConditionState.MET, "all background tasks run")


class Readiness:
    """The process's readiness. All conditions but `tasks` begin pending. `meter`: None in tests of no metric."""

    def __init__(self, meter: HealthMeter | None = None) -> None:
        self._conditions = {
            ConditionName.CATALOG: Condition(ConditionState.PENDING, "the catalog is being loaded"),
            ConditionName.UPSTREAM: Condition(ConditionState.PENDING, "no upstream broker has answered yet"),
            ConditionName.TIER: Condition(ConditionState.PENDING, "the tier has not answered yet"),
            ConditionName.TASKS: _TASKS_RUN,
        }
        self._partition_problems: dict[int, str] = {}
        self._left_to_brokers: list[str] = []
        self._metadata_topic_trouble: str | None = None
        self._hanging: list[str] = []
        self._client_troubles: list[str] = []
        self._handshakes: list[str] = []
        self._identity_trouble: str | None = None
        self._log_starts_unsure: list[str] = []
        self._broker_problems: dict[int, str] = {}
        self._draining = False
        self._catalog_was_live = trio.Event()
        self._tier_has_answered = False
        self._first_ready = trio.Event()
        self._meter = meter
        self._tell()

    @property
    def conditions(self) -> Mapping[ConditionName, Condition]:
        """Every condition as it stands."""
        return dict(self._conditions)

    @property
    def partition_problems(self) -> Mapping[int, str]:
        """Metadata partition to what is wrong with it."""
        return dict(sorted(self._partition_problems.items()))

    @property
    def broker_problems(self) -> Mapping[int, str]:
        """Why a broker cannot be listened for, by node id."""
        return dict(sorted(self._broker_problems.items()))

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
        problems = [f"metadata partition {number}: {reason}" for number, reason in self.partition_problems.items()]
        problems += [f"broker {node_id}: {reason}" for node_id, reason in self.broker_problems.items()]
        if self._metadata_topic_trouble is not None:
            problems.append(f"nothing is deleted from the tier: {self._metadata_topic_trouble}")
        if self._identity_trouble is not None:
            problems.append(self._identity_trouble)
        problems += self._client_troubles + self._handshakes
        unsure = self._hanging + self._log_starts_unsure
        return self._reasons_of(ConditionState.DEGRADED) + problems + self._left_to_brokers + unsure

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

    def catalog_degraded(self, reason: str) -> None:
        """The catalog is live but incomplete, as when it is full."""
        self._set(ConditionName.CATALOG, ConditionState.DEGRADED, reason)

    def catalog_unavailable(self, reason: str) -> None:
        """The catalog is behind, or the metadata topic as a whole cannot be trusted."""
        self._set(ConditionName.CATALOG, ConditionState.PENDING, reason)

    def metadata_topic_unsafe(self, reason: str | None) -> None:
        """The metadata topic of a tier of our own is not as it must be; None: it is."""
        self._metadata_topic_trouble = reason
        self._tell()

    def clients_will_fail(self, reasons: Sequence[str]) -> None:
        """Note what clients will not like of the certificate and the hosts that they meet, a sentence each."""
        self._client_troubles = [*reasons]
        self._tell()

    @property
    def handshakes_failing(self) -> Sequence[str]:
        """Return what `handshakes_fail` was told last."""
        return [*self._handshakes]

    def handshakes_fail(self, reasons: Sequence[str]) -> None:
        """Why most clients' TLS handshakes fail at the moment, a sentence each; none: they do not."""
        self._handshakes = [*reasons]
        self._tell()

    def identity_unclear(self, reason: str | None) -> None:
        """It is not said with whose identity the metadata topic is read; None: it is."""
        self._identity_trouble = reason
        self._tell()

    def partition_problem(self, metadata_partition: int, reason: str) -> None:
        """One metadata partition is not being read; a later reason replaces the earlier."""
        self._partition_problems[metadata_partition] = reason
        self._tell()

    def partition_recovered(self, metadata_partition: int) -> None:
        """The metadata partition is read again."""
        self._partition_problems.pop(metadata_partition, None)
        self._tell()

    @property
    def brokers_read(self) -> Sequence[str]:
        """Return what `left_to_brokers` was told last."""
        return [*self._left_to_brokers]

    def left_to_brokers(self, reasons: Sequence[str]) -> None:
        """Why tier reads are left to the brokers at the moment, a sentence each; none: they are not."""
        self._left_to_brokers = [*reasons]
        self._tell()

    def transactions_hang(self, reasons: Sequence[str]) -> None:
        """Note what keeps READ_COMMITTED readers waiting in standalone mode, a sentence each; none: nothing does."""
        self._hanging = [*reasons]
        self._tell()

    def log_starts_unsure(self, reasons: Sequence[str]) -> None:
        """Why log starts of a tier of our own may be older ones, a sentence each; none: they are not."""
        self._log_starts_unsure = [*reasons]
        self._tell()

    def broker_withheld(self, node_id: int, reason: str) -> None:
        """A broker cannot be listened for, so clients do not hear of it; a later reason replaces the earlier."""
        self._broker_problems[node_id] = reason
        self._tell()

    def broker_recovered(self, node_id: int) -> None:
        """It is listened for, or has left."""
        self._broker_problems.pop(node_id, None)
        self._tell()

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
            state, reason = ConditionState.PENDING, f"this process listens for {listened} only: {_examples(withheld)}"
        elif silent:
            state = ConditionState.DEGRADED
            reason = f"{len(silent)} of {brokers} brokers do not answer our own questions: {_examples(silent)}"
        else:
            state, reason = ConditionState.MET, listened
        self._set(ConditionName.UPSTREAM, state, reason)

    def upstream_unavailable(self, reason: str) -> None:
        """No broker answers."""
        was_ready = self._first_ready.is_set()
        self._set(ConditionName.UPSTREAM, ConditionState.DEGRADED if was_ready else ConditionState.PENDING, reason)

    def tier_answered(self) -> None:
        """The object store has answered."""
        self._tier_has_answered = True
        self._set(ConditionName.TIER, ConditionState.MET, "the tier answers")

    def tier_failed(self, reason: str) -> None:
        """The object store does not answer, or not as it should."""
        state = ConditionState.DEGRADED if self._tier_has_answered else ConditionState.PENDING
        self._set(ConditionName.TIER, state, reason)

    def tasks_fail(self, reasons: Sequence[str]) -> None:
        """Which background tasks fail again and again, a sentence each; none: they run."""
        failing = Condition(ConditionState.PENDING, "; ".join(reasons)) if reasons else _TASKS_RUN
        self.take(ConditionName.TASKS, failing)

    def take(self, name: ConditionName, condition: Condition) -> None:
        """A condition as somebody else has found it: workers, by a supervisor."""
        self._set(name, condition.state, condition.reason)

    def drain(self) -> None:
        """Shutdown has begun: not ready from here on."""
        self._draining = True
        self._tell()

    def _set(self, name: ConditionName, state: ConditionState, reason: str) -> None:
        self._conditions[name] = Condition(state, reason)
        self._tell()
        if self._conditions[ConditionName.CATALOG].state is not ConditionState.PENDING:
            self._catalog_was_live.set()
        if self.ready:
            self._first_ready.set()

    def _tell(self) -> None:
        if self._meter is None:
            return
        self._meter.on_state(self.ready, self.degraded)
        self._meter.on_partition_problems(len(self._partition_problems))
        for name, condition in self._conditions.items():
            self._meter.on_condition(name.value, condition.state.value)

    def _reasons_of(self, state: ConditionState) -> list[str]:
        return [f"{name}: {at.reason}" for name, at in self._conditions.items() if at.state is state]


def _examples(reasons: Mapping[int, str]) -> str:
    """Why brokers are not as they should be, some by node id."""
    named = [f"broker {node_id}: {reasons[node_id]}" for node_id in sorted(reasons)[:EXAMPLES_MAX]]
    return "; ".join(named if len(reasons) <= EXAMPLES_MAX else [*named, "…"])
