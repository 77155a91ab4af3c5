"""Write what the benchmarks have saved into README.md, docs/performance.md and docs/cost.md: tables, and charts.

    python benchmarks/publish.py

It measures nothing: `make bench` runs what it reads, docs/performance/*.jsonl, and then this. A table stands between a
comment with its name and the next comment. So no figure of these tables is typed, and a test compares them.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.line_chart import Points, line_chart
from benchmarks.support.published import FOLDER, ROOT, Figures, load

PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "docs" / "cost.md")
SHORT = ("relay", "memory", "cold-http", "cold-https")
"""The ways that README has."""
TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

CHARTS: Mapping[str, tuple[str, str, Sequence[str], bool]] = {
    "connections": (
        "core-seconds a GB, by readers at once",
        "connections, each reading as fast as it can",
        ("connections, relay, core-s/GB", "connections, memory, core-s/GB"),
        False,
    ),
    "idle": ("memory of idle connections, MiB", "connections", ("idle connections, MiB",), False),
    "partitions": (
        "processor time of one Fetch, ms",
        "partitions in the Fetch",
        ("partitions, all local, incremental, ms", "partitions, all local, full, ms", "partitions, all tier, full, ms"),
        True,
    ),
    "batches": (
        "core-seconds a GB, by the size of record batches",
        "KiB in a batch",
        ("batches, cold, core-s/GB", "batches, memory, core-s/GB"),
        False,
    ),
    "start": (
        "core-seconds until ready, by segments in the catalog",
        "segments",
        ("segments, ready from the topic, core-s", "segments, ready from the snapshot, core-s"),
        True,
    ),
    "catalog": (
        "peak memory of the process, MiB, by segments in the catalog",
        "segments",
        ("segments, from the topic, MiB", "segments, from the snapshot, MiB"),
        False,
    ),
    "lookups": (
        "core-seconds a GB from memory, by segments in the catalog",
        "segments",
        ("segments, memory, core-s/GB",),
        False,
    ),
}
"""By file: title, what the axis has, which series of growth.jsonl, and whether the other axis is logarithmic, too."""


def main() -> int:
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


def documents() -> dict[Path, str]:
    """Every file that has figures, as it has to be."""
    found = {FOLDER / f"{name}.svg": chart(name) for name in CHARTS}
    for path in PAGES:
        found[path] = TABLE.sub(lambda table: f"{table[1]}{TABLES[table[2]]()}\n{table[3]}", path.read_text("utf-8"))
    return found


def growth() -> dict[str, list[tuple[float, float]]]:
    """Points by series."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in load(FOLDER / "growth.jsonl"):
        series[row["series"]].append((row["x"], row["y"]))
    return series


def chart(name: str) -> str:
    """One of CHARTS, with its series named by what they differ in."""
    title, x_name, names, is_log = CHARTS[name]
    known = growth()
    lines: dict[str, Points] = {each.split(", ", 1)[1].rpartition(", ")[0] or each: known[each] for each in names}
    return line_chart(title, lines, x_name=x_name, y_is_log=is_log)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, the first column to the left."""
    lines = (headings, ("---", *["---:"] * (len(headings) - 1)), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def short_costs() -> str:
    """README's: what goes through a core in a second, and its cost beside the floor's."""
    return table(
        ("way", "MB/s per core", "of the floor's processor time", "floor"),
        [
            (row["way"], per_core(row), f"{row['ratio']:.2f} ×", row["floor"])
            for row in load(FOLDER / "cost.jsonl")
            if row["row"] in SHORT
        ],
    )


def terabyte() -> str:
    """Return what 1,000 GB take."""
    return table(
        ("way", "core-hours per TB", "MB/s per core"),
        [(row["way"], f"{row['core_s_per_gb'] / 3.6:.2f}", per_core(row)) for row in load(FOLDER / "cost.jsonl")],
    )


def per_core(row: Figures) -> str:
    return f"{1000 / row['core_s_per_gb']:,.0f}"


def costs() -> str:
    """All of a row, with aims."""
    return table(
        ("way", "core-s/GB (least to most)", "floor", "of the floor's", "bare work", "aim", "MB/s (floor's)"),
        [
            (
                f"{row['way']} (`{row['row']}`)",
                f"{row['core_s_per_gb']:.2f} ({row['least']:.2f} to {row['most']:.2f})",
                f"{row['floor']}: {row['floor_core_s_per_gb']:.2f}",
                f"{row['ratio']:.2f} ×" if is_of_cost(row) else f"{row['ratio']:.2f} × its MB/s",
                f"{row['bare_ratio']:.2f} ×" if "bare_ratio" in row else "–",
                f"{'≤' if is_of_cost(row) else '≥'} {row['aim']:g} ×",
                f"{row['megabytes_per_s']:,.0f} ({row['floor_megabytes_per_s']:,.0f})",
            )
            for row in load(FOLDER / "cost.jsonl")
        ],
    )


def is_of_cost(row: Figures) -> bool:
    """Return whether core-seconds are compared; else MB/s are."""
    return bool(row["counts"] == "core_s_per_gb")


def workers() -> str:
    """Two beside one."""
    return table(
        (
            "load",
            "1 worker: core-s/GB",
            "2: of one's (aim ≤ 1.1 ×)",
            "bytes of the busier (aim ≤ 55 %)",
            "the supervisor",
        ),
        [
            (
                row["row"],
                f"{row['one_core_s_per_gb']:.2f}",
                f"{row['cost_of_two']:.2f} ×",
                f"{row['busiest']:.0%}",
                f"{row['serial_cores']:.3f} cores",
            )
            for row in load(FOLDER / "workers.jsonl")
        ],
    )


def ends() -> str:
    """Which resource ends first."""
    cost = {row["row"]: row["core_s_per_gb"] for row in load(FOLDER / "cost.jsonl")}
    series = growth()

    def per(name: str) -> float:
        (few, less), (many, more) = min(series[name]), max(series[name])
        return (more - less) / (many - few)

    connection_kib, segment_bytes = per("idle connections, MiB") * 1024, per("segments, from the topic, MiB") * 2**20
    starts = {origin: max(series[f"segments, ready from the {origin}, core-s"]) for origin in ("topic", "snapshot")}
    core = ("a core", "bytes")
    return table(
        ("what ends", "grows with", "measured", "where it ends"),
        [
            (*core, f"relay {cost['relay']:.2f} core-s/GB", f"{1000 / cost['relay']:,.0f} MB/s for each worker"),
            (*core, f"from memory {cost['memory']:.2f}", f"{1000 / cost['memory']:,.0f} MB/s for each worker"),
            (*core, f"cold, HTTPS {cost['cold-https']:.2f}", f"{1000 / cost['cold-https']:,.0f} MB/s for each core"),
            (
                "a network of 10 Gbit/s",
                "bytes",
                "1,250 MB/s",
                f"with {1.25 * cost['relay']:.1f} cores of relay, {1.25 * cost['cold-https']:.1f} of cold HTTPS",
            ),
            (
                "memory",
                "connections",
                f"{connection_kib:.0f} KiB for an idle one",
                f"{connection_kib * 4096 / 1024:,.0f} MiB with `proxy.connections.max` (4096)",
            ),
            (
                "memory",
                "segments",
                f"{segment_bytes:,.0f} bytes each",
                f"{segment_bytes * 1e6 / 2**20:,.0f} MiB with 1,000,000, in each worker",
            ),
            (
                "the time until ready",
                "segments",
                "by itself, on a core of its own",
                "; ".join(
                    f"{spent_s:.1f} s from the {name} with {many:,.0f}" for name, (many, spent_s) in starts.items()
                ),
            ),
        ],
    )


def machines() -> str:
    """Return the machines that were measured on, with the versions that were measured there."""
    rows = [row for path in sorted(FOLDER.glob("*.jsonl")) for row in load(path)]
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        found[row["machine"]].add(f"{row['date']}, {row['commit']}")
    return "\n".join(f"- {machine}: {'; '.join(sorted(found[machine]))}" for machine in sorted(found))


TABLES: Mapping[str, Callable[[], str]] = {
    "short_costs": short_costs,
    "terabyte": terabyte,
    "costs": costs,
    "workers": workers,
    "ends": ends,
    "machines": machines,
}


if __name__ == "__main__":
    sys.exit(main())
