"""What the places tell an operator of troubles: `/readyz`, `/status.json`, the page, `/metrics` and the log."""

import html
import json
from collections.abc import Collection, Sequence
from contextlib import suppress

from metrics.troubles import UNLOGGED, TroubleId
from tests.support.samples import sum_of
from tests.support.serving import Serving
from tests.support.waiting import wait_until


def ids_of(serve: Serving) -> set[str]:
    """Those in `/readyz`, but for what passes by itself."""
    with suppress(OSError):  # it does not listen yet
        return {each["id"] for each in json.loads(serve.page("/readyz")[1])["troubles"]} - UNLOGGED
    return set()


def wait_troubles(serve: Serving, expected: Collection[TroubleId]) -> None:
    """Return once `/readyz` tells of these and no others, and `/metrics` too.

    Raises:
        AssertionError: it has ended, or does not come to it.
    """

    def others() -> set[str]:
        assert serve.process.poll() is None, serve.log()
        return ids_of(serve) ^ {*expected}

    wait_until(lambda: not others(), f"{sorted(expected)} in /readyz, and no others")
    scraped = serve.page("/metrics")[1]
    metrics = {each for each in TroubleId if sum_of(scraped, "tidegate_trouble", {"id": each})} - UNLOGGED
    assert metrics == {*expected}


def assert_in_every_place(serve: Serving, trouble: TroubleId, words: Sequence[str]) -> None:
    """Each place tells of it with all these words."""
    sentences = {"the page": serve.page("/")[1]}
    assert f"<small>{trouble}</small>" in sentences["the page"]
    for path in ("/readyz", "/status.json"):
        told = json.loads(serve.page(path)[1])["troubles"]
        sentences[path] = html.escape("; ".join(each["what"] for each in told if each["id"] == trouble))
    logged = serve.wait_events("trouble_begun")
    sentences["the log"] = html.escape("; ".join(each["reason"] for each in logged if each["id"] == trouble))
    missing = [(place, each) for place, said in sentences.items() for each in words if html.escape(each) not in said]
    assert not missing, (missing, sentences["/readyz"], sentences["the log"])
