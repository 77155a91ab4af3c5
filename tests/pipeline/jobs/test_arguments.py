"""The jobs' command lines as argparse takes them."""

import argparse

import pytest

from pipeline.jobs.arguments import count, parser, setting, size
from tests.support.for_each import for_each

BACKFILL = ["backfill", "--config", "f", "--topic", "orders", "--output", "out"]


@for_each(
    "arguments",
    [
        [],
        ["backfill"],
        ["audit"],
        ["audit", "--config", "f", "--topic", "a", "--pattern", "b"],
        ["backfill", "--config", "f", "--output", "out"],
        ["backfill", "--config", "f", "--topic", "orders"],
        [*BACKFILL, "--pattern", "orders.*"],
        [*BACKFILL, "--steps-at-once", "0"],
        [*BACKFILL, "--bytes-per-step", "0"],
        [*BACKFILL, "--bytes-per-step", "4x"],
        [*BACKFILL, "--offsets-per-folder", "-1"],
        [*BACKFILL, "--conf", "spark.ui.enabled"],
        [*BACKFILL, "--isol", "read_committed"],
        ["forward", "--config", "f"],
    ],
)
def test_a_wrong_command_line_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    assert ended.value.code == 2
    assert "usage: tidegate spark" in capsys.readouterr().err


def test_settings_may_hold_an_equals_sign_and_what_may_be_a_secret_is_not_shown() -> None:
    assert setting(" spark.driver.extraJavaOptions = -Da=b ") == ("spark.driver.extraJavaOptions", "-Da=b")
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        setting("hunter2")
    assert "hunter2" not in str(refused.value)


def test_sizes_have_units_and_counts_begin_with_one() -> None:
    assert [size(text) for text in ("1", "4g", "64M", "2kb")] == [1, 4 << 30, 64 << 20, 2048]
    assert count("1") == 1
    with pytest.raises(argparse.ArgumentTypeError):
        count("0")
