"""A decoder of Aiven's format that shares no code with Tidegate: from docs/formats.md alone, by the standard library,
zstd and AES.

    segment = decode_segment(objects, private_key_pem)      # objects by suffix: log, indexes, rsm-manifest
    assert segment.log == …

It is strict where the plug-in is: an unknown member, a chunk of another size, or a byte too many is an error.
"""

import base64
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import zstandard
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key

TOP = ["version", "chunkIndex", "segmentIndexes", "compression", "encryption", "remoteLogSegmentMetadata"]
INDEXES = {
    "offset": "index",
    "timestamp": "timeindex",
    "producerSnapshot": "snapshot",
    "leaderEpoch": "leader_epoch_checkpoint",
    "transaction": "txnindex",
}
"""In the order in which they lie, and the suffix that LocalTieredStorage gives them."""

HASH_BYTES = 64
INDEX_FRAME_BYTES_MAX = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DecodedSegment:
    """Everything of a segment in clear. `files` by the suffix of LocalTieredStorage."""

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    ivs: tuple[bytes, ...]
    """For all chunks and indexes."""


def decode_segment(
    log: bytes, indexes: bytes, manifest: bytes, private_keys: Mapping[str, bytes] | None = None
) -> DecodedSegment:
    """Decode a segment's three objects; `private_keys` are PEM by key id."""
    document = json.loads(manifest.decode())
    expected = [member for member in TOP if member != "encryption" or "encryption" in document]
    assert list(document) == expected, "just the plug-in's members, in its order"
    assert document["version"] == "1"
    aead, aad = None, b""
    if "encryption" in document:
        assert list(document["encryption"]) == ["dataKey", "aad"]
        aad = base64.b64decode(document["encryption"]["aad"], validate=True)
        assert len(aad) == 32
        aead = AESGCM(_unwrap(document["encryption"]["dataKey"], private_keys or {}))
    ivs: list[bytes] = []
    files = {"log": _decode_log(log, document, aead, aad, ivs)}
    files |= _decode_indexes(indexes, document["segmentIndexes"], aead, aad, ivs)
    return DecodedSegment(files, document, tuple(ivs))


def _decode_log(log: bytes, document: Mapping[str, Any], aead: AESGCM | None, aad: bytes, ivs: list[bytes]) -> bytes:
    index = document["chunkIndex"]
    chunk_bytes, file_bytes = index["originalChunkSize"], index["originalFileSize"]
    sizes = _sizes(index, document["compression"])
    assert sum(sizes) == len(log), "the chunks are the object, without a byte between or behind them"
    plain, position = [], 0
    for number, size in enumerate(sizes):
        chunk = _decrypted(log[position : position + size], aead, aad, ivs)
        position += size
        wanted = min(chunk_bytes, file_bytes - number * chunk_bytes)
        if document["compression"]:
            parameters = zstandard.get_frame_parameters(chunk)
            assert parameters.content_size == wanted, "the plug-in reads no frame without its content size"
            assert not parameters.has_checksum
            assert parameters.dict_id == 0
            chunk = zstandard.ZstdDecompressor().decompress(chunk, allow_extra_data=False)
        assert len(chunk) == wanted
        plain.append(chunk)
    return b"".join(plain)


def _sizes(index: Mapping[str, Any], compression: bool) -> list[int]:
    file_bytes = index["originalFileSize"]
    count = -(-file_bytes // index["originalChunkSize"])
    numbers = [value for name, value in index.items() if name not in ("type", "transformedChunks")]
    assert all(type(value) is int and 0 <= value < 2**31 for value in numbers)
    if index["type"] == "fixed":
        assert not compression
        members = ["originalChunkSize", "originalFileSize", "transformedChunkSize", "finalTransformedChunkSize"]
        assert list(index) == ["type", *members]
        return [index["transformedChunkSize"]] * (count - 1) + [index["finalTransformedChunkSize"]] * (count > 0)
    assert (index["type"], compression) == ("variable", True)
    assert list(index) == ["type", "originalChunkSize", "originalFileSize", "transformedChunks"]
    frame = base64.b64decode(index["transformedChunks"], validate=True)
    assert 0 <= zstandard.get_frame_parameters(frame).content_size <= INDEX_FRAME_BYTES_MAX
    sizes = _packed_sizes(zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False))
    assert len(sizes) == count
    return sizes


def _packed_sizes(binary: bytes) -> list[int]:
    (count,) = struct.unpack_from(">i", binary)
    if count < 2:
        assert len(binary) == 4 + 4 * count
        return list(struct.unpack_from(f">{count}i", binary, 4))
    base, width = struct.unpack_from(">iB", binary, 4)
    packed, (last,) = binary[9:-4], struct.unpack(">i", binary[-4:])
    assert len(packed) == (count - 1) * width
    deltas = [int.from_bytes(packed[at : at + width], "big") for at in range(0, len(packed), width)]
    assert min(deltas) == 0, "the base is the smallest"
    return [*(base + delta for delta in deltas), last]


def _decode_indexes(
    stored: bytes, places: Mapping[str, Any], aead: AESGCM | None, aad: bytes, ivs: list[bytes]
) -> dict[str, bytes]:
    assert list(places) == list(INDEXES), "all are there, if as null"
    files, position = {}, 0
    for member, suffix in INDEXES.items():
        place = places[member]
        if place is None:
            assert member == "transaction"
            continue
        assert list(place) == ["position", "size"]
        assert place["position"] == position
        content = stored[position : position + place["size"]]
        position += place["size"]
        files[suffix] = _decrypted(content, aead, aad, ivs) if content else b""
    assert position == len(stored)
    return files


def _decrypted(stored: bytes, aead: AESGCM | None, aad: bytes, ivs: list[bytes]) -> bytes:
    if aead is None:
        return stored
    ivs.append(stored[:12])
    return aead.decrypt(stored[:12], stored[12:], aad)


def _unwrap(data_key: str, private_keys: Mapping[str, bytes]) -> bytes:
    """RSAES-OAEP-DECRYPT (RFC 8017 §7.1.2) with SHA3-512, also inside MGF1, and an empty label; for tests alone, since
    it takes a time that depends on the key."""
    key_id, _, encoded = data_key.partition(":")
    key = _private_key(private_keys[key_id])
    numbers = key.private_numbers()
    size = key.key_size // 8
    ciphertext = base64.b64decode(encoded, validate=True)
    assert len(ciphertext) == size
    # By the Chinese remainder theorem (RFC 8017 §5.1.2), four times as fast as by d alone.
    number = int.from_bytes(ciphertext, "big")
    one, other = pow(number, numbers.dmp1, numbers.p), pow(number, numbers.dmq1, numbers.q)
    padded = (other + numbers.q * (numbers.iqmp * (one - other) % numbers.p)).to_bytes(size, "big")
    assert padded[0] == 0
    masked_seed, masked_block = padded[1 : 1 + HASH_BYTES], padded[1 + HASH_BYTES :]
    seed = _xor(masked_seed, _mask(masked_block, HASH_BYTES))
    block = _xor(masked_block, _mask(seed, len(masked_block)))
    assert hmac.compare_digest(block[:HASH_BYTES], hashlib.sha3_512(b"").digest())
    zeros, separator, message = block[HASH_BYTES:].partition(b"\x01")
    assert separator
    assert not zeros.strip(b"\0")
    assert len(message) == 32
    return message


@cache
def _private_key(pem: bytes) -> RSAPrivateKey:
    """Cached, since loading one checks its primes, which takes longer than to decrypt by it."""
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, RSAPrivateKey)
    return key


def _mask(seed: bytes, size: int) -> bytes:
    blocks = (hashlib.sha3_512(seed + number.to_bytes(4, "big")).digest() for number in range(-(-size // HASH_BYTES)))
    return b"".join(blocks)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
