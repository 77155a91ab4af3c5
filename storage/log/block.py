"""One block of a segment's log in memory, and how far its batches are known to be whole."""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple


class VerifiedRun(NamedTuple):
    """Whole batches that have passed their CRC: from byte `start` to byte `end` of the segment, and the last offset.

    `serials` are those of the blocks that they were seen in.
    """

    start: int
    end: int
    last_offset: int
    serials: tuple[int, ...]


NOTHING_VERIFIED = VerifiedRun(0, 0, -1, ())


@dataclass(slots=True, eq=False)
class Block:
    """One block's plaintext, and how far its batches are known to be whole.

    `verified` are batches that lie in this block. `straddler` is the one that begins here and ends in a later block,
    which may have been evicted and fetched again since: then its serial is another, and the batch unverified again.
    """

    data: memoryview
    verified: VerifiedRun = NOTHING_VERIFIED
    straddler: VerifiedRun = NOTHING_VERIFIED
    serial: int = field(default_factory=itertools.count().__next__)
