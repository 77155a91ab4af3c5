"""What one Tidegate asked of the store, by its own counters, and its peak RSS by /proc (Linux only)."""

import urllib.request
from dataclasses import dataclass, fields
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from metrics.get_meter import GetObject, GetOutcome
from tools.demo.tidegate_process import Tidegate

_TIMEOUT_S = 10.0
_FAILED = set(GetOutcome) - {GetOutcome.OK, GetOutcome.CANCELLED}


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Since it was started. `peak_rss_bytes` is its greatest so far, also in a difference."""

    served_bytes: int
    log_gets: int
    manifest_gets: int
    index_gets: int
    log_get_bytes: int
    get_errors: int
    get_retries: int
    hedges: int
    fallback_reads: int
    """That a broker did."""
    fallback_refused: int
    """That a client was told to try again later."""
    readahead_used_bytes: int
    readahead_wasted_bytes: int
    peak_rss_bytes: int

    @property
    def other_gets(self) -> int:
        """Return the GETs of manifests and indexes."""
        return self.manifest_gets + self.index_gets

    @property
    def gets(self) -> int:
        return self.log_gets + self.other_gets

    def since(self, earlier: "TierUsage") -> "TierUsage":
        """Return what came after an earlier look; the peak stays what it is."""
        differences = {each.name: getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)}
        return TierUsage(**{**differences, "peak_rss_bytes": self.peak_rss_bytes})


def tier_usage(tidegate: Tidegate) -> TierUsage:
    """As it is now."""
    with urllib.request.urlopen(f"http://{tidegate.admin_address}/metrics", timeout=_TIMEOUT_S) as answer:
        samples = _samples(answer.read().decode())

    def total(name: str, label: str = "") -> int:
        return int(sum(value for (found, labels), value in samples.items() if found == name and label in labels))

    return TierUsage(
        served_bytes=total("tidegate_served_tier_bytes_total"),
        log_gets=total("tidegate_gets_total", GetObject.LOG),
        manifest_gets=total("tidegate_gets_total", GetObject.MANIFEST),
        index_gets=total("tidegate_gets_total", GetObject.INDEX),
        log_get_bytes=total("tidegate_get_bytes_total"),
        get_errors=sum(total("tidegate_gets_total", outcome) for outcome in _FAILED),
        get_retries=total("tidegate_get_retries_total"),
        hedges=total("tidegate_get_hedges_total"),
        fallback_reads=total("tidegate_fallback_reads_total"),
        fallback_refused=total("tidegate_fallback_refused_total"),
        readahead_used_bytes=total("tidegate_readahead_used_bytes_total"),
        readahead_wasted_bytes=total("tidegate_readahead_wasted_bytes_total"),
        peak_rss_bytes=peak_rss_bytes(tidegate.pid),
    )


def _samples(exposition: str) -> dict[tuple[str, frozenset[str]], float]:
    """Values by name and the values of their labels."""
    return {
        (sample.name, frozenset({*sample.labels.values(), ""})): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def peak_rss_bytes(pid: int) -> int:
    """VmHWM of proc(5); 0 where there is no /proc."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except FileNotFoundError:
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == "VmHWM:"), 0)
