"""Which topics a job over many is for: `--topic` again and again, `--pattern`, or all."""

import re
from collections.abc import Sequence

from pipeline.jobs.job_context import UsageError
from table.planning.request import TopicSelection


def topic_selection(topics: Sequence[str], pattern: str | None) -> TopicSelection:
    """As the command line has it; argparse sees to it that there is one of the two at most.

    Raises:
        UsageError: no pattern that Python's re takes.
    """
    if topics:
        return TopicSelection(topics=tuple(dict.fromkeys(topics)))
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"--pattern is not a pattern that Python's re takes: {error}") from error
    return TopicSelection(pattern=".*" if pattern is None else pattern)
