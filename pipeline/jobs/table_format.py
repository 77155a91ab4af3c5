"""What the two table formats give a backfill, and a table's name."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from pipeline.jobs.job_context import JobError, UsageError
from pipeline.jobs.table_state import Commit

_PART = re.compile(r"`((?:[^`]|``)+)`|([\w-]+)")


class OvertakenError(JobError):
    """Another driver made the commit that was this driver's to make, or the table went. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A name of some parts: `lake.db.orders`, or delta.`s3a://lake/orders` for a table without a catalog."""

    parts: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> "TableName":
        """From the command line.

        Raises:
            UsageError: it is none.
        """
        parts, at = [], 0
        while match := _PART.match(text, at):
            parts.append(match[2] or match[1].replace("``", "`"))
            at = match.end()
            if at == len(text):
                return TableName(tuple(parts))
            if text[at] != ".":
                break
            at += 1
        raise UsageError(f"--table {text}: it is no table's name, as catalog.db.orders, or delta.`s3a://lake/orders`")

    def __str__(self) -> str:
        """As SQL has it."""
        return ".".join(
            part if re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII) else "`" + part.replace("`", "``") + "`"
            for part in self.parts
        )

    @property
    def is_path(self) -> bool:
        """The table is a folder, and no catalog knows it."""
        return len(self.parts) == 2 and self.parts[0].lower() == "delta" and "/" in self.parts[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a commit says it added."""

    rows: int
    files: int
    bytes: int


class TableFormat(Protocol):
    """A table that exists. What is read is as it was at the last `refresh`."""

    def refresh(self) -> None: ...
    @property
    def table_id(self) -> str: ...
    @property
    def head(self) -> str | None: ...
    @property
    def sequence_floor(self) -> int: ...
    def properties(self) -> Mapping[str, str]: ...
    def set_property(self, value: str) -> None: ...
    def commits(self) -> Iterator[Commit]: ...
    def clean(self) -> None: ...
    def append(self, rows: DataFrame, state: str, sequence: int, check: Callable[[Written], None]) -> Written: ...


def first_line(error: BaseException) -> str:
    """Return the first line of its message; Java's go on with a trace."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
