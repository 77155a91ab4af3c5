from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.epoch_state import Arena


def test_freed_room_is_used_again_by_the_same_size() -> None:
    arena = Arena()
    first = arena.put(b"a" * 20)
    arena.put(b"b" * 20)

    arena.release(first, 20)

    assert arena.put(b"c" * 30) == first
    assert arena.get(first, 30) == b"c" * 30


def test_an_empty_string_takes_no_room_and_frees_none() -> None:
    arena = Arena()
    arena.release(arena.put(b""), 0)
    arena.release(arena.put(b""), 0)

    assert arena.put(b"x") == arena.put(b"") - 16


@given(st.lists(st.binary(max_size=70) | st.none(), max_size=60))
def test_strings_never_overlap(steps: list[bytes | None]) -> None:
    """A None gives the oldest string back."""
    arena = Arena()
    kept: list[tuple[int, bytes]] = []
    for blob in steps:
        if blob is not None:
            kept.append((arena.put(blob), blob))
        elif kept:
            position, oldest = kept.pop(0)
            arena.release(position, len(oldest))

        assert [arena.get(position, len(content)) for position, content in kept] == [content for _, content in kept]
