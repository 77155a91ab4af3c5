"""Many large reads over a busy link, in virtual time: they fetch hardly more than they deliver."""

from dataclasses import replace

from tests.simulation.cases import CLIENT, DEFAULTS, Case
from tests.simulation.world import run_case
from tests.support.simulated_link import LinkProfile
from tests.support.simulated_store import MIB, SimulatedTopic


def test_many_large_reads_fetch_hardly_more_than_they_deliver() -> None:
    """16 readers of 50 MiB at 200 MB/s. They fetched 2.3 times as much, with read-ahead 7 times, and took as much
    longer: what had come when the time was up was evicted before the rest had."""
    readers, each_bytes = 16, 64 * MIB
    link = LinkProfile(first_byte_s=0.030, connection_bytes_per_s=60e6, link_bytes_per_s=200e6)
    for readahead_bytes in (0, 128 * MIB):
        reads = Case(
            name="16 large reads",
            topic=SimulatedTopic(partitions=readers, partition_bytes=each_bytes, segment_bytes=each_bytes),
            readers=[[(number, 0, each_bytes)] for number in range(readers)],
            settings=replace(
                DEFAULTS, readahead_stream_bytes_max=readahead_bytes, readahead_total_bytes_max=4 * readahead_bytes
            ),
            client=replace(CLIENT, max_bytes=50 * MIB),
        )
        (done,) = run_case(reads, link).passes
        assert done.delivered_bytes == readers * each_bytes
        assert done.fetched_ratio <= 1.2, readahead_bytes
        assert done.elapsed_s <= 1.2 * done.delivered_bytes / link.link_bytes_per_s, readahead_bytes
