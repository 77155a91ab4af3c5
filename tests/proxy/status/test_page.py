"""The page as HTML: escaped, whole whatever its rows hold, and quick with many partitions."""

import html
import re
from html.parser import HTMLParser
from typing import Any, cast

import pytest

from proxy.process.status.model import PAGE_ROWS, Status
from proxy.process.status.page import render_page, shares_of
from tests.support.status_documents import broker, catalog, document, error, metadata_partition, partitions, row

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
    found = re.search(rf'id="{id_}">(.*?)</(?:dd|ul|p)>', page, re.DOTALL)
    assert found is not None
    return html.unescape(re.sub(r"<[^>]+>", "", found[1]))


def full(word: str) -> Status:
    """A document with every kind of row; each text in it is `word`."""
    stream: dict[str, Any] = dict.fromkeys(
        ("partition", "about_offset", "lag_offsets", "bytes_per_s", "ahead_bytes", "idle_ms"), 5
    )
    return document(
        reasons=[word],
        complaints=[word],
        conditions={word: {"state": word, "reason": word}},
        brokers=[{**broker(1, reachable=False, reason=word), "host": word}],
        catalog=catalog(metadata_partition(1, lag=3, problem=word)),
        cache=[{"level": word, "size_bytes": 1, "max_bytes": 2, "available": False, "hit_ratio": 0.5}],
        partitions={**partitions(row(word, left_to_broker=word, problem=word)), "topic": word, "pages": 2},
        streams={"total": 1, "rows": [{**stream, "client": word, "topic": word, "waits_for": word}]},
        fallbacks=[{"reason": word, "detail": word, "partitions": 1, "since_ms": 5, "examples": [word]}],
        limits=[{"key": word, "client": word, "used": 1, "max": 1}],
        clients=[{"client": word, "waits_ms": 9000, "holds_bytes": 5}],
        errors=[error(word, detail=word)],
        failed_sections=[{"section": word, "reason": word}],
    )


def test_all_text_from_outside_is_escaped_and_nothing_is_loaded_or_run() -> None:
    page = render_page(full("word"))
    harmless, hostile = Tags(page), Tags(render_page(full(HOSTILE)))
    assert (hostile.elements, hostile.attributes) == (harmless.elements, harmless.attributes)
    assert not {"script", "link", "img", "iframe"} & harmless.elements
    assert not re.search(r"https?:|url\(|@import", page)
    assert "not shown" not in page


def test_the_three_answers_stand_first() -> None:
    status = document(
        ready=False,
        reasons=["tier: NoSuchBucket"],
        catalog=catalog(metadata_partition(0), metadata_partition(3, lag=1200, problem="no leader")),
        errors=[error("tier_unavailable", age_ms=4_000, detail="reason=NoSuchBucket"), error("older")],
    )
    page = render_page(status)
    assert text_of(page, "ready") == "No: tier: NoSuchBucket"
    assert text_of(page, "lags") == "metadata partition 3: 1,200 records behind (no leader)"
    assert text_of(page, "failed") == "4.0 s ago: tier_unavailable reason=NoSuchBucket"
    assert text_of(page, "troubles").startswith("not ready: tier: NoSuchBucket")


def test_a_healthy_one_says_so() -> None:
    page = render_page(document(catalog=catalog(metadata_partition(0))))
    assert text_of(page, "ready") == "Yes"
    assert text_of(page, "lags") == "nothing: all 1 metadata partitions are read to their end"
    assert text_of(page, "failed") == "nothing since the start"
    assert text_of(page, "troubles") == "No trouble."


def test_a_tier_that_nobody_has_asked_is_not_said_to_be_met() -> None:
    pending = {"tier": {"state": "pending", "reason": "the tier has not answered yet"}}
    assert ">met<" not in render_page(document(conditions=pending))


def test_one_bad_row_or_section_never_blanks_the_page() -> None:
    bad = cast(Any, {"topic": "orders"})
    page = render_page(document(partitions=partitions(row("first"), bad, row("last")), cache=None))
    assert "first-0" in page
    assert "last-0" in page
    assert page.count("not shown") == 2
    assert text_of(page, "ready") == "Yes"


def test_the_bar_is_what_is_gone_in_the_tier_and_local() -> None:
    for start, local, end, shares in (
        (0, 0, 10, (0, 0, 1)),
        (2, 6, 10, (0.2, 0.4, 0.4)),
        (10, 10, 10, (1, 0, 0)),
        (None, 6, 10, None),
        (0, None, 10, None),
        (0, 0, 0, None),
        (8, 6, 10, (0.6, 0, 0.4)),
        (0, 20, 10, (0, 1, 0)),
    ):
        offsets: dict[str, Any] = {"log_start_offset": start, "local_log_start_offset": local, "log_end_offset": end}
        assert shares_of(row(**offsets)) == (None if shares is None else pytest.approx(shares)), offsets


def test_ten_thousand_partitions_are_paged() -> None:
    shown = [row("orders", number) for number in range(PAGE_ROWS)]
    page = render_page(document(partitions={**partitions(*shown, total=10_000, page=2), "topic": "a&b"}))
    assert "page 2 of 200" in page
    assert 'href="/?page=1&amp;topic=a%26b"' in page
    assert 'href="/?page=3&amp;topic=a%26b"' in page
    assert len(page) < 100_000
