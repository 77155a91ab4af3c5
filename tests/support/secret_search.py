"""Looks for a secret in everything that Spark writes and shows. The standard library alone: a submitted program may
bring this file along and fetch the pages of its own UI, which is gone when the program ends.
"""

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PAGE_S_MAX = 30.0
_REST = (
    *("", "/jobs", "/stages?details=true", "/executors", "/allexecutors", "/storage/rdd", "/environment"),
    *("/sql?details=true&planDescription=true&length=1000", "/streaming/statistics", "/version", "/threads"),
)
_HTML = ("/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/")
_LINK = re.compile(r'href="[^"]*?(/(?:SQL/execution|jobs/job|stages/stage|StreamingQuery/statistics)/\?[^"]+)"')


def forms(secret: str) -> tuple[bytes, ...]:
    """Return how it may be written: as it is, and as JSON, percent-encoding, hexadecimal, UTF-16 and base64 have it.

    The last begins at any of three places of a longer text, so its first and last characters are left out.
    """
    plain = secret.encode()
    aligned = [base64.b64encode(b"\0" * shift + plain)[4 * (shift > 0) : -4] for shift in range(3)]
    return (
        *(plain, json.dumps(secret)[1:-1].encode(), urllib.parse.quote(secret, safe="").encode()),
        *(plain.hex().encode(), plain.hex().upper().encode(), secret.encode("utf-16-le")[:-1], *aligned),
    )


def found_in(secret: str, texts: Iterable[tuple[str, bytes]]) -> list[str]:
    """The names of the texts that have the secret in any form."""
    wanted = forms(secret)
    return [name for name, text in texts if any(form in text for form in wanted)]


def files_below(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, by its path."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield str(path), path.read_bytes()


def ui_pages(url: str) -> Mapping[str, bytes]:
    """Return what the UI at this address answers: REST, pages, and the pages of executions, jobs and stages.

    Raises:
        ValueError: it shows no execution or no environment, so that nothing was searched.
    """
    applications = json.loads(_page(f"{url}/api/v1/applications"))
    pages = {
        path: page
        for application in applications
        for name in _REST
        if (page := _page_or_none(url + (path := f"/api/v1/applications/{application['id']}{name}"))) is not None
    }
    pages |= {path: page for path in _HTML if (page := _page_or_none(url + path)) is not None}
    links = {link.replace("&amp;", "&") for page in pages.values() for link in _LINK.findall(page.decode())}
    pages |= {link: page for link in sorted(links) if (page := _page_or_none(url + link)) is not None}
    for needed in ("/SQL/execution/", "/environment/", "/sql?details"):
        if not any(needed in path for path in pages):
            raise ValueError(f"the UI has no {needed}: {sorted(pages)}")
    return pages


def _page_or_none(url: str) -> bytes | None:
    try:
        return _page(url)
    except urllib.error.HTTPError as error:
        error.close()
        return None  # a page of streaming without a stream, say


def _page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PAGE_S_MAX) as answer:
        body: bytes = answer.read()
    return body
