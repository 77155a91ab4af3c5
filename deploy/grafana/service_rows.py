"""Rows about Tidegate as a service: health, clients and relay, the process."""

from typing import Final

from deploy.grafana.panels import Query, Row, busiest, gauge, graph, or_zero, quantiles, rate, selected, stat

_GOOD, _BAD, _POOR = "green", "red", "orange"

HEALTH: Final = Row(
    "Health",
    (
        stat("Ready", "What /readyz says.", gauge("tidegate_ready"), words=(("not ready", _BAD), ("ready", _GOOD))),
        stat(
            "Degraded",
            "Ready with complaints, which /readyz names.",
            gauge("tidegate_degraded"),
            words=(("no", _GOOD), ("yes", _POOR)),
        ),
        stat(
            "Metadata partitions in trouble",
            "Tier reads whose metadata is there fail until it is read again.",
            gauge("tidegate_metadata_partition_problems"),
        ),
        stat(
            "Keys that wait for a restart",
            "Changed configuration that cannot take effect while Tidegate runs.",
            gauge("tidegate_config_restart_needed"),
        ),
        stat(
            "First certificate to expire",
            "Time left to the first of those that the configuration names; empty where it names none.",
            Query(
                f"min by (instance) ({selected('tidegate_certificate_expiry_timestamp_seconds')}) - time()",
                "{{instance}}",
            ),
            unit="s",
        ),
        stat(
            "Version",
            "Tidegate's, and Python's.",
            Query(
                f"max by (instance, version, python) ({selected('tidegate_build_info')})", "{{version}} on {{python}}"
            ),
            shows="name",
        ),
        graph(
            "Workers: connections of each",
            "With proxy.workers above 1; empty otherwise.",
            "none",
            gauge("tidegate_worker_connections", "worker"),
        ),
        graph(
            "Workers: up",
            "1 while it takes connections. One that died is started again.",
            "none",
            gauge("tidegate_worker_up", "worker"),
        ),
        graph(
            "Workers: deaths",
            "Ends that nobody asked for. The log line worker_died says how.",
            "none",
            rate("tidegate_worker_deaths_total", "worker"),
        ),
        graph(
            "Troubles",
            "By id, 1 while it lasts: docs/operate/monitor.md#troubles tells each.",
            "none",
            or_zero(Query(f"{gauge('tidegate_trouble', 'id').expression} > 0", "{{instance}} {{id}}")),
        ),
        graph(
            "Conditions that are not met",
            "catalog, upstream, tier and tasks: 1 while pending or degraded.",
            "none",
            gauge("tidegate_condition_state", "condition", "state", where='state!="met"'),
        ),
        graph(
            "Event loop: latest waking of the last minute",
            "Everything that passes through waits as long.",
            "s",
            gauge("tidegate_loop_stall_max_seconds", "worker"),
        ),
        graph(
            "Event loop: how late tasks wake", "Ten wakings a second.", "s", *quantiles("tidegate_loop_stall_seconds")
        ),
        graph(
            "Background tasks: failures",
            "By faults of Tidegate's. The log line task_failed says which; each is begun again.",
            "none",
            gauge("tidegate_task_failures_total", "task"),
        ),
        graph(
            "Log lines that were lost",
            "Nobody took them from standard error, and no more are kept.",
            "none",
            gauge("tidegate_log_lines_lost_total"),
        ),
        graph("Event loop: tasks", "Some for each connection.", "none", gauge("tidegate_tasks")),
    ),
)

CLIENTS: Final = Row(
    "Clients and relay",
    (
        graph("Connections", "From clients, open now.", "none", gauge("tidegate_connections_active")),
        graph(
            "Audit log: lines",
            "With audit.log. Dropped ones are lost; the log line audit_log_failed says why.",
            "ops",
            rate("tidegate_audit_lines_total", "outcome"),
        ),
        graph(
            "Connections accepted and closed",
            "Closed ones by cause, refused ones by reason. Not accepted: tries that found no open file left.",
            "ops",
            rate("tidegate_connections_accepted_total", legend="accepted"),
            rate("tidegate_connections_closed_total", "cause"),
            rate("tidegate_connections_refused_total", "reason"),
            rate("tidegate_connections_not_accepted_total", legend="not accepted"),
        ),
        graph(
            "TLS handshakes that failed",
            "By how they ended; closed is most often a balancer that looks at the port.",
            "ops",
            rate("tidegate_client_handshakes_total", "outcome", where='outcome!="ok"'),
        ),
        graph(
            "Connections that wait for their broker",
            "They go on when it is back.",
            "none",
            gauge("tidegate_upstream_connect_waits"),
        ),
        graph(
            "Bytes to and from clients",
            "Relayed ones by direction, and records from the tier.",
            "Bps",
            rate("tidegate_relayed_bytes_total", "direction"),
            rate("tidegate_served_tier_bytes_total", legend="from the tier"),
        ),
        graph(
            "Requests by what was done with them",
            "relay: passed on unread; rewrite: addresses changed; exchange: answered with the tier's help.",
            "reqps",
            rate("tidegate_requests_total", "route"),
            rate("tidegate_requests_unread_total", legend="too large to be read"),
            rate("tidegate_batches_too_large_total", legend="a batch was too large to be held"),
        ),
        graph(
            "Requests by api key",
            "Kafka's numbers: 0 Produce, 1 Fetch, 2 ListOffsets, 3 Metadata and so on.",
            "reqps",
            rate("tidegate_requests_total", "api_key"),
        ),
        graph(
            "Probe latency",
            "For questions to a broker that a tier read rides on.",
            "s",
            *quantiles("tidegate_probe_seconds"),
        ),
        graph(
            "Probes",
            "Tier reads that asked the broker, and those that an earlier answer still covered.",
            "reqps",
            rate("tidegate_probes_sent_total", legend="sent"),
            rate("tidegate_probes_reused_total", legend="reused"),
        ),
        graph(
            "Record bytes in probe answers",
            "They are thrown away.",
            "Bps",
            rate("tidegate_probe_discarded_bytes_total", legend="discarded"),
        ),
        graph(
            "Age of the offsets that reads were routed by",
            "How long ago the partition's offsets had been seen.",
            "s",
            *quantiles("tidegate_frontier_age_seconds"),
        ),
        graph("Fetch sessions", "Incremental ones (KIP-227).", "none", gauge("tidegate_fetch_sessions")),
        graph(
            "Frames that could not be read",
            "Each closed its connection.",
            "ops",
            rate("tidegate_malformed_frames_total", legend="malformed"),
        ),
        graph(
            "Damaged batches that were kept from clients",
            "For partitions whose object is damaged, in the broker's answers: clients get error 2.",
            "ops",
            or_zero(busiest(rate("tidegate_corrupt_answers_total", "topic"))),
        ),
    ),
)

PROCESS: Final = Row(
    "Process",
    (
        graph(
            "Processors used",
            "1 is one processor all the time.",
            "none",
            Query(f"rate({selected('process_cpu_seconds_total')}[$__rate_interval])", "{{instance}}"),
        ),
        graph("Resident memory", "", "bytes", gauge("process_resident_memory_bytes")),
        graph(
            "Open files",
            "Sockets among them, and the most that are allowed.",
            "none",
            gauge("process_open_fds"),
            Query(gauge("process_max_fds").expression, "{{instance}} allowed"),
        ),
        graph(
            "Garbage collections",
            "Python's, by generation.",
            "ops",
            rate("python_gc_collections_total", "generation", legend="generation {{generation}}"),
        ),
        graph(
            "Time since the start", "", "s", Query(f"time() - {selected('process_start_time_seconds')}", "{{instance}}")
        ),
        graph(
            "Readings of the configuration",
            "Since the start, by what became of them.",
            "none",
            gauge("tidegate_config_reloads_total", "outcome"),
        ),
        graph(
            "Time since the configuration was read",
            "At the start or later, when it was not refused.",
            "s",
            Query(
                f"time() - ({selected('tidegate_config_reload_timestamp_seconds')} > 0"
                f" or {selected('process_start_time_seconds')})",
                "{{instance}}",
            ),
        ),
    ),
)
