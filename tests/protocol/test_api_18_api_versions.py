"""ApiVersions: ranges are cut, everything else is upstream's own bytes."""

import struct
from typing import Any

from protocol.api_versions import encode_unsupported_version, rewrite_frame, rewrite_response
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

VERSIONS = kio_frames.versions_of(ApiKey.API_VERSIONS)
every_version = for_each("api_version", VERSIONS)
Ranges = list[tuple[int, int, int]]

UPSTREAM: Ranges = [(0, 0, 14), (1, 0, 17), (3, 0, 13), (7, 0, 3), (17, 0, 1), (18, 0, 5), (500, 0, 0)]
CUT: Ranges = [(0, 0, 13), (1, 4, 17), (3, 0, 13), (17, 0, 1), (18, 0, 4)]


def response(api_version: int, ranges: Ranges, *, unknown_tag: bool = False) -> Any:
    entries = [{"api_key": key, "min_version": oldest, "max_version": newest} for key, oldest, newest in ranges]
    features = [{"name": "metadata.version", "min_version": 1, "max_version": 27}]
    values = {"api_keys": entries, "supported_features": features, "finalized_features_epoch": 12345}
    return kio_frames.fill(kio_frames.schema(ApiKey.API_VERSIONS, api_version, unknown_tag=unknown_tag), values)


@every_version
def test_ranges_are_cut_and_all_else_is_kept(api_version: int) -> None:
    for unknown_tag in (False, True):
        body = kio_frames.encode(response(api_version, UPSTREAM, unknown_tag=unknown_tag))
        expected = kio_frames.encode(response(api_version, CUT, unknown_tag=unknown_tag))
        assert rewrite_response(api_version, memoryview(body)) == expected
        assert rewrite_response(api_version, memoryview(body + b"trailing")) == expected + b"trailing"
    frame = kio_frames.response_frame(response(api_version, UPSTREAM, unknown_tag=True), 77)
    expected_frame = kio_frames.response_frame(response(api_version, CUT, unknown_tag=True), 77)
    assert rewrite_frame(api_version, memoryview(frame)) == expected_frame
    assert_refused_when_cut(lambda cut: rewrite_frame(api_version, cut), frame)


@every_version
def test_an_unsupported_version_is_answered_in_the_shape_of_v0(api_version: int) -> None:
    body = struct.pack(">hihhh", 35, 1, 18, 0, 5)
    assert rewrite_response(api_version, memoryview(body)) == struct.pack(">hihhh", 35, 1, 18, 0, 4)


def test_our_answer_to_a_version_that_we_do_not_know_is_kafkas() -> None:
    frame = encode_unsupported_version(99)

    schema = kio_frames.schema(ApiKey.API_VERSIONS, 0)
    message = kio_frames.decode(schema, frame[8:])
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 99)
    assert message.error_code.value == 35
    assert [(each.api_key, each.min_version, each.max_version) for each in message.api_keys] == [(18, 0, 4)]
