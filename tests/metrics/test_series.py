"""Plain numbers: a page made of them is what prometheus-client writes of its own, and threads lose none."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from metrics.cache_meters import CacheLevel
from metrics.get_meter import GetObject, GetOutcome
from metrics.meters import Meters
from metrics.page import render
from metrics.registry import Registry
from metrics.series import LATENCY_BUCKETS_S
from tests.support.for_each import for_each

OBSERVED = (0.0, -1.0, 0.001, 0.0011, 0.3, 1.0, 10.0, 10.1, 1e9, *LATENCY_BUCKETS_S)
LABELS = (("orders", "1"), ('a"\\\n', "2"), ("orders", "2"))
THREADS, ENDS = 4, 20_000


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@for_each("accept", ["", "application/openmetrics-text"])
def test_a_page_is_what_the_library_writes_of_the_same(accept: str) -> None:
    ours, theirs = Registry(), CollectorRegistry()
    counters, their_counter = ours.counters("c", "C.", "of", "at"), Counter("c", "C.", ("of", "at"), registry=theirs)
    gauge, their_gauge = ours.gauge("g", "G\n."), Gauge("g", "G\n.", registry=theirs)
    asked, their_asked = ours.gauge("g_asked", "A."), Gauge("g_asked", "A.", registry=theirs)
    histograms = ours.histograms("h_seconds", "H.", "of", "at")
    their_histogram = Histogram("h_seconds", "H.", ("of", "at"), buckets=LATENCY_BUCKETS_S, registry=theirs)
    ours.counters("none", "N.", "of"), Counter("none", "N.", ("of",), registry=theirs)
    ours.histogram("bare", "B."), Histogram("bare", "B.", buckets=LATENCY_BUCKETS_S, registry=theirs)
    for number, labels in enumerate(LABELS):
        counters.labels(*labels).value += 10**number * 7
        their_counter.labels(*labels).inc(10**number * 7)
        for value in OBSERVED:
            histograms.labels(*labels).observe(value)
            their_histogram.labels(*labels).observe(value)
    gauge.value = True
    their_gauge.set(True)
    asked.ask = lambda: -2.5
    their_asked.set_function(lambda: -2.5)
    content_type, page = render(ours, accept)
    their_content_type, their_page = render(theirs, accept)
    assert content_type == their_content_type
    assert page.splitlines() == [line for line in their_page.splitlines() if b"_created" not in line]


def test_what_threads_count_is_all_there(meters: Meters, hasty_switches: None) -> None:
    def count() -> None:
        for _ in range(ENDS):
            meters.gets.on_end(GetObject.LOG, GetOutcome.OK, 0.5, 3)
            meters.cache.on_evicted(CacheLevel.DISK, 2)

    threads = [threading.Thread(target=count) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    of = {"store": "unknown", "outcome": "ok"}
    values = [
        meters.registry.sample_value("tidegate_gets_total", of | {"object": "log"}),
        meters.registry.sample_value("tidegate_get_bytes_total", of),
        meters.registry.sample_value("tidegate_get_seconds_count", of),
        meters.registry.sample_value("tidegate_cache_evictions_total", {"level": "disk"}),
    ]
    assert values == [count_each * THREADS * ENDS for count_each in (1, 3, 1, 2)]


def test_no_thread_counts_what_is_the_loops(meters: Meters) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(meters.cache.on_resident, CacheLevel.DISK, 5).result()
        with pytest.raises(AssertionError, match=r"CacheMeter.on_hit is called in ThreadPool"):
            pool.submit(meters.cache.on_hit, CacheLevel.DISK, 5).result()


def test_a_name_is_taken_once() -> None:
    registry = Registry()
    registry.counter("c", "C.")
    with pytest.raises(ValueError, match="c_total"):
        registry.gauge("c_total", "G.")
