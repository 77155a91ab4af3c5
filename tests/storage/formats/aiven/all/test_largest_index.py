"""The largest index that is read."""

import struct

from storage.formats.aiven.chunk_index import BINARY_BYTES_MAX
from tests.storage.formats.aiven.test_chunk_index import VARIABLE, decoded, framed


def test_the_largest_index_is_read() -> None:
    count = BINARY_BYTES_MAX - 9 - 4 + 1
    binary = struct.pack(">iiB", count, 0, 1) + bytes(count - 1) + struct.pack(">i", 7)
    assert len(binary) == BINARY_BYTES_MAX
    members = {"originalChunkSize": 1, "originalFileSize": count, "transformedChunks": framed(binary)}
    assert decoded(VARIABLE | members).stored_file_bytes == 7
