"""Rows about the tier and what is between it and a client: reads, cache, object store, read-ahead, catalog."""

from typing import Final

from deploy.grafana.panels import Query, Row, busiest, gauge, graph, plus, quantiles, rate, ratio, selected

_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_POOL: Final = "kafka_log_remote_remotestoragethreadpool_"
_TIMER: Final = "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems"

_MEMORY: Final = 'level="memory"'
_MEMORY_HITS: Final = rate("tidegate_cache_hits_total", where=_MEMORY)
_LOOK_UPS: Final = plus(_MEMORY_HITS, rate("tidegate_cache_misses_total", where=_MEMORY))
"""Memory is asked first, so its hits and misses are all look-ups that there are."""

TIER: Final = Row(
    "Tier reads (KIP-405)",
    (
        graph(
            "Record bytes from the tier",
            "RemoteFetchBytesPerSec of the ten busiest topics.",
            "Bps",
            busiest(rate(f"{_TOPIC}remotefetchbytes_total", "topic")),
        ),
        graph(
            "Reads from the tier",
            "RemoteFetchRequestsPerSec of the ten busiest topics.",
            "reqps",
            busiest(rate(f"{_TOPIC}remotefetchrequests_total", "topic")),
        ),
        graph(
            "Reads from the tier that failed",
            "RemoteFetchErrorsPerSec by topic; an offset out of range is no failure.",
            "reqps",
            busiest(rate(f"{_TOPIC}remotefetcherrors_total", "topic")),
        ),
        graph(
            "Duration of a read",
            "RemoteLogReaderFetchRateAndTimeMs: quantiles of the last 1028 reads, and the mean.",
            "ms",
            Query(f"max by (quantile) ({selected(_TIMER)})", "{{quantile}}"),
            ratio(rate(f"{_TIMER}_sum"), rate(f"{_TIMER}_count"), "mean"),
        ),
        graph(
            "Deadlines missed",
            "The tier was too slow for the time that a client allows. The fill goes on, and the client asks again.",
            "ops",
            rate("tidegate_deadline_misses_total", "request"),
            rate("kafka_server_delayedremotefetchmetrics_expires_total", legend="DelayedRemoteFetch.ExpiresPerSec"),
        ),
        graph(
            "Left to the brokers",
            "Partitions whose tier reads fail, by reason; their reads by the brokers; and those put off meanwhile.",
            "none",
            gauge("tidegate_fallback_partitions", "reason"),
            rate("tidegate_fallback_reads_total", legend="reads a second"),
            rate("tidegate_fallback_refused_total", legend="put off a second"),
        ),
        graph(
            "Record bytes from brokers in the tier's place",
            "What the brokers read because the tier fails.",
            "Bps",
            rate("tidegate_fallback_bytes_total", legend="from brokers"),
        ),
        graph(
            "Requests that wait for the tier",
            "PurgatorySize and NumDelayedOperations, which are the same here.",
            "none",
            gauge("kafka_server_delayedoperationpurgatory_purgatorysize", "delayedOperation"),
            gauge("kafka_server_delayedoperationpurgatory_numdelayedoperations", "delayedOperation"),
        ),
        graph(
            "Reads that wait for a slot",
            "RemoteLogReaderTaskQueueSize.",
            "none",
            gauge(f"{_POOL}remotelogreadertaskqueuesize"),
        ),
        graph(
            "Idle share of the read slots",
            "RemoteLogReaderAvgIdlePercent, over the last minute.",
            "percentunit",
            gauge(f"{_POOL}remotelogreaderavgidle_percent"),
        ),
        graph(
            "Size of the tier",
            "RemoteLogSizeBytes of the ten largest topics.",
            "bytes",
            busiest(Query(f"max by (topic) ({selected(_TOPIC + 'remotelogsizebytes')})", "{{topic}}")),
        ),
        graph(
            "Segments in the tier",
            "RemoteLogMetadataCount of the ten largest topics.",
            "none",
            busiest(Query(f"max by (topic) ({selected(_TOPIC + 'remotelogmetadatacount')})", "{{topic}}")),
        ),
    ),
)

CACHE: Final = Row(
    "Cache",
    (
        graph(
            "Share of block look-ups that hit",
            "Low is natural for a first read, and not for a second.",
            "percentunit",
            ratio(_MEMORY_HITS, _LOOK_UPS, "memory"),
            ratio(rate("tidegate_cache_hits_total"), _LOOK_UPS, "memory and disk"),
        ),
        graph(
            "Blocks looked up",
            "Hits and misses by level.",
            "ops",
            rate("tidegate_cache_hits_total", "level", legend="hit {{level}}"),
            rate("tidegate_cache_misses_total", "level", legend="miss {{level}}"),
        ),
        graph(
            "Bytes from each level",
            "Blocks that hit, and blocks filled from the object store.",
            "Bps",
            rate("tidegate_cache_hit_bytes_total", "level"),
            rate("tidegate_cache_fill_bytes_total", legend="object store"),
        ),
        graph(
            "Bytes fetched for each byte served",
            "1 for what is read once, less for what several read, more where blocks are fetched again.",
            "none",
            ratio(
                rate("tidegate_cache_fill_bytes_total"), rate("tidegate_served_tier_bytes_total"), "fetched / served"
            ),
        ),
        graph(
            "Fills",
            "Blocks from the object store.",
            "ops",
            rate("tidegate_cache_fills_total", legend="filled"),
            rate("tidegate_cache_fill_failures_total", legend="failed"),
        ),
        graph("Duration of a fill", "From the request to the block.", "s", *quantiles("tidegate_cache_fill_seconds")),
        graph(
            "Wait for a fill",
            "What a reader waited, for its own fill or one under way.",
            "s",
            *quantiles("tidegate_cache_fill_wait_seconds"),
        ),
        graph(
            "Blocks dropped",
            "Evicted for want of room, expired because nobody read them, quarantined for a bad checksum.",
            "ops",
            rate("tidegate_cache_evictions_total", "level", legend="evicted {{level}}"),
            rate("tidegate_cache_expired_total", "level", legend="expired {{level}}"),
            rate("tidegate_cache_quarantined_blocks_total", legend="quarantined"),
        ),
        graph("Bytes held", "By level.", "bytes", gauge("tidegate_cache_resident_bytes", "level")),
        graph(
            "Trouble with the disk cache",
            "Errors by cause, and blocks that were not written.",
            "ops",
            rate("tidegate_cache_disk_errors_total", "cause"),
            rate("tidegate_cache_disk_skipped_blocks_total", legend="not written"),
        ),
        graph(
            "Disk cache works",
            "1 while it does; 0 while Tidegate serves without it, or where none is configured.",
            "none",
            gauge("tidegate_cache_disk_available"),
        ),
        graph(
            "Indexes",
            "Segments whose manifest is in memory, and indexes that had to be rebuilt from the segment.",
            "none",
            gauge("tidegate_opened_segments"),
            rate("tidegate_index_rebuilds_total", "index", legend="rebuilt {{index}} a second"),
        ),
    ),
)

STORE: Final = Row(
    "Object store",
    (
        graph("GETs by outcome", "Counted when they end.", "reqps", rate("tidegate_gets_total", "store", "outcome")),
        graph("GETs by object", "What they were for.", "reqps", rate("tidegate_gets_total", "object")),
        graph(
            "Bytes received",
            "Segments' logs as they are stored, by outcome of the GET.",
            "Bps",
            rate("tidegate_get_bytes_total", "store", "outcome"),
        ),
        graph(
            "Duration of a GET that succeeds",
            "From sending it to the end of its answer.",
            "s",
            *quantiles("tidegate_get_seconds", where='outcome="ok"', label="store"),
        ),
        graph(
            "Time to the first byte",
            "For GETs of segments' logs.",
            "s",
            *quantiles("tidegate_get_first_byte_seconds", label="store"),
        ),
        graph(
            "GETs under way and waiting",
            "Waiting ones want a slot or memory. The limit falls when the store throttles.",
            "none",
            gauge("tidegate_gets_in_flight"),
            Query(gauge("tidegate_gets_limit").expression, "{{instance}} limit"),
            Query(gauge("tidegate_gets_queued").expression, "{{instance}} waiting"),
        ),
        graph(
            "Second attempts",
            "Retries after a failure, second GETs for a late first byte, and for a slow body.",
            "ops",
            rate("tidegate_get_retries_total", legend="retries"),
            rate("tidegate_get_hedges_total", legend="late first byte"),
            rate("tidegate_get_hedges_won_total", legend="second that won"),
            rate("tidegate_get_splits_total", legend="slow body"),
        ),
        graph(
            "Bytes in flight",
            "Held by GETs under way and answers not yet sent; by requests and responses; of what is relayed.",
            "bytes",
            gauge("tidegate_inflight_bytes"),
            gauge("tidegate_held_bytes"),
            gauge("tidegate_relay_held_bytes"),
        ),
        graph(
            "Given up for others",
            "Blocks of answers whose clients took nothing while others waited for the memory; they are read again.",
            "Bps",
            rate("tidegate_answers_released_bytes_total", legend="given up"),
        ),
    ),
)

READ_AHEAD: Final = Row(
    "Read-ahead",
    (
        graph(
            "Bytes read ahead",
            "Arrived before anyone asked, then read, or dropped unread.",
            "Bps",
            rate("tidegate_readahead_bytes_total", legend="arrived"),
            rate("tidegate_readahead_used_bytes_total", legend="used"),
            rate("tidegate_readahead_wasted_bytes_total", legend="wasted"),
        ),
        graph("Bytes not yet read", "Read ahead and waiting.", "bytes", gauge("tidegate_readahead_unread_bytes")),
        graph("Sequential readers", "They are read ahead for.", "none", gauge("tidegate_readahead_streams")),
        graph(
            "Why read-ahead stops",
            "docs/operate/troubleshoot.md says what each reason means and what to raise.",
            "ops",
            rate("tidegate_readahead_stalls_total", "reason"),
        ),
    ),
)

CATALOG: Final = Row(
    "Catalog",
    (
        graph("Segments", "In the catalog, in any state.", "none", gauge("tidegate_catalog_segments")),
        graph("Memory", "An estimate.", "bytes", gauge("tidegate_catalog_memory_bytes")),
        graph(
            "Records not yet read",
            "The ten metadata partitions that are furthest behind.",
            "none",
            busiest(gauge("tidegate_catalog_lag_records", "metadata_partition")),
        ),
        graph(
            "Age of the snapshot",
            "Since it was written; empty without one.",
            "s",
            Query(f"time() - ({selected('tidegate_catalog_snapshot_timestamp_seconds')} > 0)", "{{instance}}"),
        ),
        graph("Size of the snapshot", "The last that was written.", "bytes", gauge("tidegate_catalog_snapshot_bytes")),
        graph(
            "Snapshots",
            "Written or not, and what became of the one that was looked for at the start.",
            "none",
            gauge("tidegate_catalog_snapshot_writes_total", "outcome"),
            Query(
                gauge("tidegate_catalog_snapshot_loads_total", "outcome").expression, "{{instance}} load {{outcome}}"
            ),
        ),
        graph(
            "Metadata that is not in the catalog",
            "Records that could not be decoded, and partitions that a full catalog keeps out.",
            "none",
            Query(gauge("tidegate_catalog_undecodable_records_total").expression, "{{instance}} undecodable"),
            Query(gauge("tidegate_catalog_refused_partitions").expression, "{{instance}} refused"),
        ),
    ),
)
