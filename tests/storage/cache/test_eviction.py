"""The eviction policy: a scan does not flush what is shared, a reader in sequence is no reuse, the books are right; and
what it leaves behind: long runs of a scan, never crumbs."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.cache.eviction import EXTENT_BYTES, EXTENTS_MIN, USES_MAX, ScanResistantPolicy, extent_blocks

CAPACITY = 100
EXTENT = 6

"""As in a cache of 100 blocks: a sixteenth."""

SHARED = 30
SCANNED = 10_000
SCANNED_PER_SHARED = 5

"""So 150 blocks of the scan pass before a shared block is read again: more than CAPACITY."""

Use = Callable[[int, Hashable], bool]

"""Uses a key for a reader, fetching it on a miss; says whether it was a hit."""


@pytest.fixture(params=[1, EXTENT])
def extent(request: pytest.FixtureRequest) -> int:
    """Return how many blocks an extent has."""
    return int(request.param)


def policy_cache(extent: int = 1) -> tuple[ScanResistantPolicy[int], Use]:
    cache = Cache(CAPACITY, extent)
    return cache.policy, cache.use


def least_recently_used_cache() -> Use:
    keys: OrderedDict[int, None] = OrderedDict()

    def use(key: int, reader: Hashable) -> bool:
        if key in keys:
            keys.move_to_end(key)
            return True
        if len(keys) == CAPACITY:
            keys.popitem(last=False)
        keys[key] = None
        return False

    return use


def shared_hit_rate(use: Use, *, scan_reader: Hashable = "backfill", touches: int = 1, warm: bool = True) -> float:
    """Return the hit rate of three readers that go round the same blocks, a third apart, while a scan passes."""
    if warm:
        for reader in range(3):
            for key in range(SHARED):
                use(key, reader)
    hits = reads = 0
    for number in range(SCANNED):
        for _ in range(touches):
            use(SHARED + number, scan_reader)
        if number % SCANNED_PER_SHARED == 0:
            reader, step = reads % 3, reads // 3
            hits += use((step + reader * SHARED // 3) % SHARED, reader)
            reads += 1
    return hits / reads


def test_a_scan_does_not_flush_what_three_readers_share(extent: int) -> None:
    assert shared_hit_rate(policy_cache(extent=extent)[1]) > 0.95
    assert shared_hit_rate(policy_cache(extent=extent)[1], touches=4) > 0.95, "nor one that touches each block often"
    # What makes the difference is that the reader is known: counted as reuse, the same touches flush the shared blocks.
    assert shared_hit_rate(policy_cache(extent=extent)[1], scan_reader=None, touches=4) < 0.5
    assert shared_hit_rate(policy_cache(extent=extent)[1], warm=False) > 0.9, "they settle in while it is under way"
    for warm in (True, False):
        assert shared_hit_rate(least_recently_used_cache(), warm=warm) < 0.05


def backfills(use: Use, streams: int, shared: int = 0) -> tuple[int, float]:
    """Backfills side by side, 100 blocks each, four Fetches to get through a block; three readers go round `shared`.

    How many blocks were fetched for the backfills, and the hit rate of the others.
    """
    fetched = hits = 0
    turns = 4 * 100
    for turn in range(turns):
        for stream in range(streams):
            fetched += not use(1000 * (stream + 1) + turn // 4, f"backfill {stream}")
        if shared:
            hits += use(turn % shared, turn // shared % 3)
    return fetched, hits / turns


def in_step(use: Use, keys: range) -> None:
    """Two consumers of the same blocks, never to return: what they leave behind fills the main queue."""
    for key in keys:
        use(key, "first")
        use(key, "second")


def test_many_backfills_at_once_flush_no_shared_blocks_and_fetch_none_twice(extent: int) -> None:
    for streams in (20, 90):
        use = policy_cache(extent=extent)[1]
        in_step(use, range(SHARED, 2 * CAPACITY))
        for reader in range(3):
            for key in range(SHARED):
                use(key, reader)
        assert backfills(use, streams, SHARED)[1] > 0.95, streams
    for streams in (20, 45):
        use = policy_cache(extent=extent)[1]
        in_step(use, range(2 * CAPACITY))
        assert streams * 100 <= backfills(use, streams)[0] < streams * 100 * 1.05


def test_a_key_that_nobody_reused_goes_first_and_in_order_of_arrival() -> None:
    policy = ScanResistantPolicy[str]()
    for key in "abcd":
        policy.insert(key, 1, "reader")
    policy.touch("a", "another")
    assert [policy.evict() for _ in range(4)] == ["b", "c", "d", "a"]
    for key, touches in (("e", USES_MAX), ("f", 1)):  # all uses in probation are spent on leaving it
        policy.insert(key, 1)
        for _ in range(touches):
            policy.touch(key)
    assert [policy.evict(), policy.evict()] == ["e", "f"]


def test_reuse_is_use_by_another_reader() -> None:
    uses: list[tuple[Hashable, list[Hashable], bool]] = [
        ("x", ["x", "x", "x"], False),
        ("x", ["y"], True),
        ("x", ["y", "y"], True),
        ("x", [None], True),
        (None, [None], True),
        (None, ["x"], False),
        (None, ["x", "x"], False),
        (None, ["x", "y"], True),
    ]
    for inserted_by, touched_by, is_reuse in uses:
        policy = ScanResistantPolicy[str]()
        policy.insert("used", 1, inserted_by)
        policy.insert("other", 1)
        for reader in touched_by:
            policy.touch("used", reader)
        assert policy.evict() == ("other" if is_reuse else "used")


def test_a_hundred_uses_keep_a_key_no_longer_than_three() -> None:
    policy = ScanResistantPolicy[int]()
    for key in range(10):
        policy.insert(key, 1)
        policy.touch(key)
    policy.insert(10, 5)
    assert policy.evict() == 10  # and all others are in the main queue
    for _ in range(100):
        policy.touch(0)
    for key in range(1, 10):
        for _ in range(USES_MAX):
            policy.touch(key)
    assert [policy.evict() for _ in range(10)] == list(range(10))


def test_a_key_that_comes_back_for_another_reader_is_kept_before_new_ones() -> None:
    policy = ScanResistantPolicy[int]()
    for key in range(10):
        policy.insert(key, 1, "first")
    assert policy.evict() == 0
    policy.insert(0, 1, "second")
    assert [policy.evict() for _ in range(9)] == list(range(1, 10))
    assert policy.evict() == 0


def test_ghosts_stand_for_no_more_than_is_here_and_hold_no_key(extent: int) -> None:
    policy, use = policy_cache(extent=extent)
    for key in range(SCANNED):
        use(key, "backfill")
    assert CAPACITY - extent <= sum(ghost.size_bytes for ghost in policy.ghosts.values()) <= CAPACITY
    assert all(type(ghost) is int for ghost in policy.ghosts)


class PolicyMachine(RuleBasedStateMachine):
    """Whatever goes, what is here and how much it weighs is what a dictionary says."""

    @initialize(extent=st.sampled_from([1, 3]))
    def begin(self, extent: int) -> None:
        self.extent = extent
        self.policy = ScanResistantPolicy[int]()
        self.sizes: dict[int, int] = {}
        self.used_at_s: OrderedDict[int, float] = OrderedDict()
        self.now_s = 0.0

    @rule(key=st.integers(0, 9), size_bytes=st.integers(0, 20), reader=st.sampled_from([None, "x", "y"]))
    def use(self, key: int, size_bytes: int, reader: Hashable) -> None:
        if key in self.sizes:
            self.policy.touch(key, reader, self.now_s)
        else:
            self.policy.insert(key, size_bytes, reader, self.now_s, extent=key // self.extent)
            self.sizes[key] = size_bytes
        self.used_at_s[key] = self.now_s
        self.used_at_s.move_to_end(key)

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def expect(self, data: st.DataObject) -> None:
        self.policy.expect(data.draw(st.sampled_from(sorted(self.sizes))))

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(key=st.integers(0, 9))
    def remove(self, key: int) -> None:
        self.policy.remove(key)
        self.sizes.pop(key, None)
        self.used_at_s.pop(key, None)

    @precondition(lambda self: self.sizes)
    @rule()
    def evict(self) -> None:
        key = self.policy.evict()
        del self.sizes[key]
        del self.used_at_s[key]

    @rule(seconds=st.integers(0, 10))
    def look_for_idle_ones(self, seconds: int) -> None:
        before_s = self.now_s - seconds
        assert self.policy.idle_since(before_s) == [key for key, at_s in self.used_at_s.items() if at_s < before_s]

    @invariant()
    def holds_what_the_dictionary_holds(self) -> None:
        policy = self.policy
        assert len(policy) == len(self.sizes)
        assert all((key in policy) == (key in self.sizes) for key in range(10))
        assert policy.size_bytes == sum(self.sizes.values())
        queues = (policy.probation, policy.main, {"going": policy.going} if policy.going else {})
        here = [key for queue in queues for extent in queue.values() for key in extent.keys]
        assert sorted(here) == sorted(self.sizes)
        assert policy.extents == {**policy.probation, **policy.main}
        assert all(extent.keys for extent in policy.extents.values())
        for extent in policy.extents.values():
            assert extent.size_bytes == sum(self.sizes[key] for key in extent.keys)
            assert extent.is_main == (extent.name in policy.main)
        assert policy.probation_bytes == sum(extent.size_bytes for extent in policy.probation.values())
        assert policy.ghost_bytes == sum(ghost.size_bytes for ghost in policy.ghosts.values())


TestPolicy = PolicyMachine.TestCase
MIB = 1024 * 1024
RUN = 8
ROOM = 16 * RUN


class Cache:
    """Blocks of one byte; `fetched` are those that were not there."""

    def __init__(self, capacity: int = ROOM, extent: int = RUN) -> None:
        self.policy = ScanResistantPolicy[int]()
        self.capacity = capacity
        self.extent = extent
        self.fetched: list[int] = []

    def use(self, key: int, reader: Hashable) -> bool:
        if key in self.policy:
            self.policy.touch(key, reader)
            return True
        while self.policy.size_bytes + 1 > self.capacity:
            self.policy.evict()
        self.policy.insert(key, 1, reader, extent=key // self.extent)
        self.fetched.append(key)
        return False

    def scan(self, keys: Iterable[int], reader: Hashable) -> int:
        """Return how many of the keys were hits."""
        return sum(self.use(key, reader) for key in keys)

    def runs(self) -> list[range]:
        """Neighbouring blocks that are here, as long as can be."""
        runs: list[range] = []
        for key in sorted(self.policy.blocks):
            if runs and runs[-1].stop == key:
                runs[-1] = range(runs[-1].start, key + 1)
            else:
                runs.append(range(key, key + 1))
        return runs

    def crumbs(self) -> list[range]:
        return [run for run in self.runs() if len(run) < RUN]


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_an_extent_is_about_16_mib_and_no_more_than_a_sixteenth_of_the_cache() -> None:
    large = 1024 * MIB
    assert [extent_blocks(size * MIB, large) for size in (1, 4, 12, 16, 17)] == [16, 4, 1, 1, 1]
    assert extent_blocks(64 * 1024, large) == 256
    assert [extent_blocks(MIB, cache * MIB) for cache in (256, 64, 16, 1, 0)] == [16, 4, 1, 1, 1]
    assert extent_blocks(0, large) == EXTENT_BYTES
    assert EXTENTS_MIN >= 2


def test_of_a_scan_larger_than_the_cache_one_run_stays(cache: Cache) -> None:
    cache.scan(range(10 * ROOM + 3), "backfill")
    (run,) = cache.runs()
    assert run == range(9 * ROOM + 3, 10 * ROOM + 3)


def going() -> Cache:
    """The first block of its first extent has gone."""
    cache = Cache()
    cache.scan(range(ROOM), "first")
    assert cache.policy.evict() == 0
    return cache


def test_a_block_that_is_used_expected_or_back_while_its_extent_goes_stays() -> None:
    used, expected, back = going(), going(), going()
    assert used.use(5, "second")
    assert [used.policy.evict() for _ in range(RUN)] == [1, 2, 3, 4, 6, 7, RUN, RUN + 1]
    assert 5 in used.policy
    expected.policy.expect(5)
    expected.policy.expect(6)
    assert [expected.policy.evict() for _ in range(RUN)] == [1, 2, 3, 4, 7, RUN, RUN + 1, RUN + 2]
    assert expected.runs()[0] == range(5, 7)
    back.policy.insert(0, 1, "second", extent=0)
    assert [back.policy.evict() for _ in range(RUN)] == [*range(1, RUN), RUN]


def test_blocks_that_a_reader_is_on_its_way_to_go_last(cache: Cache) -> None:
    cache.scan(range(ROOM), "first")
    for key in range(RUN, 3 * RUN):
        cache.policy.expect(key)
    evicted = [cache.policy.evict() for _ in range(ROOM - 1)]
    assert evicted == [*range(RUN), *range(3 * RUN, ROOM - 1), *range(RUN, 3 * RUN)]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4 * RUN), st.integers(0, ROOM)), min_size=20, max_size=60)

"""Which reader goes on, by how many blocks, and how far behind it somebody then looks for a block."""


@given(
    starts=st.tuples(*[st.integers(0, 4 * ROOM)] * 4),
    steps=STEPS,
    touches=st.integers(1, 3),
    removed=st.sets(st.integers(0, 8 * ROOM), max_size=3),
)
def test_after_any_history_what_stays_is_long_runs(
    starts: tuple[int, ...], steps: list[tuple[int, int, int]], touches: int, removed: set[int]
) -> None:
    """Each reader leaves an end where it began and one where it is; one extent is going."""
    cache = Cache()
    at = list(starts)
    for reader, blocks, behind in steps:
        for _ in range(blocks):
            for _ in range(touches):
                cache.use(at[reader], reader)
            at[reader] += 1
        if at[reader] - behind in cache.policy:
            cache.use(at[reader] - behind, "seeker")
    for key in removed:
        cache.policy.remove(key)
    readers = {reader for reader, _, _ in steps}
    assert len(cache.crumbs()) <= 2 * len(readers) + 1 + 2 * len(removed)
