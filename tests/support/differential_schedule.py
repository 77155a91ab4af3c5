"""What happens to the differential test's generated topics before questions are asked: a function of a seed.

A schedule is topics, phases of steps with a restart of the broker between them (each raises the leader epochs), and
last cuts at the log starts once the tier has all that it will get. Everything is drawn by hypothesis, so the same seed
gives the same schedule as long as hypothesis does not change how it draws; places in a log (a segment's border, the
middle of a batch) are named here and found when the steps run.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.kafka import TIERED, small_segments

PREFIX = "generated"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HUGE_CONFIGS: Final[Mapping[str, str]] = {"segment.bytes": str(4 * 1024 * 1024), "max.message.bytes": "3000000"}
"""For batches larger than any limit of a partition that questions ask with."""

HUGE_VALUE_BYTES = (1_100_000, 2_500_000)
DRAWS = 8
"""Hypothesis begins with the smallest example; the last of a few is a usual one."""

Timestamps = Literal["rising", "shuffled", "falling", "equal"]
Place = Literal["offset", "segment", "behind_segment", "inside_segment", "inside_batch", "local"]
_CUT_PLACES: Final[Sequence[Place]] = ("segment", "behind_segment", "inside_segment", "inside_batch", "local")


@dataclass(frozen=True, slots=True)
class GeneratedTopic:
    """`producers` transactional ones write to it besides the plain steps."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    producers: int
    is_huge: bool


@dataclass(frozen=True, slots=True)
class Produce:
    """Batches of `batch_records`, by a producer of their own."""

    topic: str
    partition: int
    batches: int
    batch_records: int
    value_bytes: tuple[int, int]
    codec: str
    timestamps: Timestamps
    is_idempotent: bool


@dataclass(frozen=True, slots=True)
class Send:
    """One batch within the producer's transaction, which begins with it if none is open."""

    topic: str
    producer: int
    partition: int
    records: int


@dataclass(frozen=True, slots=True)
class End:
    """Ends the producer's transaction, if one is open."""

    topic: str
    producer: int
    commits: bool


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """Raises a log start to a place; `share` of the log says which border, batch or offset of its kind."""

    topic: str
    partition: int
    place: Place
    share: float


@dataclass(frozen=True, slots=True)
class DropSegments:
    """Retention by size, set so that each partition's first segments go, `count` of partition 0."""

    topic: str
    count: int


Step = Produce | Send | End | DeleteRecords
Cut = DeleteRecords | DropSegments


@dataclass(frozen=True, slots=True)
class Schedule:
    """`phases` have a restart of the broker between each other; `cuts` come when all has settled."""

    topics: tuple[GeneratedTopic, ...] = ()
    phases: tuple[tuple[Step, ...], ...] = ((), ())
    cuts: tuple[Cut, ...] = field(default=())

    @property
    def restarts(self) -> int:
        return len(self.phases) - 1


def draw_schedule(seed_number: int, topics: int, restarts: int) -> Schedule:
    """The schedule of a seed, with so many generated topics and restarts."""
    # Each topic is drawn for itself: hypothesis gives up on examples as large as all together.
    histories = [_drawn(f"{seed_number}:{number}", _histories(number, restarts)) for number in range(topics)]
    chance = random.Random(seed_number)
    return Schedule(
        tuple(history.topic for history in histories),
        tuple(_interleaved([each.phases[at] for each in histories], chance) for at in range(restarts + 1)),
        tuple(cut for history in histories for cut in history.cuts),
    )


@dataclass(frozen=True, slots=True)
class _History:
    """One topic's part of a schedule."""

    topic: GeneratedTopic
    phases: Sequence[Sequence[Step]]
    cuts: Sequence[Cut]


def _drawn(seed_text: str, histories: st.SearchStrategy[_History]) -> _History:
    drawn: list[_History] = []

    @seed(seed_text)
    @settings(
        max_examples=DRAWS,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(histories)
    def draw(history: _History) -> None:
        drawn.append(history)

    draw()
    return drawn[-1]


@st.composite
def _histories(draw: st.DrawFn, number: int, restarts: int) -> _History:
    # The first kinds are there in every schedule: transactions, and batches larger than every limit.
    topic = draw(_topics(f"{PREFIX}-{number}", has_producers=number % 2 == 0, is_huge=number % 4 == 1))
    phases = [draw(_steps(topic, is_last=at == restarts)) for at in range(restarts + 1)]
    return _History(topic, phases, draw(_cuts(topic)))


@st.composite
def _topics(draw: st.DrawFn, name: str, *, has_producers: bool, is_huge: bool) -> GeneratedTopic:
    configs = {
        **TIERED,
        **(HUGE_CONFIGS if is_huge else small_segments(draw(st.integers(6, 16)))),
        "message.timestamp.type": draw(st.sampled_from(("CreateTime", "CreateTime", "LogAppendTime"))),
        "local.retention.bytes": draw(st.sampled_from(("1", "1", "30000", "200000"))),
    }
    return GeneratedTopic(
        name, draw(st.integers(1, 3)), configs, draw(st.integers(2, 3)) if has_producers else 0, is_huge
    )


@st.composite
def _steps(draw: st.DrawFn, topic: GeneratedTopic, *, is_last: bool) -> list[Step]:
    """In the last phase some transactions stay open."""
    partitions = st.integers(0, topic.partitions - 1)
    # The first two segments of partition 0 fill in any case, or there would be nothing in the tier.
    steps: list[Step] = [draw(_produces(topic, st.just(0)))]
    steps += draw(st.lists(_produces(topic, partitions), min_size=2, max_size=5))
    if topic.producers:
        producers = st.integers(0, topic.producers - 1)
        one = st.one_of(
            st.builds(Send, st.just(topic.name), producers, partitions, st.integers(1, 12)),
            st.builds(Send, st.just(topic.name), producers, partitions, st.integers(1, 12)),
            st.builds(End, st.just(topic.name), producers, st.booleans()),
        )
        transactional: list[Step] = list(draw(st.lists(one, min_size=24, max_size=60)))
        steps = list(_interleaved([steps, transactional], random.Random(draw(st.integers(0, 2**32)))))
        if is_last:
            steps += [
                End(topic.name, producer, draw(st.booleans()))
                for producer in range(topic.producers)
                if draw(st.integers(0, 9)) < 7
            ]
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(1, len(steps)))
        steps.insert(at, DeleteRecords(topic.name, draw(partitions), "offset", draw(st.floats(0, 0.5))))
    return steps


@st.composite
def _produces(draw: st.DrawFn, topic: GeneratedTopic, partitions: st.SearchStrategy[int]) -> Produce:
    huge = topic.is_huge and draw(st.booleans())
    sizes = HUGE_VALUE_BYTES if huge else draw(st.sampled_from(((0, 20), (20, 400), (200, 3000), (20_000, 60_000))))
    large = sizes[1] > 10_000
    return Produce(
        topic.name,
        draw(partitions),
        draw(st.integers(1, 3)) if huge else draw(st.integers(8, 40)),
        1 if large else draw(st.sampled_from((1, 2, 5, 20))),
        sizes,
        draw(st.sampled_from(CODECS)),
        draw(st.sampled_from(("rising", "shuffled", "falling", "equal"))),
        draw(st.booleans()),
    )


@st.composite
def _cuts(draw: st.DrawFn, topic: GeneratedTopic) -> list[Cut]:
    kind = draw(st.integers(0, 9))
    if kind < 2 and not topic.is_huge:
        return [DropSegments(topic.name, draw(st.integers(1, 2)))]
    if kind < 8:
        place = draw(st.sampled_from(_CUT_PLACES))
        partition = draw(st.integers(0, topic.partitions - 1))
        return [DeleteRecords(topic.name, partition, place, draw(st.floats(0, 0.4)))]
    return []


def _interleaved(lists: Sequence[Sequence[Step]], chance: random.Random) -> tuple[Step, ...]:
    """All steps, each list's in its own order."""
    left = [list(each) for each in lists if each]
    merged: list[Step] = []
    while left:
        chosen = chance.choice(left)
        merged.append(chosen.pop(0))
        left = [each for each in left if each]
    return tuple(merged)
