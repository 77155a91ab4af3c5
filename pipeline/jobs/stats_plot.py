"""The picture of `stats`: bytes and records by day, stacked by topic and by codec, and how large batches are.

Matplotlib's Agg canvas, without pyplot: no display, no state that a session would keep.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from pipeline.jobs.segment_stats import CODECS

LAYERS_MAX: Final = 8
"""Topics with a colour of their own; the rest are one."""
OTHERS: Final = "others"
EPOCH: Final = datetime.date(1970, 1, 1)
DAYS_MIN: Final = 8
"""That the axis has room for."""
TICKS_MAX: Final = 6

_COLOURS: Final = ("#2f6d9e", "#e08e45", "#4f9d69", "#b5495b", "#8067a9", "#c6a63a", "#4aa5b5", "#8a6d55", "#9a9a9a")
_CODEC_COLOURS: Final = dict(zip(CODECS, ("#9a9a9a", "#e08e45", "#c6a63a", "#4f9d69", "#2f6d9e"), strict=True))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS: Final = ("", "k", "M", "G", "T")

Row: TypeAlias = Mapping[str, Any]
Layers: TypeAlias = dict[str, dict[datetime.date, int]]


def plot_stats(path: Path, *, topics: Sequence[Row], codecs: Sequence[Row], sizes: Sequence[Row]) -> None:
    """Draw, and write a PNG.

    Args:
        topics: day, topic, records, bytes.
        codecs: day, codec, records, bytes.
        sizes: size_class, batches, records, bytes.

    Raises:
        OSError: the file cannot be written.
    """
    with matplotlib.rc_context({"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold"}):
        figure = Figure(figsize=(13, 8), dpi=120, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        ((of_bytes, of_records), (of_codecs, of_sizes)) = figure.subplots(2, 2)
        own = largest(topics, "topic", "bytes")
        colours = dict(zip([*own, OTHERS], _COLOURS, strict=False))
        _stack(of_bytes, layers(topics, "topic", "bytes", own), "Bytes a day, by topic", 1024, colours)
        _stack(of_records, layers(topics, "topic", "records", own), "Records a day, by topic", 1000, colours)
        _legend(of_records)
        by_codec = layers(codecs, "codec", "bytes", largest(codecs, "codec", "bytes"))
        others = dict.fromkeys(by_codec, _COLOURS[-2])
        _stack(of_codecs, by_codec, "Bytes a day, by codec", 1024, {**others, **_CODEC_COLOURS})
        _legend(of_codecs)
        _distribution(of_sizes, sizes)
        figure.suptitle(_title(topics))
        canvas.print_png(str(path))  # type: ignore[no-untyped-call]  # matplotlib left this one out


def largest(rows: Sequence[Row], key: str, value: str) -> list[str]:
    """The keys that have a colour of their own, the largest first."""
    totals: dict[str, int] = {}
    for row in rows:
        if row["day"] is not None:
            totals[row[key]] = totals.get(row[key], 0) + row[value]
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return ordered if len(ordered) <= LAYERS_MAX else ordered[: LAYERS_MAX - 1]


def layers(rows: Sequence[Row], key: str, value: str, own: Sequence[str]) -> Layers:
    """Each key's value by day, in the order of `own`; the others are together. What has no day is left out."""
    found: Layers = {name: {} for name in own}
    for row in rows:
        if row["day"] is not None:
            layer = found.setdefault(row[key] if row[key] in own else OTHERS, {})
            layer[row["day"]] = layer.get(row["day"], 0) + row[value]
    return found


def scaled_bytes(value: float, _position: object = None) -> str:
    """1.5 MiB."""
    return _scaled(value, 1024, _SIZES)


def scaled_count(value: float, _position: object = None) -> str:
    """1.5M."""
    return _scaled(value, 1000, _COUNTS).replace(" ", "")


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    at = 0
    while abs(value) >= base and at < len(units) - 1:
        value /= base
        at += 1
    return f"{value:.3g} {units[at]}"


def _stack(axes: Axes, found: Layers, title: str, base: int, colours: Mapping[str, str]) -> None:
    axes.set_title(title, loc="left")
    days = sorted({day for layer in found.values() for day in layer})
    if not days:
        _nothing(axes)
        return
    at = [float((day - EPOCH).days) for day in days]
    bottom = [0.0] * len(days)
    for name, layer in found.items():
        heights = [float(layer.get(day, 0)) for day in days]
        axes.bar(at, heights, width=0.9, bottom=bottom, label=name, color=colours[name])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    ticks = day_ticks(days)
    axes.set_xticks([(day - EPOCH).days for day in ticks], [day.isoformat() for day in ticks])
    # A few days are bars, and not walls.
    margin = max(1.0, (DAYS_MIN - (at[-1] - at[0])) / 2)
    axes.set_xlim(at[0] - margin, at[-1] + margin)
    axes.yaxis.set_major_locator(MultipleLocator(round_step(max(bottom), base)))
    axes.yaxis.set_major_formatter(FuncFormatter(scaled_bytes if base == 1024 else scaled_count))
    axes.set_ylim(0, max(bottom) * 1.05 or 1)
    _tidy(axes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        # Beside the bars, not on them; in the order in which they are stacked.
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, reverse=True)


def day_ticks(days: Sequence[datetime.date]) -> list[datetime.date]:
    """TICKS_MAX days at even distances, the first among them; of few days each."""
    if len(days) <= TICKS_MAX:
        return list(days)
    step = -(-((days[-1] - days[0]).days + 1) // TICKS_MAX)
    return [days[0] + datetime.timedelta(days=at) for at in range(0, (days[-1] - days[0]).days + 1, step)]


def round_step(highest: float, base: int) -> float:
    """The distance of TICKS_MAX marks at most up to `highest`, of 1, 2 or 5 times a power of ten of its unit."""
    unit = 1.0
    while highest >= unit * base:
        unit *= base
    wanted = max(highest / unit, 1e-9) / TICKS_MAX
    power = 10.0 ** math.floor(math.log10(wanted))
    return unit * power * next(times for times in (1, 2, 5, 10) if times * power >= wanted)


def _distribution(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_title("Batches by size, and what part of all bytes they are", loc="left")
    if not rows:
        _nothing(axes)
        return
    exponents = range(min(_exponent(row) for row in rows), max(_exponent(row) for row in rows) + 1)
    by_exponent = {_exponent(row): row for row in rows}
    batches = sum(row["batches"] for row in rows)
    total = sum(row["bytes"] for row in rows)
    for offset, name, whole, colour in ((-0.2, "batches", batches, _COLOURS[0]), (0.2, "bytes", total, _COLOURS[1])):
        parts = [by_exponent[each][name] / whole if each in by_exponent else 0.0 for each in exponents]
        axes.bar([each + offset for each in exponents], parts, width=0.4, label=name, color=colour)
    axes.set_xticks(list(exponents), [f"≤ {scaled_bytes(2**each)}" for each in exponents], rotation=30, ha="right")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    _tidy(axes)
    axes.legend(loc="upper left", fontsize=8)


def _exponent(row: Row) -> int:
    return int(row["size_class"]).bit_length() - 1


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _nothing(axes: Axes) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing with a time", ha="center", va="center", transform=axes.transAxes, color="#777777")


def _title(topics: Sequence[Row]) -> str:
    size, records = sum(row["bytes"] for row in topics), sum(row["records"] for row in topics)
    names = {row["topic"] for row in topics}
    without = sum(row["bytes"] for row in topics if row["day"] is None)
    told = f"{len(names)} topics" if len(names) != 1 else next(iter(names))
    told += f": {scaled_bytes(size)} in the tier, {scaled_count(records)} records"
    return told + (f" ({scaled_bytes(without)} without a time are in no bar)" if without else "")
