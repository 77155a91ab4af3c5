"""Files of others, read whole up to a limit: configuration, keys, schemas."""

from pathlib import Path


class UnreadableFileError(Exception):
    """A file cannot be read, or is too large; says which of the two, to stand behind the file's name."""


def read_limited(path: Path, bytes_max: int) -> bytes:
    """All of a file.

    Raises:
        UnreadableFileError: the system refuses, or there are more than `bytes_max` bytes.
    """
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise UnreadableFileError(f"cannot be read: {error.strerror}") from error
    if len(content) > bytes_max:
        raise UnreadableFileError(f"is larger than {bytes_max} bytes")
    return content
