"""Where lines of drivers and executors go, and that a program's own settings stay."""

import pytest
import structlog

from pipeline.logs import configure_logs


def test_lines_from_info_on_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    log = structlog.get_logger("pipeline")
    log.debug("not this one")
    log.warning("offsets are left out", offsets="orders-0: 5 to 9")

    told = capsys.readouterr()

    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("timestamp=")
    assert 'level=warning event="offsets are left out" offsets="orders-0: 5 to 9"' in line


def test_a_program_that_has_configured_its_logs_is_left_alone() -> None:
    kept = [structlog.processors.JSONRenderer()]
    structlog.configure(processors=kept)
    configure_logs()
    assert structlog.get_config()["processors"] == kept
