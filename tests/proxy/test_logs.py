"""Logs: one line an event, no secrets, no payload, and one way for both logging libraries."""

import io
import json
import logging

import pytest
import structlog

from proxy.config.model import LogFormat
from proxy.process.logs import (
    DEPTH_MAX,
    ENTRIES_MAX,
    RECENT_CHARS_MAX,
    RECENT_MAX,
    VALUE_CHARS_MAX,
    configure_logs,
    recent_errors,
)
from storage.config.masking import HIDDEN, sounds_secret
from tests.support.for_each import for_each

pytestmark = pytest.mark.usefixtures("restored_logging")


def json_stream(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logs(level, LogFormat.JSON, stream)
    return stream


def events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_holds_event_level_logger_time_and_values() -> None:
    stream = json_stream()
    structlog.get_logger("proxy.server").info("client connected", peer="127.0.0.1:9", connections=3)
    (event,) = events(stream)
    timestamp = event.pop("timestamp")
    assert isinstance(timestamp, str)
    assert timestamp.endswith("Z")
    assert (event.pop("event"), event.pop("level")) == ("client connected", "info")
    assert event == {"logger": "proxy.server", "peer": "127.0.0.1:9", "connections": 3}


def test_console_is_one_readable_line() -> None:
    stream = io.StringIO()
    configure_logs("info", LogFormat.CONSOLE, stream)
    structlog.get_logger("proxy.server").warning("frame refused", peer="a b", size_bytes=9, topic="x\ny", none="")
    (line,) = stream.getvalue().splitlines()
    assert line.partition(" ")[2] == (
        'WARNING frame refused peer="a b" size_bytes=9 topic="x\\ny" none="" logger=proxy.server'
    )


def test_the_standard_librarys_logging_goes_the_same_way() -> None:
    stream = json_stream()
    logging.getLogger("storage.reader").info("segment %s skipped", "s1", extra={"topic": "orders", "password": "p"})
    (event,) = events(stream)
    assert event["event"] == "segment s1 skipped"
    assert event["logger"] == "storage.reader"
    assert event["topic"] == "orders"
    assert event["password"] == HIDDEN


def test_level_is_ours_and_libraries_speak_from_warning_on() -> None:
    stream = json_stream("debug")
    structlog.get_logger("proxy.x").debug("ours")
    logging.getLogger("storage.x").debug("ours too")
    logging.getLogger("botocore").info("not this")
    logging.getLogger("botocore").warning("but this")
    assert [event["event"] for event in events(stream)] == ["ours", "ours too", "but this"]


def test_what_is_below_the_level_is_not_written() -> None:
    stream = json_stream("error")
    structlog.get_logger("proxy.x").warning("no")
    logging.getLogger("botocore").warning("no")
    assert events(stream) == []


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="no such log level: 'loud'"):
        configure_logs("loud")


def test_a_later_configuration_replaces_an_earlier_one() -> None:
    first, second = json_stream(), json_stream()
    structlog.get_logger("proxy.x").info("once")
    assert (len(events(first)), len(events(second))) == (0, 1)


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


def test_what_is_nested_too_deep_is_left_out() -> None:
    stream = json_stream()
    value: object = {"password": "hunter2"}
    for _ in range(DEPTH_MAX):
        value = [value]
    structlog.get_logger("proxy.x").info("deep", value=value)
    assert "hunter2" not in stream.getvalue()
    assert "<1 entries>" in stream.getvalue()


def test_long_values_and_lists_are_cut() -> None:
    stream = json_stream()
    structlog.get_logger("proxy.x").info("long", text="x" * (VALUE_CHARS_MAX + 1), numbers=list(range(1000)))
    (event,) = events(stream)
    assert event["text"] == "x" * VALUE_CHARS_MAX + f"… ({VALUE_CHARS_MAX + 1} characters)"
    assert event["numbers"] == list(range(ENTRIES_MAX))


@for_each("level, with_stack", [("info", False), ("debug", True)])
def test_a_stack_trace_is_given_at_debug_only(level: str, with_stack: bool) -> None:
    stream = json_stream(level)
    try:
        raise ValueError("bad")
    except ValueError:
        structlog.get_logger("proxy.x").exception("failed")
        logging.getLogger("storage.x").exception("failed")
    for event in events(stream):
        assert event["error"] == "ValueError: bad"
        assert ("stack" in event) is with_stack
    assert ("Traceback" in stream.getvalue()) is with_stack


def test_an_error_that_is_handed_over_is_shown_too() -> None:
    stream = json_stream()
    structlog.get_logger("proxy.x").warning("lost", exc_info=OSError("reset"))
    structlog.get_logger("proxy.x").warning("nothing", exc_info=True)
    assert [event.get("error") for event in events(stream)] == ["OSError: reset", None]


def test_the_last_warnings_and_errors_are_kept_as_they_were_written() -> None:
    configure_logs("info", LogFormat.JSON, io.StringIO())
    assert recent_errors(0) == []
    log = structlog.get_logger("proxy.server")
    log.info("nothing wrong")
    log.warning("long ago")
    logging.getLogger("storage.reader").error("a library's %s", "words")
    for number in range(RECENT_MAX - 1):
        log.error("later", number=number, detail="z" * 2 * RECENT_CHARS_MAX)
    found = recent_errors(2**60)
    assert len(found) == RECENT_MAX
    assert [(each["level"], each["event"]) for each in (found[0], found[-1])] == [
        ("error", "later"),
        ("error", "a library's words"),
    ]
    assert found[0]["detail"].startswith(f"number={RECENT_MAX - 2} detail=zzz")
    assert len(found[0]["detail"]) == RECENT_CHARS_MAX
    assert found[0]["age_ms"] > 0


def test_secrets_are_masked_in_what_is_kept() -> None:
    configure_logs("info", LogFormat.JSON, io.StringIO())
    structlog.get_logger("proxy.server").warning("frame_refused", peer="10.0.0.7", password="letmein", data=b"12345")
    (error,) = recent_errors(0)
    assert (error["event"], error["detail"]) == ("frame_refused", f'peer=10.0.0.7 password={HIDDEN} data="<5 bytes>"')
    assert error["time"].endswith("Z")
