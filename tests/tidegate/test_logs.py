"""Logs: one line an event, no secrets, no payload, and one way for both logging libraries."""

import io
import json
import logging
from functools import partial

import pytest
import structlog

from storage.config.masking import HIDDEN, sounds_secret
from tests.support.for_each import for_each
from tidegate import logs
from tidegate.config.model import LogFormat
from tidegate.logs import LINES_COMPARED_MAX, LeftOut, configure_logs, recent_errors

pytestmark = pytest.mark.usefixtures("restored_logging")


def json_stream() -> io.StringIO:
    stream = io.StringIO()
    configure_logs("info", LogFormat.JSON, stream)
    return stream


def events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@for_each("log_format", LogFormat)
@for_each("hostile", ["a\nb", "a\r\nb", "a\u2028b", "a\x1b[31mb", "a\x85b"])
def test_hostile_text_stays_on_one_line(log_format: LogFormat, hostile: str) -> None:
    stream = io.StringIO()
    configure_logs("debug", log_format, stream)
    structlog.get_logger("proxy.x").info(hostile, **{"key": hostile, hostile: 1})
    logging.getLogger("storage.x").info(hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        logging.getLogger("storage.x").exception(hostile)
        structlog.get_logger("proxy.x").exception(hostile)
    assert len(stream.getvalue().splitlines()) == 4
    assert "\x1b" not in stream.getvalue()


def test_a_json_line_begins_with_what_one_looks_for() -> None:
    """Failed before: event and level were behind the longest text."""
    stream = json_stream()
    structlog.get_logger("proxy.x").warning("tier_degraded", reason="r" * 1000)
    logging.getLogger("storage.x").warning("spoken")
    for event in events(stream):
        assert [*event][:3] == ["timestamp", "level", "event"]


def test_payload_is_shown_as_its_length() -> None:
    stream = json_stream()
    structlog.get_logger("proxy.x").info(
        "frame", raw=b"secret!", view=memoryview(b"abcd"), nested={"inner": [bytearray(3)]}
    )
    (event,) = events(stream)
    assert (event["raw"], event["view"]) == ("<7 bytes>", "<4 bytes>")
    assert event["nested"] == {"inner": ["<3 bytes>"]}


SECRET_KEYS = """
    password sasl.jaas.config upstream.sasl.password ssl.key.password ssl.key.pem ssl.keystore.key
    rsm.config.storage.aws.secret.access.key storage.aws.access.key.id azure.account-key
    sasl.oauthbearer.client.secret Authorization delegation_token azure.connection.string
    pwd sas kek customer.key apikey
"""
OTHER_KEYS = "api_key key object_key topic sasl.mechanism ssl.ca.location ssl.keystore.location key_id"


def test_secret_keys_are_known_and_others_are_shown() -> None:
    assert [key for key in SECRET_KEYS.split() if not sounds_secret(key)] == []
    assert [key for key in OTHER_KEYS.split() if sounds_secret(key)] == []


def test_secrets_are_masked_at_any_depth() -> None:
    stream = json_stream()
    configuration = {"a": {"ssl.key.password": "hunter2"}, "b": [{"sasl.jaas.config": "hunter2"}], "secret": {"x": 1}}
    structlog.get_logger("proxy.x").info("configured", configuration=configuration, password=None)
    (event,) = events(stream)
    assert "hunter2" not in stream.getvalue()
    assert event["configuration"] == {
        "a": {"ssl.key.password": HIDDEN},
        "b": [{"sasl.jaas.config": HIDDEN}],
        "secret": HIDDEN,
    }
    assert event["password"] is None


def test_secrets_are_masked_in_what_is_kept() -> None:
    configure_logs("info", LogFormat.JSON, io.StringIO())
    structlog.get_logger("proxy.server").warning("frame_refused", peer="10.0.0.7", password="letmein", data=b"12345")
    (error,) = recent_errors(0)
    assert (error["event"], error["detail"]) == ("frame_refused", f'peer=10.0.0.7 password={HIDDEN} data="<5 bytes>"')
    assert error["time"].endswith("Z")


def test_a_line_comes_at_most_once_a_second_and_then_says_how_often_it_was_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failed before: a loop that went wrong ten times a second wrote ten lines a second, and pushed all others out of
    the status page."""
    now_s = 0.0
    monkeypatch.setattr(logs, "LeftOut", partial(LeftOut, lambda: now_s))
    stream = json_stream()
    ours, librarys = structlog.get_logger("proxy.x"), logging.getLogger("trio.x")
    for step in range(25):
        now_s = step / 10
        ours.warning("not_accepted", reason="no room")
        ours.warning("not_accepted", reason="no room", client=step)
        librarys.error("accept returned %s", "EMFILE", exc_info=OSError("no room"))
    found = events(stream)
    assert [event.get("repeated") for event in found if event["event"] == "not_accepted" and "client" not in event] == [
        None,
        9,
        9,
    ]
    assert [event.get("repeated") for event in found if event["event"] == "accept returned EMFILE"] == [None, 9, 9]
    assert [event["client"] for event in found if "client" in event] == [*range(25)]
    assert len(found) == len(recent_errors(0)) == 3 + 3 + 25


def test_lines_that_are_compared_are_bounded() -> None:
    left_out = LeftOut(lambda: 0.0)
    for number in range(LINES_COMPARED_MAX + 1):
        left_out(None, "info", {"event": "line", "number": number})
    assert left_out(None, "info", {"event": "line", "number": 0}) == {"event": "line", "number": 0}
    with pytest.raises(structlog.DropEvent):
        left_out(None, "info", {"event": "line", "number": LINES_COMPARED_MAX})
