"""One zstd frame for each chunk (docs/formats.md#aiven-compression).

A frame says in its header how large its content is; the plugin needs that too. Here it has to be just what the
chunk index says, so that memory is taken for what the manifest promised and never for what a frame claims.
"""

import threading

import zstandard

from storage.errors import CorruptObjectError

WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""Every decoder should support that much (RFC 8878 §3.1.1.1.2); level 3 takes at most 2 MiB, level 19 takes these 8."""


class _ThreadState(threading.local):
    """A decompressor has state, and is costly enough to keep: each thread has its own."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)


_thread_state = _ThreadState()


def decompress(stored: bytes | bytearray | memoryview, plaintext_bytes: int, name: str) -> bytes:
    """The content of exactly one frame: plaintext_bytes bytes. `name` is for the message. Thread-safe.

    Raises:
        CorruptObjectError: not one whole frame, bytes behind it, no content size, or another than plaintext_bytes.
    """
    try:
        content_bytes = zstandard.frame_content_size(stored)
        if content_bytes != plaintext_bytes:
            said = "no content size" if content_bytes < 0 else f"a content size of {content_bytes}"
            raise CorruptObjectError(f"{name}: its zstd frame has {said}, its chunk has {plaintext_bytes} bytes")
        if content_bytes == 0:
            # The library would answer this by the header alone, whatever follows it.
            raise CorruptObjectError(f"{name}: its zstd frame is empty, and no chunk is")
        plaintext = _thread_state.decompressor.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptObjectError(f"{name}: {error}") from error
    if len(plaintext) != plaintext_bytes:
        raise CorruptObjectError(f"{name}: {len(plaintext)} bytes decompressed, its chunk has {plaintext_bytes}")
    return plaintext
