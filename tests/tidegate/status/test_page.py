"""The page as HTML: escaped, whole whatever its rows hold, and quick with many partitions."""

import html
import re
from html.parser import HTMLParser
from typing import Any, cast

from metrics.troubles import TroubleView
from tests.support.status_documents import broker, catalog, copied, document, error, metadata_partition, partitions, row
from tidegate.status.model import Status
from tidegate.status.page import render_page

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&\u202e"


class Tags(HTMLParser):
    """The names of all elements, and of all attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}


def text_of(page: str, id_: str) -> str:
    found = re.search(rf'id="{id_}">(.*?)</(?:dd|ul|p|h1)>', page, re.DOTALL)
    assert found is not None
    return html.unescape(re.sub(r"<[^>]+>", "", found[1]))


def full(word: str) -> Status:
    """A document with every kind of row; each text in it is `word`."""
    stream: dict[str, Any] = dict.fromkeys(
        ("partition", "about_offset", "lag_offsets", "bytes_per_s", "ahead_bytes", "idle_ms"), 5
    )
    named = {"client_id": word, "sign_in_name": word, "groups": [word]}
    return document(
        ready=False,
        reasons=[word],
        complaints=[word],
        troubles=[dict.fromkeys(TroubleView.__annotations__, word) | {"about": "not ready"}],
        conditions={word: {"state": word, "reason": word, "trouble": word}},
        brokers=[{**broker(1, reachable=False, reason=word), "host": word}],
        catalog=catalog(metadata_partition(1, lag=3, problem=word)),
        cache=[{"level": word, "size_bytes": 1, "max_bytes": 2, "trouble": word, "hit_ratio": 0.5}],
        partitions={**partitions(row(word, left_to_broker=word, problem=word)), "topic": word, "pages": 2},
        streams={"total": 1, "rows": [{**stream, "client": word, "topic": word, "waits_for": word, **named}]},
        fallbacks=[{"reason": word, "detail": word, "partitions": 1, "since_ms": 5, "examples": [word]}],
        copy=copied(word),
        limits=[{"key": word, "client": word, "used": 1, "max": 1}],
        clients=[{"client": word, "waits_ms": 9000, "holds_bytes": 5}],
        errors=[error(word, detail=word)],
        failed_sections=[{"section": word, "reason": word}],
    )


def test_all_text_from_outside_is_escaped_and_nothing_is_loaded_or_run() -> None:
    page = render_page(full("word"))
    assert "not ready: word word" in text_of(page, "troubles")
    assert "metadata partition 1" in text_of(page, "catalog")
    harmless, hostile = Tags(page), Tags(render_page(full(HOSTILE)))
    assert (hostile.elements, hostile.attributes) == (harmless.elements, harmless.attributes)
    assert not {"script", "link", "img", "iframe"} & harmless.elements
    assert not re.search(r"https?:|url\(|@import", page)
    assert "not shown" not in page


def test_what_waits_to_be_deleted_is_shown_with_its_end_and_what_is_lost_upstream() -> None:
    page = html.unescape(re.sub(r"<[^>]+>", "|", render_page(document(copy=copied("word"), time_ms=1000))))
    assert "2 dead, 7 B" in page
    assert "Waits to be deleted: 2 partitions" in page
    assert re.search(r"word-3\|+3 segments, 9 B\|+in 60 min\|+look at it\|+ word", page)
    assert re.search(r"word-4\|+3 segments, 9 B\|+open\|+word", page)
    assert "Waits to be deleted" not in render_page(document(copy={**copied("word"), "deletions_total": 0}))


def test_one_bad_row_or_section_never_blanks_the_page() -> None:
    bad = cast(Any, {"topic": "orders"})
    page = render_page(document(partitions=partitions(row("first"), bad, row("last")), cache=None))
    assert "first-0" in page
    assert "last-0" in page
    assert page.count("not shown") == 2
    assert "ready" in text_of(page, "state")


def test_sizes_are_shown_as_stored_too_where_that_is_known() -> None:
    known, unknown = row("known", cloud_log_size_bytes=2 << 20, cloud_stored_size_bytes=1 << 20), row("unknown")
    page = render_page(document(partitions=partitions(known, unknown)))
    assert "2.0 MiB in ? segments, 1.0 MiB as stored" in page
    assert page.count("as stored") == 1
