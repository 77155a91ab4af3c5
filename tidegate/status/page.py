"""The status page as HTML, from the document alone: one page, nothing from elsewhere, no script.

All text goes through `_e`: topic names, reasons of brokers and stores, client addresses. What a browser would do with
one that slipped through is forbidden by the headers. A row that cannot be shown says so in its place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import urlencode

import structlog

from storage.sizes import shown_size
from tidegate.status.model import PartitionStatus, Status, failed_last, read_least

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}

REFRESH_S: Final = 5

_WORDS_MAX: Final = 240
"""For a reason, where it stands beside others; `/status.json` has all of it."""

_TROUBLE_MAX: Final = 600
"""For a trouble, which is at the top."""

_STYLE: Final = """
:root{color-scheme:light dark;--line:#8886;--bad:#c62828;--warn:#b26a00;--good:#2e7d32;--tier:#1565c0;--gone:#8888}
*{box-sizing:border-box}body{font:15px/1.4 system-ui,sans-serif;margin:0 auto;padding:12px;max-width:1240px}
h1 small{font-weight:normal;opacity:.75}
h1{font-size:1.3rem;margin:0 0 8px}h2{font-size:1.05rem;margin:20px 0 6px}p{margin:4px 0}
td,dd,li,h1{overflow-wrap:anywhere}.pill{color:#fff;border-radius:4px;padding:2px 8px;white-space:nowrap}
.good{background:var(--good)}.warn{background:var(--warn)}.bad{background:var(--bad)}
dl{display:grid;grid-template-columns:6.5rem 1fr;gap:4px 8px;margin:0}dt{font-weight:600}dd{margin:0}
ul.trouble{list-style:none;margin:10px 0;padding:0}ul.trouble li{border-left:5px solid var(--warn);padding:3px 8px;
margin:3px 0;background:#b26a0014}ul.trouble li.critical{border-color:var(--bad);background:#c6282814}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:3px 8px;border-bottom:1px solid var(--line);
vertical-align:top}.bar{display:flex;height:12px;min-width:120px;background:var(--gone);margin:4px 0}
.bar i{display:block}.bar .tier{background:var(--tier)}.bar .local{background:var(--good)}
.quiet{opacity:.75}form{margin:6px 0}nav{display:flex;flex-wrap:wrap;gap:4px 10px}
@media(max-width:700px){thead{display:none}table,tbody,tr,td{display:block;width:100%}tr{padding:6px 0;
border-bottom:1px solid var(--line)}td{border:0;padding:1px 0}td::before{content:attr(data-is) " ";font-weight:600}}
"""

_log = structlog.get_logger(__name__)

Cell = str
"""HTML of one cell."""


def render_page(status: Status) -> str:
    """The whole page. Takes a few milliseconds: call it in a thread."""
    sections = (
        _answers,
        _troubles,
        _glance,
        _streams,
        _fallbacks,
        _brokers,
        _partitions,
        _copy,
        _cache,
        _limits,
        _catalog,
        _conditions,
        _errors,
    )
    body = "".join(_whole(section, status) for section in sections)
    pages = ("/status.json", "/metrics", "/livez", "/readyz", "/streams")
    links = "".join(f'<a href="{path}">{path}</a>' for path in pages)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tidegate</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><style>{_STYLE}</style></head>'
        f"<body>{body}<h2>More</h2><nav>{links}</nav></body></html>\n"
    )


def _whole(section: Callable[[Status], str], status: Status) -> str:
    try:
        return section(status)
    except Exception as error:
        _log.warning("status_section_failed", section=section.__name__.strip("_"), exc_info=error)
        return f"<p>{_pill('bad', 'not shown')} {_e(section.__name__.strip('_'))}: {_e(repr(error))}</p>"


# What somebody who has never seen the page wants to know.


def _answers(status: Status) -> str:
    if not status["ready"]:
        colour, word = "bad", {"starting": "not ready yet", "draining": "draining"}.get(status["state"], "not ready")
    elif status["troubles"]:
        colour, word = "warn", "ready, with trouble"
    else:
        colour, word = "good", "ready"
    return f'<h1 id="state">Tidegate {_pill(colour, word)} <small>{_e(status["about"]["instance"])}</small></h1>'


def _glance(status: Status) -> str:
    about, traffic = status["about"], status["traffic"]
    store_tls = f"; {about['store_tls']}" if about["store_tls"] else ""
    up_ms = max(0, status["time_ms"] - about["started_ms"])
    readers = _n(status["streams"]["total"])
    lines = {
        "now": f"{_bytes(traffic['tier_bytes_per_s'])}/s from the tier, {traffic['gets_per_s']:,g} GETs/s, "
        f"{readers} readers",
        "saved": f"{_bytes(traffic['tier_bytes'])} that brokers did not have to read, with {_n(traffic['gets'])} GETs",
        "catalog": _metadata_read(status),
        "failed": _last_failure(status),
        "this is": f"version {_e(about['version'])}, up for {_age(up_ms)}, before cluster "
        f"{_e(about['cluster_id'] or '?')}, with the tier {_e(about['tier'] or '?')}{_e(store_tls)}",
    }
    rows = "".join(f'<dt>{word}</dt><dd id="{word.replace(" ", "-")}">{html}</dd>' for word, html in lines.items())
    return f"<dl>{rows}</dl>"


def _metadata_read(status: Status) -> str:
    worst = read_least(status)
    partitions = status["catalog"]["metadata_partitions"]
    condition = status["conditions"].get("catalog", {"state": "met", "reason": ""})
    if worst is None and condition["state"] == "pending":
        return f"not known yet: {_e(_cut(condition['reason']))}"
    if worst is None:
        return f"all {len(partitions)} metadata partitions are read to their end" if partitions else "no metadata topic"
    lag = worst["lag_records"]
    behind = f"{_n(lag)} records behind" if lag is not None else "nobody knows how far behind"
    why = f" ({_e(_cut(worst['problem']))})" if worst["problem"] else ""
    return f"metadata partition {_n(worst['metadata_partition'])}: {behind}{why}"


def _last_failure(status: Status) -> str:
    error = failed_last(status)
    if error is None:
        return "nothing since the start"
    return f"{_age(error['age_ms'])} ago: <b>{_e(error['event'])}</b> {_e(_cut(error['detail']))}"


def _troubles(status: Status) -> str:
    items = "".join(
        f'<li class="{_e(each["severity"])}"><b>{_e(each["about"])}</b>: {_e(_cut(each["what"], _TROUBLE_MAX))} '
        f"<small>{_e(each['id'])}</small></li>"
        for each in status["troubles"]
    )
    return f'<ul class="trouble" id="troubles">{items}</ul>' if items else '<p id="troubles">No trouble.</p>'


# The parts.


def _conditions(status: Status) -> str:
    colours = {"met": "good", "degraded": "warn"}
    rows = (
        [_e(name), _pill(colours.get(each["state"], "bad"), each["state"]), _e(each["reason"])]
        for name, each in status["conditions"].items()
    )
    workers = "".join(
        f"<p>Worker {_n(each['worker'])}: {'ready' if each['ready'] else 'not ready'}, "
        f"{_n(each['connections'])} connections, {_n(each['starts'])} starts</p>"
        for each in status["workers"]
    )
    return "<h2>Conditions</h2>" + _table(("condition", "state", "why"), rows) + workers


def _brokers(status: Status) -> str:
    def row(each: Any) -> list[Cell]:
        colour, word = {True: ("good", "answers"), False: ("bad", "does not answer")}.get(
            each["reachable"], ("warn", "not asked")
        )
        time = "" if each["answer_ms"] is None else f"{each['answer_ms']:g} ms"
        address = f"{each['host']}:{each['port']}"
        return [_n(each["node_id"]), _e(address), _pill(colour, word), _e(each["reason"] or time)]

    return "<h2>Brokers</h2>" + _table(("broker", "address", "reachable", ""), _rows(status["brokers"], row))


def _catalog(status: Status) -> str:
    catalog = status["catalog"]
    applied = catalog["last_applied"]
    last = (
        "none since the start"
        if applied is None
        else f"offset {_n(applied['offset'])} of metadata partition {_n(applied['metadata_partition'])}, "
        f"{_age(applied['age_ms'])} ago"
    )
    behind = [each for each in catalog["metadata_partitions"] if each["problem"] or each["lag_records"]]

    def row(each: Any) -> list[Cell]:
        numbers = (each["metadata_partition"], each["next_offset"], each["end_offset"], each["lag_records"])
        return [*map(_n, numbers), _e(each["problem"] or "")]

    lagging = _table(("metadata partition", "next", "end", "behind", "why"), _rows(behind, row)) if behind else ""
    return (
        f"<h2>Catalog</h2><p>{_n(catalog['segments'])} of at most {_n(catalog['segments_max'])} segments in "
        f"{_n(catalog['partitions'])} partitions; last record applied: {last}</p>{lagging}"
    )


def _partitions(status: Status) -> str:
    found = status["partitions"]
    links = [
        f'<a href="/?{_e(urlencode({"page": page, "topic": found["topic"]}))}">{word}</a>'
        for page, word in ((found["page"] - 1, "before"), (found["page"] + 1, "next"))
        if 1 <= page <= found["pages"]
    ]
    form = (
        f'<form action="/"><label>topic <input name="topic" value="{_e(found["topic"])}" size="14"></label> '
        "<button>show</button></form>"
    )
    head = ("partition", "log", "tier", "offsets", "")
    return (
        f"<h2>Partitions in the tier: {_n(found['total'])}</h2>{form}"
        f"<nav>page {_n(found['page'])} of {_n(found['pages'])} {''.join(links)}</nav>"
        + '<p class="quiet">grey: gone, blue: in the tier, green: local</p>'
        + _table(head, _rows(found["rows"], _partition))
    )


def _partition(row: PartitionStatus) -> list[Cell]:
    trouble = "".join(
        f"<p>{_pill('warn', word)} {_e(_cut(reason))}</p>"
        for word, reason in (("left to the broker", row["left_to_broker"]), ("look", row["problem"]))
        if reason
    )
    offsets = (
        f"log start {_n(row['log_start_offset'])}, local {_n(row['local_log_start_offset'])}, "
        f"stable {_n(row['last_stable_offset'])}, high watermark {_n(row['high_watermark'])}, "
        f"end {_n(row['log_end_offset'])}"
    )
    stored = row["cloud_stored_size_bytes"]
    tier = (
        f"{_n(row['cloud_log_start_offset'])} to {_n(row['cloud_log_last_offset'])}<br>"
        f"{_bytes(row['cloud_log_size_bytes'])} in {_n(row['cloud_log_segment_count'])} segments"
        + ("" if stored is None else f", {_bytes(stored)} as stored")
    )
    return [f"{_e(row['topic'])}-{_n(row['partition'])}", _bar(row), tier, offsets, trouble]


def _bar(row: PartitionStatus) -> str:
    shares = shares_of(row)
    if shares is None:
        return '<span class="quiet">not known</span>'
    gone, tier, local = shares
    title = f"{gone:.0%} gone, {tier:.0%} in the tier, {local:.0%} local"
    return (
        f'<div class="bar" role="img" aria-label="{title}" title="{title}"><i style="width:{gone:.2%}"></i>'
        f'<i class="tier" style="width:{tier:.2%}"></i><i class="local" style="width:{local:.2%}"></i></div>'
    )


def shares_of(row: PartitionStatus) -> tuple[float, float, float] | None:
    """Return which shares of all offsets ever given are gone, only in the tier, in the local log. None: not known."""
    end, local, start = row["log_end_offset"], row["local_log_start_offset"], row["log_start_offset"]
    if not end or local is None or start is None:
        return None
    local = min(max(local, 0), end)
    start = min(max(start, 0), local)
    return start / end, (local - start) / end, (end - local) / end


def _cache(status: Status) -> str:
    def row(each: Any) -> list[Cell]:
        ratio = "nothing was asked for" if each["hit_ratio"] is None else f"{each['hit_ratio']:.1%}"
        state = "" if each["trouble"] is None else _pill("warn", "out of use")
        return [_e(each["level"]), f"{_bytes(each['size_bytes'])} of {_bytes(each['max_bytes'])}", ratio, state]

    return "<h2>Cache</h2>" + _table(("level", "filled", "found", ""), _rows(status["cache"], row))


def _streams(status: Status) -> str:
    def row(each: Any) -> list[Cell]:
        return [
            _reader(each),
            f"{_e(each['topic'])}-{_n(each['partition'])}",
            f"about {_n(each['about_offset'])}",
            f"{_n(each['lag_offsets'])} offsets",
            f"{_bytes(each['bytes_per_s'])}/s",
            f"{_e(each['waits_for'])}, {_bytes(each['ahead_bytes'])} ahead, read {_age(each['idle_ms'])} ago",
        ]

    head = ("reader", "partition", "position", "lag", "speed", "read-ahead waits for")
    found = status["streams"]
    return f"<h2>Readers of the tier: {_n(found['total'])}</h2>" + _table(head, _rows(found["rows"], row))


def _reader(row: Any) -> str:
    """Groups are joined by what clients say of themselves, so the word is "probably"."""
    groups = f"probably of {', '.join(row['groups'])}" if row["groups"] else ""
    named = [row["client_id"], row["sign_in_name"] and f"signed in as {row['sign_in_name']}", groups]
    known = ", ".join(_e(_cut(each)) for each in named if each)
    return f"{known or '–'}<br>{_e(row['client'])}"


def _copy(status: Status) -> str:
    copy = status["copy"]
    if copy is None:
        return ""

    def row(each: Any) -> list[Cell]:
        position = f"{_n(each['copied_offset'])} of {_n(each['last_stable_offset'])}"
        lag = f"{_bytes(each['lag_bytes'])}, {_age(each['lag_ms'])}"
        words = _cut(each["trouble"] or each["last_error"])
        stall = f" {_pill('warn', each['stall'])}" if each["stall"] is not None else ""
        waits_for = f"{_e(_cut(each['waits_for']))}{stall}"
        dead = f"{_n(each['dead_segments'])} dead, {_bytes(each['dead_bytes'])}" if each["dead_segments"] else ""
        return [f"{_e(each['topic'])}-{_n(each['partition'])}", position, lag, waits_for, dead, _e(words)]

    head = ("partition", "copied up to", "behind", "waits for", "lost upstream", "")
    return (
        f"<h2>Copied by this process: {_n(copy['total'])} partitions</h2><p>{_bytes(copy['copied_bytes'])} since the "
        f"start; group {_e(copy['group'])}</p>" + _table(head, _rows(copy["rows"], row)) + _deletions(status)
    )


def _deletions(status: Status) -> str:
    copy, now_ms = status["copy"], status["time_ms"]
    if copy is None or not copy["deletions_total"]:
        return ""

    def row(each: Any) -> list[Cell]:
        until_ms = each["until_ms"]
        when = "open" if until_ms is None else f"in {_age(max(0, until_ms - now_ms))}"
        waits = f"{_n(each['segments'])} segments, {_bytes(each['bytes'])}"
        why = _pill("bad", "look at it") + " " if each["alarming"] else ""
        return [f"{_e(each['topic'])}-{_n(each['partition'])}", waits, when, why + _e(_cut(each["why"]))]

    head = ("partition", "to be deleted", "when", "waits for")
    return (
        f"<h2>Waits to be deleted: {_n(copy['deletions_total'])} partitions</h2><p>See tidegate deletions list, hold, "
        "approve, release.</p>" + _table(head, _rows(copy["deletions"], row))
    )


def _fallbacks(status: Status) -> str:
    def row(each: Any) -> list[Cell]:
        examples = ", ".join(each["examples"])
        return [_e(each["reason"]), _n(each["partitions"]), _age(each["since_ms"]), _e(each["detail"]), _e(examples)]

    head = ("why", "partitions", "for", "what", "among them")
    return "<h2>Left to the brokers</h2>" + _table(head, _rows(status["fallbacks"], row))


def _limits(status: Status) -> str:
    def limit(each: Any) -> list[Cell]:
        return [_e(each["key"]), _e(each["client"] or "all"), f"{_n(each['used'])} of {_n(each['max'])}"]

    def client(each: Any) -> list[Cell]:
        return [_e(each["client"]), _age(each["waits_ms"]), _bytes(each["holds_bytes"])]

    waiting = _table(("client", "takes nothing for", "held for it"), _rows(status["clients"], client))
    return "<h2>Clients and limits</h2>" + _table(("limit", "of", "used"), _rows(status["limits"], limit)) + waiting


def _errors(status: Status) -> str:
    def row(each: Any) -> list[Cell]:
        return [_age(each["age_ms"]), _e(each["level"]), f"<b>{_e(each['event'])}</b> {_e(_cut(each['detail']))}"]

    return "<h2>Last errors</h2>" + _table(("ago", "level", "what"), _rows(status["errors"], row))


# Small things.


def _rows(rows: Iterable[Any], cells: Callable[[Any], list[Cell]]) -> Iterable[list[Cell]]:
    for row in rows:
        try:
            yield cells(row)
        except Exception as error:  # one bad row never blanks the page
            yield [f"{_pill('bad', 'not shown')} {_e(_cut(repr(error)))}"]


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    lines = [
        "<tr>" + "".join(f'<td data-is="{_e(is_)}">{cell}</td>' for is_, cell in zip(head, row, strict=False)) + "</tr>"
        for row in rows
    ]
    if not lines:
        return '<p class="quiet">none</p>'
    titles = "".join(f"<th>{_e(title)}</th>" for title in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _e(value: object) -> str:
    return escape(str(value), quote=True)


def _pill(colour: str, word: str) -> str:
    return f'<span class="pill {colour}">{_e(word)}</span>'


def _cut(words: str | None, words_max: int = _WORDS_MAX) -> str:
    """Begin with the cause, end with the remedy."""
    words = words or ""
    return words if len(words) <= words_max else f"{words[: words_max // 2]}…{words[-words_max // 2 :]}"


def _n(number: int | None) -> str:
    return "?" if number is None else f"{int(number):,}"


def _bytes(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else shown_size(size_bytes)


def _age(age_ms: int) -> str:
    seconds = age_ms / 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
