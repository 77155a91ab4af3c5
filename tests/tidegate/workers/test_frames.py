"""Frames between supervisor and worker: any cut of the bytes gives the same ones, and nothing but frames is taken."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.workers.frames import BODY_BYTES_MAX, Frame, FrameDecoder, FrameError, FrameKind, encode

BODIES = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9), max_size=4)
FRAMES = st.lists(st.tuples(st.sampled_from(FrameKind), BODIES, st.integers(0, 2**32 - 1)), max_size=6)


@given(FRAMES, st.data())
def test_any_cut_gives_the_same_frames_with_their_descriptors(
    sent: list[tuple[FrameKind, dict[str, object], int]], data: st.DataObject
) -> None:
    stream, descriptors, expected = b"", {}, []
    for number, (kind, body, id_) in enumerate(sent, start=100):
        descriptor = number if kind is FrameKind.GIVE else None
        if descriptor is not None:
            descriptors[len(stream)] = descriptor  # it comes with the frame's first byte
        stream += encode(kind, body, id_)
        expected.append(Frame(kind, body, id_, descriptor))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {0, len(stream)})
    decoder, got = FrameDecoder(), []
    for start, end in pairwise(cuts):
        given_now = [descriptor for at, descriptor in sorted(descriptors.items()) if start <= at < end]
        got += decoder.receive(stream[start:end], given_now)
    assert got == expected
    assert decoder.left_descriptors() == []


def test_descriptors_that_no_frame_took_are_handed_over_to_be_closed() -> None:
    decoder = FrameDecoder()
    decoder.receive(encode(FrameKind.GIVE, {})[:4], [7])
    assert decoder.left_descriptors() == [7]
    assert decoder.left_descriptors() == []


def test_what_is_no_frame_is_refused() -> None:
    for stream, words in (
        (struct.pack(">IBI", 2, 9, 0) + b"{}", "number 9"),
        (struct.pack(">IBI", BODY_BYTES_MAX + 1, 1, 0), "at most"),
        (struct.pack(">IBI", 3, 1, 0) + b"{]}", "no JSON"),
        (struct.pack(">IBI", 2, 1, 0) + b"[]", "no object"),
        (encode(FrameKind.GIVE, {"broker": 1}), "without its descriptor"),
    ):
        with pytest.raises(FrameError, match=words):
            FrameDecoder().receive(stream)
