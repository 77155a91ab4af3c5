"""The eviction policy: a scan does not flush what is shared, a reader in sequence is no reuse, the books are right."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.cache.eviction import USES_MAX, ScanResistantPolicy

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
    """How many blocks an extent has."""
    return int(request.param)


def policy_cache(capacity: int = CAPACITY, extent: int = 1) -> tuple[ScanResistantPolicy[int], Use]:
    policy = ScanResistantPolicy[int]()

    def use(key: int, reader: Hashable) -> bool:
        if key in policy:
            policy.touch(key, reader)
            return True
        while policy.size_bytes + 1 > capacity:
            policy.evict()
        policy.insert(key, 1, reader, extent=key // extent)
        return False

    return policy, use


def least_recently_used_cache(capacity: int = CAPACITY) -> Use:
    keys: OrderedDict[int, None] = OrderedDict()

    def use(key: int, reader: Hashable) -> bool:
        if key in keys:
            keys.move_to_end(key)
            return True
        if len(keys) == capacity:
            keys.popitem(last=False)
        keys[key] = None
        return False

    return use


def shared_hit_rate(use: Use, *, scan_reader: Hashable = "backfill", touches: int = 1, warm: bool = True) -> float:
    """Of three readers that go round the same blocks, a third of the way apart, while a scan passes."""
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
    assert shared_hit_rate(least_recently_used_cache()) < 0.05


def test_nor_does_a_scan_that_touches_each_block_several_times_in_a_row(extent: int) -> None:
    assert shared_hit_rate(policy_cache(extent=extent)[1], touches=4) > 0.95
    # What makes the difference is that the reader is known: counted as reuse, the same touches flush the shared blocks.
    assert shared_hit_rate(policy_cache(extent=extent)[1], scan_reader=None, touches=4) < 0.5


def test_shared_blocks_settle_in_while_the_scan_is_under_way(extent: int) -> None:
    assert shared_hit_rate(policy_cache(extent=extent)[1], warm=False) > 0.9
    assert shared_hit_rate(least_recently_used_cache(), warm=False) < 0.05


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


@pytest.mark.parametrize("streams", [20, 90])
def test_many_backfills_at_once_do_not_flush_the_shared_blocks(streams: int, extent: int) -> None:
    use = policy_cache(extent=extent)[1]
    in_step(use, range(SHARED, 2 * CAPACITY))
    for reader in range(3):
        for key in range(SHARED):
            use(key, reader)
    assert backfills(use, streams, SHARED)[1] > 0.95


@pytest.mark.parametrize("streams", [20, 45])
def test_many_backfills_do_not_fetch_their_blocks_twice(streams: int, extent: int) -> None:
    use = policy_cache(extent=extent)[1]
    in_step(use, range(2 * CAPACITY))
    assert streams * 100 <= backfills(use, streams)[0] < streams * 100 * 1.05


def test_what_backfills_were_given_goes_back_to_shared_blocks_when_they_are_over(extent: int) -> None:
    use = policy_cache(extent=extent)[1]
    in_step(use, range(2 * CAPACITY))
    backfills(use, streams=45)
    shared = 70  # more than half: there is room for them only when probation is down again
    hits = 0
    for turn in range(20 * shared):
        hits += use(turn % shared, turn // shared % 3) and turn >= 10 * shared
        use(100_000 + turn // 2, "one more backfill")
    assert hits / (10 * shared) > 0.95


def test_a_key_that_nobody_reused_goes_first_and_in_order_of_arrival() -> None:
    policy = ScanResistantPolicy[str]()
    for key in "abcd":
        policy.insert(key, 1, "reader")
    policy.touch("a", "another")
    assert [policy.evict() for _ in range(4)] == ["b", "c", "d", "a"]


@pytest.mark.parametrize(
    ("inserted_by", "touched_by", "is_reuse"),
    [
        ("x", ["x", "x", "x"], False),
        ("x", ["y"], True),
        ("x", ["y", "y"], True),
        ("x", [None], True),
        (None, [None], True),
        (None, ["x"], False),
        (None, ["x", "x"], False),
        (None, ["x", "y"], True),
    ],
)
def test_reuse_is_use_by_another_reader_than_the_last(
    inserted_by: Hashable, touched_by: list[Hashable], is_reuse: bool
) -> None:
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


def test_all_uses_in_probation_are_spent_on_leaving_it() -> None:
    policy = ScanResistantPolicy[int]()
    for key, touches in ((0, USES_MAX), (1, 1)):
        policy.insert(key, 1)
        for _ in range(touches):
            policy.touch(key)
    assert [policy.evict(), policy.evict()] == [0, 1]


def test_a_key_that_comes_back_for_another_reader_is_kept_before_new_ones() -> None:
    policy = ScanResistantPolicy[int]()
    for key in range(10):
        policy.insert(key, 1, "first")
    assert policy.evict() == 0
    policy.insert(0, 1, "second")
    assert [policy.evict() for _ in range(9)] == list(range(1, 10))
    assert policy.evict() == 0


def test_a_key_that_comes_back_for_its_own_reader_makes_probation_larger() -> None:
    policy, use = policy_cache(20)
    for key in range(20):
        use(key, "first")
        use(key, "second")
    use(20, "third")  # all reused: the first of them goes, and the rest are in the main queue
    assert use(20, "third")
    use(21, "fourth")
    use(22, "fifth")
    use(23, "sixth")
    assert 20 not in policy
    use(20, "third")
    use(24, "fourth")
    use(25, "fifth")
    assert use(20, "third")
    assert use(24, "fourth")
    assert use(25, "fifth")


def test_a_removed_key_is_forgotten_altogether() -> None:
    policy = ScanResistantPolicy[int]()
    policy.insert(0, 5, "first")
    policy.remove(0)
    policy.remove(0)
    assert (len(policy), policy.size_bytes, 0 in policy) == (0, 0, False)
    policy.insert(0, 5, "second")
    policy.insert(1, 5, "second")
    assert policy.evict() == 0


def test_an_empty_policy_has_nothing_to_evict_and_nothing_to_touch() -> None:
    policy = ScanResistantPolicy[int]()
    with pytest.raises(KeyError):
        policy.evict()
    with pytest.raises(KeyError):
        policy.touch(0)


def test_idle_keys_are_those_last_used_before_the_time_given() -> None:
    policy = ScanResistantPolicy[str]()
    for now_s, key in enumerate("abcd"):
        policy.insert(key, 1, "reader", now_s)
    policy.touch("a", "reader", 4.0)
    assert policy.idle_since(1.0) == []
    assert policy.idle_since(3.0) == ["b", "c"]
    assert policy.idle_since(4.5) == ["b", "c", "d", "a"]
    assert len(policy) == 4


def test_ghosts_stand_for_no_more_than_is_here_and_hold_no_key(extent: int) -> None:
    policy, use = policy_cache(extent=extent)
    for key in range(SCANNED):
        use(key, "backfill")
    assert CAPACITY - extent <= sum(ghost.size_bytes for ghost in policy._ghosts.values()) <= CAPACITY
    assert all(type(ghost) is int for ghost in policy._ghosts)


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([None, "x", "y", "z"])), max_size=200))
def test_a_cache_under_it_is_full_but_never_over(uses: list[tuple[int, Hashable]]) -> None:
    policy, use = policy_cache(5)
    for key, reader in uses:
        use(key, reader)
        assert key in policy
        assert len(policy) <= policy.size_bytes <= 5
    assert len(policy) == min(5, len({key for key, _ in uses}))


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
        queues = (policy._probation, policy._main, {"going": policy._going} if policy._going else {})
        here = [key for queue in queues for extent in queue.values() for key in extent.keys]
        assert sorted(here) == sorted(self.sizes)
        assert policy._extents == {**policy._probation, **policy._main}
        assert all(extent.keys for extent in policy._extents.values())
        for extent in policy._extents.values():
            assert extent.size_bytes == sum(self.sizes[key] for key in extent.keys)
            assert extent.is_main == (extent.name in policy._main)
        assert policy._probation_bytes == sum(extent.size_bytes for extent in policy._probation.values())
        assert policy._ghost_bytes == sum(ghost.size_bytes for ghost in policy._ghosts.values())


TestPolicy = PolicyMachine.TestCase
