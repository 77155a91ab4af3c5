"""A segment's three objects, wherever they are (docs/formats.md#aiven-keys).

Custom metadata may name another prefix and another main path than the configuration gives today. That place is tried
first, then the configured one: the plug-in applies the override to log and indexes alone, so that after a change of
`key.prefix` a manifest may be at either. Which place held an object is remembered, for each object of its own.

Under `key.prefix.mask` no message shows the prefix, neither ours nor the store's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from storage.errors import InvalidRangeError, RemoteResourceNotFoundError, RemoteStorageError, TruncatedObjectError
from storage.formats.aiven.object_keys import ObjectSuffix, masked_object_key, object_key
from storage.object_store.object_store import ObjectStore, ObjectStream, read_whole


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Prefix and main path of a segment's keys. `masked`: the prefix is not for messages."""

    prefix: str
    path: str
    masked: bool = False

    def key(self, suffix: ObjectSuffix) -> str:
        """The key in the store."""
        return object_key(self.prefix, self.path, suffix)

    def name(self, suffix: ObjectSuffix) -> str:
        """The key in messages."""
        return masked_object_key(self.path, suffix) if self.masked else self.key(suffix)

    @contextmanager
    def errors(self, suffix: ObjectSuffix) -> Iterator[None]:
        """Put the name for the key in the store's own messages."""
        try:
            yield
        except RemoteStorageError as error:
            if self.masked:
                key, name = self.key(suffix), self.name(suffix)
                error.args = tuple(str(part).replace(key, name) for part in error.args)
                error.__notes__ = [note.replace(key, name) for note in getattr(error, "__notes__", ())]
                undeleted = error.undeleted.items()
                error.undeleted = {each.replace(key, name): why.replace(key, name) for each, why in undeleted}
                # Below it lies the SDK's error, with the key in its text.
                raise error from None
            raise


class ObjectBody:
    """The body of one GET under way. `name`: the object's, for messages."""

    def __init__(self, stream: ObjectStream, place: ObjectPlace, suffix: ObjectSuffix) -> None:
        self._stream = stream
        self._place = place
        self._suffix = suffix
        self.name = place.name(suffix)

    @property
    def size_bytes(self) -> int:
        return self._stream.size_bytes

    def readinto(self, buffer: memoryview) -> None:
        """As ObjectStream.readinto."""
        with self._place.errors(self._suffix):
            self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()


class SegmentObjects:
    """GETs of a segment's objects. Thread-safe: what is remembered is a hint, and any thread's is as good.

    Args:
        places: where the objects may be, in the order of trial.
    """

    def __init__(self, store: ObjectStore, places: Sequence[ObjectPlace]) -> None:
        self._store = store
        self._places = tuple(places)
        self._found: dict[ObjectSuffix, int] = {}

    def get_range(self, suffix: ObjectSuffix, start: int, end: int) -> ObjectBody:
        """Begin a GET of bytes [start, end), all of which the object should have.

        Raises:
            RemoteResourceNotFoundError: there is no such object in any place.
            TruncatedObjectError: the object ends before `end`.
            RemoteStorageError: as the store answers.
        """
        body = self._get(suffix, start, end)
        if body.size_bytes < end - start:
            body.close()
            raise _too_short(body.name, start, end, start + body.size_bytes)
        return body

    def get_whole(self, suffix: ObjectSuffix, bytes_max: int) -> tuple[bytes, str]:
        """A whole object and its name.

        Raises:
            CorruptObjectError: it is empty, or larger than `bytes_max`.
        """
        body = self._get(suffix, 0, bytes_max + 1)
        return bytes(read_whole(body, body.name, bytes_max)), body.name

    def name(self, suffix: ObjectSuffix) -> str:
        """The object in messages."""
        return self._places[self._likely(suffix)].name(suffix)

    def _get(self, suffix: ObjectSuffix, start: int, end: int) -> ObjectBody:
        likely = self._likely(suffix)
        numbers = (likely, *(number for number in range(len(self._places)) if number != likely))
        for number in numbers:
            place = self._places[number]
            try:
                with place.errors(suffix):
                    stream = self._store.get(place.key(suffix), start, end)
            except RemoteResourceNotFoundError:
                if len(self._places) == 1:
                    raise
                continue
            except InvalidRangeError as error:
                raise _too_short(place.name(suffix), start, end, None) from error
            self._found[suffix] = number
            return ObjectBody(stream, place, suffix)
        names = " nor at ".join(self._places[number].name(suffix) for number in numbers)
        raise RemoteResourceNotFoundError(f"there is no object at {names}")

    def _likely(self, suffix: ObjectSuffix) -> int:
        return self._found.get(suffix, self._found.get(ObjectSuffix.MANIFEST, 0))


def _too_short(name: str, start: int, end: int, size_bytes: int | None) -> TruncatedObjectError:
    ends = f"at or before {start}" if size_bytes is None else f"at {size_bytes}"
    message = f"{name}: bytes {start} to {end - 1} wanted, and the object ends {ends}"
    return TruncatedObjectError(message, start if size_bytes is None else size_bytes)
