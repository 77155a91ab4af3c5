"""The row about copying into the tier and deleting from it: empty where no copier runs."""

from typing import Final

from deploy.grafana.panels import Query, Row, busiest, gauge, graph, rate, selected

_TOPIC: Final = "kafka_server_brokertopicmetrics_"


def _largest(name: str) -> Query:
    """A gauge of the ten topics that have most of it."""
    return busiest(Query(f"max by (topic) ({selected(name)})", "{{topic}}"))


COPYING: Final = Row(
    "Copying (standalone mode)",
    (
        graph(
            "Bytes copied",
            "RemoteCopyBytesPerSec of the ten busiest topics.",
            "Bps",
            busiest(rate(f"{_TOPIC}remotecopybytes_total", "topic")),
        ),
        graph(
            "Segments copied",
            "RemoteCopyRequestsPerSec: attempts; and those that failed.",
            "ops",
            rate(f"{_TOPIC}remotecopyrequests_total", legend="attempts"),
            rate(f"{_TOPIC}remotecopyerrors_total", legend="failed"),
        ),
        graph(
            "Age of what is not copied yet",
            "The ten topics that are furthest behind.",
            "s",
            _largest("tidegate_copy_age_seconds"),
        ),
        graph(
            "Share of upstream's retention",
            "How much of upstream's retention.ms or retention.bytes is not copied yet; at 1 upstream deletes it.",
            "percentunit",
            _largest("tidegate_copy_upstream_retention_share"),
        ),
        graph(
            "Bytes due to be copied",
            "RemoteCopyLagBytes of the ten topics that have most.",
            "bytes",
            _largest(f"{_TOPIC}remotecopylagbytes"),
        ),
        graph(
            "Segments due to be copied",
            "RemoteCopyLagSegments likewise.",
            "none",
            _largest(f"{_TOPIC}remotecopylagsegments"),
        ),
        graph(
            "Segments deleted",
            "RemoteDeleteRequestsPerSec: attempts; and those that failed.",
            "ops",
            rate(f"{_TOPIC}remotedeleterequests_total", legend="attempts"),
            rate(f"{_TOPIC}remotedeleteerrors_total", legend="failed"),
        ),
        graph(
            "Bytes due to be deleted",
            "RemoteDeleteLagBytes of the ten topics that have most.",
            "bytes",
            _largest(f"{_TOPIC}remotedeletelagbytes"),
        ),
        graph(
            "Segments due to be deleted",
            "RemoteDeleteLagSegments likewise.",
            "none",
            _largest(f"{_TOPIC}remotedeletelagsegments"),
        ),
        graph(
            "Segments that wait to be deleted, and dead ones",
            "What copy.delete.grace.ms or an operator keeps, and what upstream has lost: the ten largest topics.",
            "none",
            _largest("tidegate_delete_waiting_segments"),
            _largest("tidegate_dead_segments"),
            _largest("tidegate_delete_alarming_partitions"),
        ),
        graph(
            "Bytes that wait to be deleted, and dead ones",
            "Likewise.",
            "bytes",
            _largest("tidegate_delete_waiting_bytes"),
            _largest("tidegate_dead_bytes"),
        ),
        graph(
            "The store's clock",
            "How far it is ahead of this machine's. Beyond an hour nothing is deleted.",
            "s",
            gauge("tidegate_copy_clock_offset_seconds"),
        ),
        graph(
            "Lost before it was copied",
            "Stretches that upstream had deleted, and offsets in them.",
            "none",
            gauge("tidegate_copy_gaps_total"),
            Query(gauge("tidegate_copy_gap_records_total").expression, "{{instance}} offsets"),
            Query(gauge("tidegate_tier_holes_stepped_over_total").expression, "{{instance}} holes that readers met"),
        ),
        graph(
            "Partitions that are not copied, or were taken over",
            "A batch that cannot be copied; without an owner; claimed by others.",
            "none",
            Query(gauge("tidegate_copy_poisoned_partitions").expression, "{{instance}} poisoned"),
            Query(gauge("tidegate_copy_unowned_partitions").expression, "{{instance}} without an owner"),
            Query(gauge("tidegate_copy_superseded_total").expression, "{{instance}} claimed by others"),
            Query(gauge("tidegate_metadata_topic_unsafe").expression, "{{instance}} metadata topic unsafe"),
            Query(gauge("tidegate_copy_stalled_partitions").expression, "{{instance}} stalled"),
        ),
        graph(
            "Idle share of the copier's slots",
            "RemoteLogManagerTasksAvgIdlePercent, over the last minute.",
            "percentunit",
            gauge("kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidle_percent"),
        ),
        graph(
            "Time to add up a partition's segments",
            "RemoteLogSizeComputationTime of the ten slowest topics.",
            "ms",
            _largest(f"{_TOPIC}remotelogsizecomputationtime"),
        ),
    ),
)
