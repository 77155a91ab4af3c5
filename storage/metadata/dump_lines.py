"""The lines that `tidegate metadata dump` writes, read back: each is JSON, most of them a record of the topic."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from storage.errors import MetadataRecordError, TierError
from storage.metadata.catalog import Catalog
from storage.metadata.reading import MetadataEvent
from storage.metadata.serde import decode

LINE_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""A record has at most message.max.bytes, 1 MiB by default, and stands in the line twice."""

OTHER_LINES: Final = ("dump", "partition", "complete")
"""Lines of a dump that are no records, by the key of their only member; the last two are of mode=standalone."""


class LineError(TierError):
    """A line is none that `dump` writes."""


def catalog_of_dump(path: Path) -> Catalog:
    """The catalog that a dump's records make, as they make a broker's.

    Raises:
        LineError: the file cannot be read, or a line is none of a dump's.
    """
    catalog = Catalog()
    for event in _events(path):
        if event.value is None:
            if event.key is not None:
                catalog.apply_tombstone(event.key, initialized=False)
            continue
        try:
            record = decode(event.value)
        except MetadataRecordError as error:
            raise LineError(f"{path}, line {event.offset}: {error}") from error
        catalog.apply(record, initialized=False, is_keyed=event.key is not None)
    return catalog


def _events(path: Path) -> Iterator[MetadataEvent]:
    try:
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(LINE_CHARACTERS_MAX):
                number += 1
                found = parse_line(line, number)
                if isinstance(found, MetadataEvent):
                    yield found
    except (OSError, UnicodeDecodeError) as error:
        raise LineError(f"{path} cannot be read as what `tidegate metadata dump` writes: {error}") from error


def parse_line(line: str, number: int) -> MetadataEvent | Mapping[str, Any] | None:
    """A record, whose offset is the line's number; another line of a dump as it is; None of an empty line.

    Raises:
        LineError: it is none that `dump` writes.
    """
    if not line.strip():
        return None
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        if any(isinstance(fields.get(kind), dict) for kind in OTHER_LINES):
            return fields
        partition, timestamp_ms = fields["metadata_partition"], fields["timestamp_ms"]
        key, value = (_from_base64(fields[name]) for name in ("key", "value"))
        if not isinstance(partition, int) or not isinstance(timestamp_ms, int) or not abs(timestamp_ms) < 2**62:
            raise TypeError("metadata_partition and timestamp_ms are numbers")
        if key is None and value is None:
            raise ValueError("a record without key and value")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LineError(
            f"line {number} is none that `tidegate metadata dump` writes ({error!r}): leave it out, or dump again"
        ) from error
    return MetadataEvent(partition, number, timestamp_ms, key, value)


def _from_base64(text: object) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError("key and value are text")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
