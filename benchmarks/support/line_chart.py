"""A line chart as SVG: a logarithmic axis of sizes, and what was measured at each; readable on light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 36, 34, 44
COLOURS = ("#2f81f7", "#d1242f", "#1a7f37", "#9a6700")
INK = "#7d8590"

Points = Sequence[tuple[float, float]]


def line_chart(title: str, series: Mapping[str, Points], *, x_name: str, y_is_log: bool = False) -> str:
    """A line for each series. A point at 0 stands at the left edge, as a logarithmic axis has no place for it."""
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    low, high = (min(y for y in ys if y > 0), max(ys)) if y_is_log else (0.0, max(ys))
    ticks = _decades(low, high) if y_is_log else _steps(high)
    bottom, top = (math.log10(ticks[0]), math.log10(ticks[-1])) if y_is_log else (0.0, ticks[-1])
    first, last = math.log10(min(x for x in xs if x > 0)), math.log10(xs[-1])

    def across(x: float) -> float:
        share = (math.log10(x) - first) / (last - first) if x > 0 and last > first else 0.0
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        value = math.log10(max(y, ticks[0])) if y_is_log else y
        return HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 14, title, anchor="start", weight="bold")]
    for tick in ticks:
        parts.append(f'<path d="M{LEFT} {down(tick):.1f}H{WIDTH - RIGHT}" stroke="{INK}" stroke-opacity="0.3"/>')
        parts.append(_text(LEFT - 6, down(tick) + 4, f"{tick:,.6g}", anchor="end"))
    parts += [_text(across(x), HEIGHT - BOTTOM + 16, f"{x:,.3g}" if x < 1000 else f"{x:,.0f}") for x in xs]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name))
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in sorted(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        at = LEFT + number * (WIDTH - LEFT - RIGHT) / len(series)
        parts.append(_text(at, 29, f"● {name}", anchor="start", fill=colour))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
    return "\n".join([head + 'font-size="12">', *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, *, anchor: str = "middle", fill: str = INK, weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _steps(high: float) -> list[float]:
    """From 0 to what holds the highest, four to eight of them, of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high or 1.0))
    step = next(each for each in (power / 5, power / 2, power, 2 * power) if high / each <= 6)
    return [number * step for number in range(math.ceil(high / step) + 1)]
