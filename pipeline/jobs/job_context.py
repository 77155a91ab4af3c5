"""What every job is given (the session, the configuration, and where it may print) and what it gives back.

A job's module has `prepare(arguments)`, which looks at the command line before Spark is started, raises UsageError or
OptionsError, and returns what is then run with a JobContext.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.console import Console

from storage.config.tier_client import TierClientConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE: Final = 0
"""The work was done and nothing was found wrong."""
FOUND_WRONG: Final = 1
"""The job ran and found something wrong, or could not be finished."""
USAGE: Final = 2
"""The command line or the configuration is wrong; nothing was done."""


class UsageError(Exception):
    """The command line asks for what cannot be. `problems` has a sentence for each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class JobError(Exception):
    """A job found what it must not go on with; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """`output` is for what was asked for, `messages` for progress and troubles."""

    spark: "SparkSession"
    config: TierClientConfig
    output: Console
    messages: Console


RunJob: TypeAlias = Callable[[JobContext], int]
"""Returns the exit code."""
