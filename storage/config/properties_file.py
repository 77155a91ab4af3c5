"""A Java properties file as Kafka reads one, with the line of each key.

Latin-1, as Java's Properties.load reads a stream: the broker's file then means the same to both, and a character
beyond it is written `\\uXXXX`. Of a key that is given twice the last counts, as in Java; the earlier lines are kept
for a warning.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties

_LINE_END = re.compile(r"\r\n|\r|\n")

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # a broker's file is a few KiB; inline PEM chains make it tens


class PropertiesError(Exception):
    """The file cannot be read or is no properties file; the message names file and reason."""


@dataclass(frozen=True, slots=True)
class Property:
    """One key as written, before placeholders are resolved. `lines` are all lines that give it, the last one counts."""

    text: str
    lines: tuple[int, ...]


def read_properties(path: Path) -> dict[str, Property]:
    """All keys of a file.

    Raises PropertiesError if it cannot be read, is larger than FILE_BYTES_MAX or holds a bad escape.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PropertiesError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise PropertiesError(f"{path}: larger than {FILE_BYTES_MAX} bytes: not a properties file")
    properties: dict[str, Property] = {}
    line = 1
    try:
        for item in javaproperties.parse(io.BytesIO(data)):
            if isinstance(item, javaproperties.KeyValue):
                earlier = properties[item.key].lines if item.key in properties else ()
                properties[item.key] = Property(item.value, (*earlier, line))
            line += len(_LINE_END.findall(item.source)) or 1
    except javaproperties.InvalidUEscapeError as error:
        raise PropertiesError(f"{path}:{line}: bad escape {error.escape!r}: must be \\uXXXX") from error
    return properties
