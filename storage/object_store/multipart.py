"""Cut what a put is given into the parts of a multipart upload, holding one part at a time.

S3's rules (User Guide, "Amazon S3 multipart upload limits"): at most 10,000 parts, each at least 5 MiB but the last,
an object at most 5 TiB. The length of an iterable is not known before its end, so parts double in size every 900
parts: 900 × 5 MiB × (1 + 2 + … + 1,024) is 8.8 TiB within 9,900 parts. Every 1,000 would end just short of 5 TiB.
"""

from collections.abc import Iterable, Iterator

PARTS_MAX = 10_000
PART_BYTES_MIN = 5 * 1024 * 1024
PART_BYTES_MAX = 2**31 - 1
"""Aiven's limit: a Java array's. S3 would take 5 GiB."""
OBJECT_BYTES_MAX = 5 * 1024**4
SINGLE_PUT_BYTES_MAX = 5 * 1024**3
"""Limit for one PutObject, by its API reference."""

_PARTS_OF_ONE_SIZE = 900


def part_size_bytes(number: int, first_part_bytes: int) -> int:
    """Return how large part `number` (from 1) is, unless the object ends in it."""
    return min(first_part_bytes << ((number - 1) // _PARTS_OF_ONE_SIZE), PART_BYTES_MAX)


def parts(source: bytes | Iterable[bytes], first_part_bytes: int) -> Iterator[bytes | bytearray]:
    """The source in parts, in order: each full but the last; one empty part when the source is empty.

    A part is the consumer's to keep. Errors of the source pass through.
    """
    number = 1
    part = bytearray()
    for piece in (source,) if isinstance(source, bytes) else source:
        view = memoryview(piece)
        while view:
            room = part_size_bytes(number, first_part_bytes) - len(part)
            if not room:
                yield part
                number, part = number + 1, bytearray()
                continue
            part += view[:room]
            view = view[room:]
    if part or number == 1:
        yield part
