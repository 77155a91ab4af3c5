"""Meters of the process: health, configuration, certificates, the loop; see `metrics.meters` for the rules."""

import enum
import importlib.metadata
import platform
from collections import deque
from collections.abc import Container

from metrics.registry import Children, LabelLimit, Registry
from metrics.troubles import TroubleId

_CONDITIONS_MAX = 8
"""Readiness has four."""

_CERTIFICATES_MAX = 64
"""Configuration keys that name one; there is a handful."""

_WORKERS_MAX = 64
"""The most that `proxy.workers` may be."""

_TASKS_MAX = 128
"""Those that are kept, of each worker one, and the kinds of those that are started once."""

_STALL_WINDOW = 600
"""Wakings that the stall gauge looks back on: a minute at ten a second."""

_CONDITIONS = ("catalog", "upstream", "tier", "tasks")
_PENDING = "pending"
_CONDITION_STATES = (_PENDING, "met", "degraded")
"""The values of `proxy.readiness`, which this package may not import; a test of the proxy holds them equal."""


class ReloadOutcome(enum.StrEnum):
    """What became of a configuration that was read again."""

    OK = "ok"
    REFUSED = "refused"
    UNCHANGED = "unchanged"


class HealthMeter:
    """What `/readyz` says."""

    def __init__(self, registry: Registry) -> None:
        self._ready = registry.gauge("tidegate_ready", "1 while clients should be sent here, as /readyz says.")
        self._degraded = registry.gauge("tidegate_degraded", "1 while ready with complaints, as /readyz says.")
        conditions = registry.gauges(
            "tidegate_condition_state", "What readiness depends on: 1 for the state that holds.", "condition", "state"
        )
        self._conditions = Children[tuple[str, str]](conditions, LabelLimit(_CONDITIONS_MAX))
        self._partition_problems = registry.gauge(
            "tidegate_metadata_partition_problems", "Metadata partitions that are not being read."
        )
        self._troubles = registry.gauge_by(
            "tidegate_trouble", "1 while it lasts; docs/operate/monitor.md#troubles tells each.", "id", TroubleId
        )
        for condition in _CONDITIONS:
            self.on_condition(condition, _PENDING)

    def on_state(self, ready: bool, degraded: bool) -> None:
        """Clients should be sent here, or not; something is served worse than it should be, or not."""
        self._ready.value = ready
        self._degraded.value = degraded

    def on_condition(self, condition: str, state: str) -> None:
        """A condition (`catalog`, `upstream`, `tier`, `tasks`) is now `pending`, `met` or `degraded`."""
        for possible in _CONDITION_STATES:
            self._conditions[condition, possible].value = possible == state

    def on_partition_problems(self, count: int) -> None:
        """Note how many metadata partitions are not being read."""
        self._partition_problems.value = count

    def on_troubles(self, lasting: Container[TroubleId]) -> None:
        """These last now, and no others."""
        for trouble in TroubleId:
            self._troubles[trouble].value = trouble in lasting


class ConfigMeter:
    """The configuration file, while the process runs."""

    def __init__(self, registry: Registry) -> None:
        self._reloads = registry.counter_by(
            "tidegate_config_reloads", "Times that the configuration was read again.", "outcome", ReloadOutcome
        )
        self._reloaded_at = registry.gauge(
            "tidegate_config_reload_timestamp_seconds",
            "Unix time of the last accepted change of the configuration; 0: none.",
        )
        self._restart_needed = registry.gauge(
            "tidegate_config_restart_needed", "Changed configuration keys that wait for a restart."
        )

    def on_reload(self, outcome: ReloadOutcome, at_s: float, restart_needed: int) -> None:
        """The configuration was read again.

        Args:
            at_s: Unix time.
            restart_needed: keys that differ from what runs and cannot change while it runs.
        """
        self._reloads[outcome].value += 1
        if outcome is not ReloadOutcome.REFUSED:
            self._reloaded_at.value = at_s
        self._restart_needed.value = restart_needed


class TlsMeter:
    """Certificates in use, and who receives from the store."""

    def __init__(self, registry: Registry) -> None:
        expiry = registry.gauges(
            "tidegate_certificate_expiry_timestamp_seconds",
            "Unix time at which a certificate expires, by the key that names it.",
            "key",
        )
        self._expiry = Children[str](expiry, LabelLimit(_CERTIFICATES_MAX))
        self._python = registry.gauge(
            "tidegate_store_tls_python", "1 while Python's ssl receives TLS from the store, not OpenSSL."
        )

    def on_certificate(self, key: str, expires_at_s: float) -> None:
        """The certificate that configuration key `key` names is in use until `expires_at_s`, Unix time."""
        self._expiry[key].value = expires_at_s

    def on_store(self, *, is_python: bool) -> None:
        """Note who receives from the store over TLS."""
        self._python.value = is_python


class AuditOutcome(enum.StrEnum):
    """What became of a line."""

    WRITTEN = "written"
    DROPPED = "dropped"


class AuditMeter:
    """Lines of the audit log."""

    def __init__(self, registry: Registry) -> None:
        self._lines = registry.counter_by(
            "tidegate_audit_lines", "Lines of the audit log; dropped ones are lost.", "outcome", AuditOutcome
        )

    def on_lines(self, outcome: AuditOutcome, count: int) -> None:
        """Count lines that were written, or could not be."""
        self._lines[outcome].value += count


class TaskMeter:
    """Background tasks that failed (proxy.tasks)."""

    def __init__(self, registry: Registry) -> None:
        failures = registry.counters("tidegate_task_failures", "Times that a background task failed.", "task")
        self._failures = Children[str](failures, LabelLimit(_TASKS_MAX))

    def on_begins(self, task: str) -> None:
        """There is such a task."""
        self._failures[task].value += 0

    def on_failure(self, task: str) -> None:
        """It failed."""
        self._failures[task].value += 1


class LoopMeter:
    """The event loop's punctuality, and what it was not held up for."""

    def __init__(self, registry: Registry) -> None:
        self._stall = registry.histogram(
            "tidegate_loop_stall_seconds", "How late the event loop woke a task that slept."
        )
        self._latest: deque[float] = deque([0.0], maxlen=_STALL_WINDOW)
        self._tasks = registry.gauge("tidegate_tasks", "Tasks of the event loop.")
        self._log_lines_lost = registry.counter(
            "tidegate_log_lines_lost", "Log lines that nobody read in time from standard error."
        )
        registry.gauge(
            "tidegate_loop_stall_max_seconds", "The latest waking in about a minute."
        ).ask = self._stall_max_s

    def on_woken(self, lateness_s: float) -> None:
        """A task that slept was woken this much too late."""
        self._stall.observe(lateness_s)
        self._latest.append(lateness_s)

    def on_tasks(self, count: int) -> None:
        """Note how many tasks live in the event loop."""
        self._tasks.value = count

    def on_log_lines_lost(self, lines: int) -> None:
        """Count lines that are lost."""
        self._log_lines_lost.value += lines

    def _stall_max_s(self) -> float:
        return max(self._latest.copy())  # it is a scrape's thread that asks


class WorkersMeter:
    """The processes that serve clients, where there are several (`proxy.workers`); the supervisor feeds it."""

    def __init__(self, registry: Registry) -> None:
        up = registry.gauges("tidegate_worker_up", "1 while the worker takes connections.", "worker")
        connections = registry.gauges("tidegate_worker_connections", "Client connections of the worker.", "worker")
        deaths = registry.counters("tidegate_worker_deaths", "Times that the worker died.", "worker")
        limit = LabelLimit(_WORKERS_MAX)
        self._up = Children[str](up, limit)
        self._connections = Children[str](connections, limit)
        self._deaths = Children[str](deaths, limit)

    def on_worker(self, worker: str, is_up: bool, connections: int) -> None:
        """The worker takes connections or does not, and has so many."""
        self._up[worker].value = is_up
        self._connections[worker].value = connections

    def on_begins(self, worker: str) -> None:
        """There is such a worker; it has not died yet."""
        self._deaths[worker].value += 0

    def on_death(self, worker: str) -> None:
        """It ended without being told to."""
        self._deaths[worker].value += 1


class ProcessMeter:
    """The process's memory, CPU time and open files, Python's garbage collector, and what build this is."""

    def __init__(self, registry: Registry) -> None:
        registry.add_process()
        build_info = registry.gauges(
            "tidegate_build_info", "1, with Tidegate's version and Python's.", "version", "python"
        )
        build_info.labels(_own_version(), platform.python_version()).value = 1


def _own_version() -> str:
    try:
        return importlib.metadata.version("tidegate")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
