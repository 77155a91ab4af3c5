"""Writes docs/metrics.md: `python -m tools.metrics_reference > docs/metrics.md`.

KIP-405's metrics, and what meters declare in the order of `/metrics`. A test holds the file current.
"""

import sys
from collections.abc import Iterable

from metrics.copy_meters import CopyMeter, MetadataTopicMeter
from metrics.kip405 import EXPORTED, Family
from metrics.meters import Meters
from metrics.registry import OTHER_LABEL, TOPICS_MAX, Registry
from metrics.series import LATENCY_BUCKETS_S

_BUCKETS = ", ".join(f"{bound_s:g}" for bound_s in LATENCY_BUCKETS_S)

_HEAD = f"""\
# Metrics

<!-- Made by `python -m tools.metrics_reference > docs/metrics.md` out of `metrics`; edits here are lost. -->

`/metrics` on `admin.listen` speaks Prometheus' text format and OpenMetrics. A name that ends with `_total` is a
counter, with `_bucket` a histogram; all others are gauges. Braces hold the labels.

- KIP-405's metrics have the names that Strimzi's jmx_exporter rules give a broker's, so dashboards fit as they are.
  `metrics.kip405.names=original` exports the renamed ones under KIP-405's first names, `both` under both.
- Series are per topic only, so `sum()` is right. A broker also exports their sum without the label, which counts twice.
- The first `metrics.topics.max` ({TOPICS_MAX} unless set) topics get series of their own, the rest share the topic
  `{OTHER_LABEL}`, as other labels with limits do.
- A series with an enumerated label is there from the start, at 0; others appear with their first value. What a copier
  feeds is exported where a copier runs (standalone mode).
- Durations have the upper bounds {_BUCKETS} s.
- `process_*` (memory, CPU time, open files; Linux only) and `python_gc_*` are prometheus-client's own.
"""


def reference() -> str:
    """The whole file."""
    own = [family for family in Meters().registry.families if family.name.startswith("tidegate_")]
    of_copier = Registry()
    CopyMeter(of_copier)
    MetadataTopicMeter(of_copier)
    copiers = [family for family in of_copier.families if family.name.startswith("tidegate_")]
    renamed = [(row.family, f"`{row.original_name}_total`") for row in EXPORTED if row.original_name]
    parts = [
        _HEAD,
        "## KIP-405\n",
        _list(dict.fromkeys(row.family for row in EXPORTED)),
        "The timer has `_count`, `_sum` and quantiles 0.5 to 0.999 of the last 1028 reads. Renamed since KIP-405:\n",
        "".join(f"- `{family.exposed_name}`: first {first_name}\n" for family, first_name in renamed),
        "## Tidegate's own\n",
        _list(own),
        "## The copier's own\n",
        "In standalone mode; `tidegate_metadata_topic_unsafe` also where such a tier is served.\n",
        _list(copiers),
    ]
    return "\n".join(parts)


def _list(families: Iterable[Family]) -> str:
    lines = ""
    for family in families:
        labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
        lines += f"- `{family.exposed_name}{labels}`: {family.help}\n"
    return lines


if __name__ == "__main__":
    sys.stdout.write(reference())
