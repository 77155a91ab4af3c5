"""Messages of the old formats v0 and v1 (KIP-32), alone or in a compressed wrapper, with keys and values.

Old segments alone hold them, so they are read one by one. storage.log.batch_records reads wrappers, in bounded memory,
and says what offset and timestamp a message has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protocol.record_batches import COMPRESSION_MASK, LOG_APPEND_TIME_MASK, BatchHeader
from storage.log.batch_records import RecordStream, wrapped_messages
from storage.log.whole_records import key_and_value
from table.decoding.inflation import RecordTooLargeError
from table.decoding.record_fields import CREATE_TIME, LOG_APPEND_TIME, Ranges, RecordTable

NO_TIMESTAMP_TYPE = -1
"""For v0, as Kafka's clients say."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `timestamp_type` is Kafka's number."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None


def iterate_message_tables(
    header: BatchHeader, data: memoryview, bytes_max: int, records_max: int
) -> Iterator[RecordTable]:
    """The messages of a message set's entry as tables of about `bytes_max` or `records_max`.

    Raises:
        CorruptObjectError: while iterating; says what is wrong, not where.
        RecordTooLargeError: while iterating: a message has more than `bytes_max` bytes.
    """
    messages: list[Message] = []
    size_bytes = 0
    for message in iterate_messages(header, data, message_bytes_max=bytes_max):
        message_bytes = len(message.key or b"") + len(message.value or b"")
        if messages and (size_bytes + message_bytes > bytes_max or len(messages) >= records_max):
            yield message_table(messages)
            messages, size_bytes = [], 0
        messages.append(message)
        size_bytes += message_bytes
    if messages:
        yield message_table(messages)


def iterate_messages(header: BatchHeader, data: memoryview, *, message_bytes_max: int) -> Iterator[Message]:
    """The messages of a message set's entry: itself, or those it wraps.

    Raises:
        CorruptObjectError: while iterating.
        RecordTooLargeError: one has more than `message_bytes_max` bytes.
    """
    codec = header.attributes & COMPRESSION_MASK
    is_append_time = bool(header.attributes & LOG_APPEND_TIME_MASK) and header.magic == 1
    if header.magic == 0:
        timestamp_type = NO_TIMESTAMP_TYPE
    else:
        timestamp_type = LOG_APPEND_TIME if is_append_time else CREATE_TIME
    if codec == 0:
        if len(data) > message_bytes_max:
            raise RecordTooLargeError(f"a message of {len(data)} bytes")
        key, value = key_and_value(header.magic, data)
        yield Message(header.base_offset, header.max_timestamp, timestamp_type, key, value)
        return

    def take(stream: RecordStream, size: int) -> bytes:
        if size > message_bytes_max:
            stream.skip(size)  # corrupt if the bytes are not there
            raise RecordTooLargeError(f"a record of {size} bytes")
        return stream.take(size)

    for found in wrapped_messages(header, [data], take, None):
        if found is not None:
            offset, timestamp, message = found
            key, value = key_and_value(header.magic, memoryview(message))
            yield Message(offset, timestamp, timestamp_type, key, value)


def message_table(messages: Sequence[Message]) -> RecordTable:
    """The messages as a table of records."""
    pieces, starts, sizes = [b""], [], []
    end = 0
    for message in messages:
        for part in (message.key, message.value):
            starts.append(end)
            sizes.append(-1 if part is None else len(part))
            if part:
                pieces.append(part)
                end += len(part)
    start, size = np.array(starts, np.int64), np.array(sizes, np.int64)
    return RecordTable(
        data=np.frombuffer(b"".join(pieces) + b"\0", np.uint8),
        lane=np.zeros(len(messages), np.int64),
        offset=np.array([message.offset for message in messages], np.int64),
        size=np.maximum(size[0::2], 0) + np.maximum(size[1::2], 0),
        timestamp=np.array([message.timestamp_ms for message in messages], np.int64),
        timestamp_type=np.array([message.timestamp_type for message in messages], np.int64),
        key=Ranges(start[0::2], size[0::2]),
        value=Ranges(start[1::2], size[1::2]),
        headers=None,
    )
