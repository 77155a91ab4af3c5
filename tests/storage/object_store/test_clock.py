"""What a store's answers say of this machine's clock."""

import functools
import time
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

import pytest

from storage.errors import RemoteStorageError
from storage.object_store.clock import StoreClock
from storage.object_store.files.store import FileSystemStore
from storage.object_store.http.get import OpenSockets
from storage.object_store.http.session import StoreSession
from storage.object_store.object_store import ObjectStore, ask_store
from tests.storage.object_store.test_stores import CALLS
from tests.support.cases import case
from tests.support.for_each import for_each
from tests.support.http_stores import OpenScripted
from tests.support.s3_server import S3Server
from tests.support.s3_stores import BODY, OpenS3, ranged
from tests.support.scripted_http import ScriptedHttp, response

HOUR_S = 3600
NEAR_MS = 60_000
"""What a loaded machine may take for an answer."""


@pytest.fixture(params=["s3", "gcs", "azure"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scripted(kind: str, open_scripted: OpenScripted) -> OpenScripted:
    return functools.partial(open_scripted, kind)


def dated(offset_s: float, status: int = 404) -> bytes:
    return response(status, headers={"Date": formatdate(time.time() + offset_s, usegmt=True)})


def hours_ahead(store: ObjectStore) -> int:
    offset_ms = store.clock_offset_ms()
    assert offset_ms is not None
    hours = round(offset_ms / 1000 / HOUR_S)
    assert abs(offset_ms - hours * HOUR_S * 1000) < NEAR_MS
    return hours


def test_every_answer_says_what_time_it_is(http: ScriptedHttp, scripted: OpenScripted) -> None:
    store = scripted()
    assert store.clock_offset_ms() is None
    for number, (name, call) in enumerate(CALLS.items(), 1):
        http.forget()
        http.answer(dated(number * HOUR_S))
        with case(name):
            with suppress(RemoteStorageError):
                call(store)
            assert hours_ahead(store) == number
            assert len(http.requests) == 1
    http.forget()
    http.answer(dated(-5 * HOUR_S))
    ask_store(store, "")
    assert hours_ahead(store) == -5


def test_bytes_that_are_read_say_nothing(http: ScriptedHttp, scripted: OpenScripted) -> None:
    """Readers' GETs are not to pay for it."""
    http.answer(ranged(Date=formatdate(0, usegmt=True)))
    store = scripted()
    store.get("a", 0, len(BODY)).close()
    assert store.clock_offset_ms() is None


@for_each("date", ["", "yesterday", "Wed, 99 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 999999 07:28:00 GMT"])
def test_an_answer_without_a_date_says_nothing(http: ScriptedHttp, scripted: OpenScripted, date: str) -> None:
    http.forget()
    http.answer(response(403, headers={"Date": date} if date else {}))
    store = scripted()
    with pytest.raises(RemoteStorageError):
        store.head("a")
    assert store.clock_offset_ms() is None


def test_who_gives_tokens_is_no_store(http: ScriptedHttp) -> None:
    http.answer(dated(HOUR_S, 200))
    session, clock = StoreSession(), StoreClock()
    session.reach("https://store.example", OpenSockets(), connections_max=1, proxy=None, clock=clock)
    session.get(http.endpoint_url)
    session.close()
    assert clock.offset_ms() is None


def test_a_clock_that_is_set_between_two_answers_is_noticed_at_once() -> None:
    wall, monotonic = [1_000_000.0], [50.0]
    clock = StoreClock(wall=lambda: wall[0], monotonic=lambda: monotonic[0])
    clock.heard(formatdate(1_000_000, usegmt=True))
    assert clock.offset_ms() == 500
    for each in (wall, monotonic):
        each[0] += 100
    assert clock.offset_ms() == 500
    wall[0] += 2 * HOUR_S
    assert clock.offset_ms() == 500 - 2 * HOUR_S * 1000


def test_a_folder_has_no_clock_of_its_own(tmp_path: Path) -> None:
    store = FileSystemStore(tmp_path)
    store.put("a", b"x")
    assert store.clock_offset_ms() is None


def test_a_machine_two_years_ahead_learns_it_from_its_first_listing(s3_endpoint: S3Server, open_store: OpenS3) -> None:
    says_how_far_ahead(s3_endpoint, open_store)


def says_how_far_ahead(server: S3Server, open_store: OpenS3) -> None:
    """Signatures would be refused with such a clock, so only the clock that is compared is ahead. Also over another
    server: all/test_other_servers.py."""
    store = open_store(server, server.make_bucket())
    years_s = 2 * 365 * 24 * HOUR_S
    store.clock = StoreClock(wall=lambda: time.time() + years_s)
    assert list(store.list("")) == []
    assert hours_ahead(store) == -years_s // HOUR_S
