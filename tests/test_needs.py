"""Skips are told apart by what is lacking: tests/support/needs.py."""

from pathlib import Path

import pytest

from tests.support import needs


def test_a_skip_for_want_of_a_kind_is_known_by_its_reason() -> None:
    found = needs.kind_of_skip(needs.kind("kcat").reason)
    assert found is not None
    assert found.name == "kcat"


def test_a_helper_may_skip_in_its_own_words() -> None:
    found = needs.kind_of_skip("shared vectors absent: kafka/some.json (set TIDEGATE_VECTORS)")
    assert found is not None
    assert found.name == "vectors"


def test_any_other_reason_is_of_no_kind() -> None:
    assert needs.kind_of_skip("not today") is None


def test_absent_vectors_are_excused_and_absent_tools_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_VECTORS", str(tmp_path / "absent"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not needs.kind("kcat").is_present()
    assert not needs.kind("kcat").is_excused
    assert needs.kind("vectors").is_excused


def test_vectors_that_are_there_excuse_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_VECTORS", str(tmp_path))
    assert not needs.kind("vectors").is_excused
