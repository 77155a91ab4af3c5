"""The leader epoch checkpoint of a segment, a text object (docs/kafka-tier.md#indexes).

Lines: the version `0`, the number of entries, then `epoch start_offset` each; every line ends with a newline, the
last one too: without it an object cut inside its last number would read as a smaller offset.
It holds the lineage from the oldest retained epoch up to the segment's end offset.
"""

import re
from collections.abc import Iterable

from storage.errors import CorruptObjectError

LeaderEpochs = tuple[tuple[int, int], ...]
"""(leader epoch, its start offset) in ascending order."""

_VERSION = "0"
_COUNT = re.compile(r"[0-9]{1,10}", re.ASCII)
_ENTRY = re.compile(r"([0-9]{1,10}) ([0-9]{1,19})", re.ASCII)
_EPOCH_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1


def parse_leader_epochs(data: bytes, name: str = "leader epoch checkpoint") -> LeaderEpochs:
    """The entries of a checkpoint, in its order.

    Raises:
        CorruptObjectError: another version, a wrong count, a malformed line, a missing last newline, epochs that
            do not ascend, or start offsets that descend.
    """
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptObjectError(f"{name}: not ASCII at byte {error.start}") from error
    if lines.pop() != "":
        raise CorruptObjectError(f"{name}: the last line, at byte {len(data)}, does not end with a newline")
    if len(lines) < 2 or lines[0] != _VERSION:
        raise CorruptObjectError(f"{name}: line 1 is not version {_VERSION}, or there is no line 2")
    if not _COUNT.fullmatch(lines[1]) or int(lines[1]) != len(lines) - 2:
        raise CorruptObjectError(f"{name}: line 2 is not the number of entries, {len(lines) - 2}")
    epochs: list[tuple[int, int]] = []
    for line_number, line in enumerate(lines[2:], start=3):
        entry = _parse_entry(line)
        if entry is None:
            raise CorruptObjectError(f"{name}: line {line_number} is not an epoch and a start offset")
        if epochs and (entry[0] <= epochs[-1][0] or entry[1] < epochs[-1][1]):
            raise CorruptObjectError(f"{name}: line {line_number} does not ascend")
        epochs.append(entry)
    return tuple(epochs)


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The checkpoint of (leader epoch, start offset) pairs in ascending order."""
    entries = [f"{epoch} {start_offset}\n" for epoch, start_offset in epochs]
    return f"{_VERSION}\n{len(entries)}\n{''.join(entries)}".encode("ascii")


def _parse_entry(line: str) -> tuple[int, int] | None:
    match = _ENTRY.fullmatch(line)
    if match is None:
        return None
    epoch, start_offset = int(match[1]), int(match[2])
    if epoch > _EPOCH_MAX or start_offset > _OFFSET_MAX:
        return None
    return epoch, start_offset
