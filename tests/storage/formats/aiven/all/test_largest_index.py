"""The largest index that is read."""

import base64
import struct
from typing import Any

import zstandard

from storage.formats.aiven.manifest import (
    BINARY_BYTES_MAX,
    FixedChunkIndex,
    JsonObject,
    VariableChunkIndex,
    decode_chunk_index,
)

VARIABLE = {
    "type": "variable",
    "originalChunkSize": 100,
    "originalFileSize": 250,
    "transformedChunks": "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe",
}


def decoded(members: dict[str, Any]) -> FixedChunkIndex | VariableChunkIndex:
    return decode_chunk_index(JsonObject("seg.rsm-manifest", members, "chunkIndex"))


def framed(binary: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(binary)).decode()


def test_the_largest_index_is_read() -> None:
    count = BINARY_BYTES_MAX - 9 - 4 + 1
    binary = struct.pack(">iiB", count, 0, 1) + bytes(count - 1) + struct.pack(">i", 7)
    assert len(binary) == BINARY_BYTES_MAX
    members = {"originalChunkSize": 1, "originalFileSize": count, "transformedChunks": framed(binary)}
    assert decoded(VARIABLE | members).stored_file_bytes == 7
