"""Probes of the process: health, configuration, certificates, the loop; see `metrics.probes` for the rules."""

import enum
import importlib.metadata
import platform
import threading
from collections import deque

from prometheus_client import Gauge

from metrics import tidegate_names as names
from metrics.registry import Children, LabelLimit, Registry

_CONDITIONS_MAX = 8
"""Readiness has three."""

_CERTIFICATES_MAX = 64
"""Configuration keys that name one; there is a handful."""

_STALL_WINDOW = 600
"""Wakings that the stall gauge looks back on: a minute at ten a second."""

_CONDITIONS = ("catalog", "upstream", "tier")
_PENDING = "pending"
_CONDITION_STATES = (_PENDING, "met", "degraded")
"""The values of `proxy.readiness`, which this package may not import; a test of the proxy holds them equal."""


class ReloadOutcome(enum.StrEnum):
    """What became of a configuration that was read again."""

    OK = "ok"
    REFUSED = "refused"
    UNCHANGED = "unchanged"


class HealthProbe:
    """What `/readyz` says."""

    def __init__(self, registry: Registry) -> None:
        self._ready = registry.gauge(names.READY)
        self._degraded = registry.gauge(names.DEGRADED)
        self._conditions = Children[tuple[str, str], Gauge](
            registry.gauge(names.CONDITION_STATE), LabelLimit(_CONDITIONS_MAX)
        )
        self._partition_problems = registry.gauge(names.METADATA_PARTITION_PROBLEMS)
        for condition in _CONDITIONS:
            self.on_condition(condition, _PENDING)

    def on_state(self, ready: bool, degraded: bool) -> None:
        """Clients should be sent here, or not; something is served worse than it should be, or not."""
        self._ready.set(ready)
        self._degraded.set(degraded)

    def on_condition(self, condition: str, state: str) -> None:
        """A condition (`catalog`, `upstream`, `tier`) is now `pending`, `met` or `degraded`."""
        for possible in _CONDITION_STATES:
            self._conditions[condition, possible].set(possible == state)

    def on_partition_problems(self, count: int) -> None:
        """So many metadata partitions are not being read."""
        self._partition_problems.set(count)


class ConfigProbe:
    """The configuration file, while the process runs."""

    def __init__(self, registry: Registry) -> None:
        self._reloads = registry.enumerated_counter(names.CONFIG_RELOADS, ReloadOutcome)
        self._reloaded_at = registry.gauge(names.CONFIG_RELOAD_TIMESTAMP)
        self._restart_needed = registry.gauge(names.CONFIG_RESTART_NEEDED)

    def on_reload(self, outcome: ReloadOutcome, at_s: float, restart_needed: int) -> None:
        """The configuration was read again.

        Args:
            at_s: Unix time.
            restart_needed: keys that differ from what runs and cannot change while it runs.
        """
        self._reloads[outcome].inc()
        if outcome is not ReloadOutcome.REFUSED:
            self._reloaded_at.set(at_s)
        self._restart_needed.set(restart_needed)


class TlsProbe:
    """Certificates in use."""

    def __init__(self, registry: Registry) -> None:
        self._expiry = Children[str, Gauge](registry.gauge(names.CERTIFICATE_EXPIRY), LabelLimit(_CERTIFICATES_MAX))

    def on_certificate(self, key: str, expires_at_s: float) -> None:
        """The certificate that configuration key `key` names is in use until `expires_at_s`, Unix time."""
        self._expiry[key].set(expires_at_s)


class LoopProbe:
    """The event loop's punctuality."""

    def __init__(self, registry: Registry) -> None:
        self._stall = registry.histogram(names.LOOP_STALL_SECONDS)
        self._latest: deque[float] = deque([0.0], maxlen=_STALL_WINDOW)
        self._lock = threading.Lock()
        self._tasks = registry.gauge(names.TASKS)
        registry.gauge(names.LOOP_STALL_MAX_SECONDS).set_function(self._stall_max_s)

    def on_woken(self, lateness_s: float) -> None:
        """A task that slept was woken this much too late."""
        self._stall.observe(lateness_s)
        with self._lock:
            self._latest.append(lateness_s)

    def on_tasks(self, count: int) -> None:
        """So many tasks live in the event loop."""
        self._tasks.set(count)

    def _stall_max_s(self) -> float:
        with self._lock:
            return max(self._latest)


class ProcessProbe:
    """The process's memory, CPU time and open files, Python's garbage collector, and what build this is."""

    def __init__(self, registry: Registry) -> None:
        registry.add_process()
        registry.gauge(names.BUILD_INFO).labels(_own_version(), platform.python_version()).set(1)


def _own_version() -> str:
    try:
        return importlib.metadata.version("tidegate")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
