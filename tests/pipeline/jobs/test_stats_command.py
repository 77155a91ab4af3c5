"""What of the command line of `stats` is refused."""

import pytest

from pipeline.jobs.arguments import parser
from pipeline.jobs.job_context import UsageError
from pipeline.jobs.stats_command import prepare
from tests.support.for_each import for_each


@for_each(
    "more, told",
    [
        (["--pattern", "("], "--pattern is not a pattern"),
        (["--plot", "stats.pdf"], "ends with .png"),
        (["--plot", "no-such-folder/stats.png"], "no such folder"),
    ],
)
def test_what_cannot_be_is_refused_by_name(more: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        prepare(parser().parse_args(["stats", "--config", "f", *more]))
