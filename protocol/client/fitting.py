"""A broker's answer made safe for kio: whatever it announces fits into it, and what is unknown in it is left out.

kio makes room for an array before it reads the first entry, so a length of 2^32 - 2 ends the process; and it knows no
tagged field but those of its own schema, which a newer broker may add to at any time (KIP-482: they are skipped).

Rule 1. An array of n entries has n times the least size of an entry behind it, and a string or bytes their own length.
Rule 2. Unknown tagged fields are cut out, in the header and at every depth; where there are none nothing is copied.

What each byte means stays kio's affair: a value that may not be, a null where there is none.
"""

import functools
import typing
from collections.abc import Callable
from dataclasses import Field, fields
from types import NoneType
from typing import Any

from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import write_uvarint

_Cut = tuple[int, int, bytes]
"""Where something is to be replaced, and by what."""
_Walk = Callable[[bytes, int, int, list[_Cut]], int]
"""Passes a value at a position, which ends by another one; where it has ended."""

_FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "datetime_i64": 8,
    "timedelta_i64": 8,
    "uuid": 16,
}
_LENGTH_BYTES = {"string": 2, "bytes": 4, "records": 4}
"""Before what is not compact."""
_ARRAY_LENGTH_BYTES = 4
_UVARINT_BYTES_MAX = 5


def fitted(data: bytes, *entity_types: Any) -> bytes:
    """The bytes of these entities, one after another, without what is unknown.

    Raises:
        PeerProtocolError: something does not fit, or bytes are left over.
    """
    cuts: list[_Cut] = []
    at = 0
    try:
        for entity_type in entity_types:
            at = _walk_of(entity_type)[0](data, at, len(data), cuts)
    except IndexError as error:
        raise PeerProtocolError("truncated") from error
    if at != len(data):
        raise PeerProtocolError(f"{len(data) - at} bytes left over" if at < len(data) else "truncated")
    return _replaced(data, 0, at, cuts) if cuts else data


@functools.cache
def _walk_of(entity_type: Any) -> tuple[_Walk, int]:
    """Return what passes an entity, and its least size."""
    flexible = bool(entity_type.__flexible__)
    steps: list[tuple[int, _Walk]] = []
    tagged: dict[int, _Walk] = {}
    least_bytes = fixed_bytes = 0
    hints = typing.get_type_hints(entity_type)
    for each in fields(entity_type):
        walk, size_bytes = _walk_of_field(each, hints[each.name], flexible)
        if "tag" in each.metadata:
            tagged[int(each.metadata["tag"])] = walk or _passing(size_bytes)
            continue
        least_bytes += size_bytes
        if walk is None:
            fixed_bytes += size_bytes
        else:
            steps.append((fixed_bytes, walk))
            fixed_bytes = 0
    if flexible:
        steps.append((fixed_bytes, _walk_of_tags(tagged)))
        fixed_bytes = 0

    def walk_entity(data: bytes, at: int, end: int, cuts: list[_Cut]) -> int:
        # A step that begins beyond the end raises IndexError, or ends beyond it, which is seen at last.
        for passed_bytes, step in steps:
            at = step(data, at + passed_bytes, end, cuts)
        return at + fixed_bytes

    return walk_entity, least_bytes + flexible


def _walk_of_field(field: Field[Any], hint: Any, flexible: bool) -> tuple[_Walk | None, int]:
    """None: it has a fixed size."""
    alternatives = typing.get_args(hint) if type(hint) is not type and NoneType in typing.get_args(hint) else (hint,)
    inner: Any = next(each for each in alternatives if each is not NoneType)
    if typing.get_origin(inner) is tuple:
        entry: Any = typing.get_args(inner)[0]
        is_entity = hasattr(entry, "__flexible__")
        return _walk_of_array(_walk_of(entry) if is_entity else _walk_of_primitive(field, flexible), flexible)
    if not hasattr(inner, "__flexible__"):
        return _walk_of_primitive(field, flexible)
    walk, least_bytes = _walk_of(inner)
    return (_nullable(walk), 1) if len(alternatives) > 1 else (walk, least_bytes)


def _walk_of_primitive(field: Field[Any], flexible: bool) -> tuple[_Walk | None, int]:
    kind = field.metadata["kafka_type"]
    if kind in _FIXED_BYTES:
        return None, _FIXED_BYTES[kind]
    length_bytes = _LENGTH_BYTES[kind]
    return _walk_of_array((None, 1), flexible, length_bytes)


def _walk_of_array(
    entry: tuple[_Walk | None, int], flexible: bool, length_bytes: int = _ARRAY_LENGTH_BYTES
) -> tuple[_Walk, int]:
    """Strings and bytes are arrays of bytes."""
    walk, least_bytes = entry
    length_bytes = 0 if flexible else length_bytes

    def walk_array(data: bytes, at: int, end: int, cuts: list[_Cut]) -> int:
        if flexible and (length := data[at]) < 0x80:  # nearly all; this is the inmost loop of large answers
            count, at = length - 1, at + 1
        else:
            count, at = _length(data, at, length_bytes)
        if count <= 0:
            return at
        if count * least_bytes > end - at:
            raise PeerProtocolError(f"{count} entries of {least_bytes} bytes or more in {end - at} bytes")
        if walk is None:
            return at + count * least_bytes
        for _ in range(count):
            at = walk(data, at, end, cuts)
        return at

    return walk_array, length_bytes or 1


def _nullable(walk: _Walk) -> _Walk:
    """A byte says whether an entity is there."""

    def walk_if_there(data: bytes, at: int, end: int, cuts: list[_Cut]) -> int:
        return at + 1 if data[at] >= 0x80 else walk(data, at + 1, end, cuts)

    return walk_if_there


def _passing(size_bytes: int) -> _Walk:
    return lambda _data, at, _end, _cuts: at + size_bytes


def _walk_of_tags(tagged: dict[int, _Walk]) -> _Walk:
    def walk_tags(data: bytes, at: int, end: int, cuts: list[_Cut]) -> int:
        if data[at] == 0:
            return at + 1
        start = at
        count, at = _uvarint(data, at)
        kept: list[bytes] = []
        is_changed = False
        for _ in range(count):
            tag, at = _uvarint(data, at)
            size_bytes, at = _uvarint(data, at)
            value_end = at + size_bytes
            if value_end > end:
                raise PeerProtocolError(f"tagged field of {size_bytes} bytes in {end - at}")
            inner_cuts: list[_Cut] = []
            if tag in tagged and tagged[tag](data, at, value_end, inner_cuts) != value_end:
                raise PeerProtocolError(f"tagged field {tag} is not {size_bytes} bytes long")
            if tag in tagged:
                value = _replaced(data, at, value_end, inner_cuts)
                kept += (write_uvarint(tag), write_uvarint(len(value)), value)
            is_changed = is_changed or tag not in tagged or bool(inner_cuts)
            at = value_end
        if is_changed:
            cuts.append((start, at, b"".join((write_uvarint(len(kept) // 3), *kept))))
        return at

    return walk_tags


def _replaced(data: bytes, start: int, end: int, cuts: list[_Cut]) -> bytes:
    pieces: list[bytes] = []
    for cut_start, cut_end, replacement in cuts:
        pieces += (data[start:cut_start], replacement)
        start = cut_end
    return b"".join((*pieces, data[start:end]))


def _length(data: bytes, at: int, field_bytes: int) -> tuple[int, int]:
    """-1 for null, and where what has this length begins. `field_bytes` 0: compact."""
    if not field_bytes:
        length, at = _uvarint(data, at)
        return length - 1, at
    length = int.from_bytes(data[at : at + field_bytes], "big", signed=True)
    if length < -1:
        raise PeerProtocolError(f"a length of {length}")
    return length, at + field_bytes


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value = 0
    for position in range(at, at + _UVARINT_BYTES_MAX):
        value |= (data[position] & 0x7F) << 7 * (position - at)
        if data[position] < 0x80:
            return value & 0xFFFFFFFF, position + 1
    raise PeerProtocolError(f"varint longer than {_UVARINT_BYTES_MAX} bytes")
