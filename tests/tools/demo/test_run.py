from pathlib import Path

import pytest

from tidegate import exit_codes
from tools.demo import run
from tools.demo.run import RECORDS_MIN, DemoOptions, main, missing


def test_each_thing_missing_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(run, "JARS", tmp_path / "libs")
    assert main(DemoOptions(keep=False, records=10)) == exit_codes.FOUND_WRONG
    java, jars, records = capsys.readouterr().err.splitlines()
    assert java.startswith("tidegate: java is not on the PATH")
    assert str(tmp_path / "libs") in jars
    assert "make setup" in jars
    assert records.startswith(f"tidegate: --records 10: at least {RECORDS_MIN}")


def test_a_broker_that_does_not_start_is_said_and_files_stay_with_keep_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_java(tmp_path, monkeypatch)
    assert missing(RECORDS_MIN) == []
    assert main(DemoOptions(keep=False, records=RECORDS_MIN)) == exit_codes.FOUND_WRONG
    said = capsys.readouterr().err
    assert "no such class" in said
    assert "--keep leaves them" in said
    assert list((tmp_path / "temporary").iterdir()) == []
    assert main(DemoOptions(keep=True, records=RECORDS_MIN)) == exit_codes.FOUND_WRONG
    (work,) = (tmp_path / "temporary").iterdir()
    assert f"are left in {work}" in capsys.readouterr().err


def broken_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A java on the PATH that starts nothing, and a temporary folder that can be looked into."""
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho no such class\nexit 1\n", encoding="utf-8")
    java.chmod(0o755)
    (tmp_path / "kafka_2.13-4.3.0.jar").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(run, "JARS", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
