"""What one Tidegate asked of the store, by its own counters, and its peak RSS by /proc (Linux only)."""

import urllib.request
from dataclasses import dataclass, fields
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from metrics import tidegate_names
from metrics import tier_names as names
from metrics.get_probe import GetObject, GetOutcome
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
        """Of manifests and indexes."""
        return self.manifest_gets + self.index_gets

    @property
    def gets(self) -> int:
        return self.log_gets + self.other_gets

    def since(self, earlier: "TierUsage") -> "TierUsage":
        """What came after an earlier look; the peak stays what it is."""
        differences = {each.name: getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)}
        return TierUsage(**{**differences, "peak_rss_bytes": self.peak_rss_bytes})


def tier_usage(tidegate: Tidegate) -> TierUsage:
    """As it is now."""
    with urllib.request.urlopen(f"http://{tidegate.admin_address}/metrics", timeout=_TIMEOUT_S) as answer:
        samples = _samples(answer.read().decode())

    def total(name: str, label: str = "") -> int:
        return int(sum(value for (found, labels), value in samples.items() if found == name and label in labels))

    return TierUsage(
        served_bytes=total(tidegate_names.SERVED_TIER_BYTES.exposed_name),
        log_gets=total(names.GETS.exposed_name, GetObject.LOG),
        manifest_gets=total(names.GETS.exposed_name, GetObject.MANIFEST),
        index_gets=total(names.GETS.exposed_name, GetObject.INDEX),
        log_get_bytes=total(names.GET_BYTES.exposed_name),
        get_errors=sum(total(names.GETS.exposed_name, outcome) for outcome in _FAILED),
        get_retries=total(names.GET_RETRIES.exposed_name),
        hedges=total(names.GET_HEDGES.exposed_name),
        fallback_reads=total(tidegate_names.FALLBACK_READS.exposed_name),
        fallback_refused=total(tidegate_names.FALLBACK_REFUSED.exposed_name),
        readahead_used_bytes=total(names.READAHEAD_USED_BYTES.exposed_name),
        readahead_wasted_bytes=total(names.READAHEAD_WASTED_BYTES.exposed_name),
        peak_rss_bytes=_peak_rss_bytes(tidegate.pid),
    )


def _samples(exposition: str) -> dict[tuple[str, frozenset[str]], float]:
    """Values by name and the values of their labels."""
    return {
        (sample.name, frozenset({*sample.labels.values(), ""})): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def _peak_rss_bytes(pid: int) -> int:
    """VmHWM of proc(5); 0 where there is no /proc."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except FileNotFoundError:
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == "VmHWM:"), 0)
