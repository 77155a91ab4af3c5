"""DeleteRecords and OffsetForLeaderEpoch, whose answers are changed in their place: every version, against kio's codec
where it has one, and against peers that send nonsense."""

import datetime
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from protocol import delete_records, offset_for_leader_epoch
from protocol.fetch.messages import PARTITIONS_MAX, REQUEST_BYTES_MAX
from protocol.wire.errors import PeerProtocolError
from protocol.wire.request_headers import decode_request_header
from tests.support import kio_frames
from tests.support.drawn import drawn
from tests.support.hostile_bytes import assert_all_of_it_is_read
from tests.support.kio_frames import Kind

Row = dict[str, Any]
Topics = list[tuple[str, list[Row]]]

VALUES = {
    "h": st.sampled_from([0, 1, 7, 29, 74, 75]),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
}


@dataclass(frozen=True, kw_only=True)
class Api:
    """`asked` and `answered`: of a partition, in their order, each as struct writes it. `changed`: what a patch may."""

    key: int
    codec: ModuleType
    versions: range
    asked: Mapping[str, str]
    answered: Mapping[str, str]
    changed: tuple[str, str]

    def topics(self, fields: Mapping[str, str]) -> st.SearchStrategy[Topics]:
        row = st.fixed_dictionaries({name: VALUES[layout] for name, layout in fields.items()})
        return st.lists(st.tuples(st.sampled_from(["a", "topic-ø", "b" * 200]), st.lists(row, max_size=4)), max_size=4)

    def read(self, kind: Kind, frame: bytes | bytearray, version: int) -> list[Any]:
        view = memoryview(frame)
        if kind == "response":
            return list(self.codec.decode_response(view, version))
        request = self.codec.decode_request(view, decode_request_header(view))
        return list(getattr(request, "partitions", request))


DELETIONS = Api(
    key=21,
    codec=delete_records,
    versions=range(delete_records.DELETE_RECORDS_VERSION_MAX + 1),
    asked={"partition": "i", "offset": "q"},
    answered={"partition": "i", "low_watermark": "q", "error_code": "h"},
    changed=("low_watermark", "error_code"),
)
EPOCHS = Api(
    key=23,
    codec=offset_for_leader_epoch,
    versions=range(offset_for_leader_epoch.OFFSET_FOR_LEADER_EPOCH_VERSION_MAX + 1),
    asked={"partition": "i", "leader_epoch": "i"},
    answered={"error_code": "h", "partition": "i", "leader_epoch": "i", "end_offset": "q"},
    changed=("leader_epoch", "end_offset"),
)
both_apis = pytest.mark.parametrize("api", [DELETIONS, EPOCHS], ids=["DeleteRecords", "OffsetForLeaderEpoch"])


def frame_of(api: Api, kind: Kind, version: int, topics: Topics, *, unknown_tag: bool = False) -> bytes:
    if api is EPOCHS and version < 2:
        return old_epochs_frame(kind, version, topics)
    values = {
        "throttle_time": datetime.timedelta(milliseconds=12),
        "timeout": datetime.timedelta(milliseconds=4321),
        "topics": [{"name": name, "topic": name, "partitions": list(map(kios, rows))} for name, rows in topics],
    }
    schema = kio_frames.schema(api.key, version, kind=kind, unknown_tag=unknown_tag)
    write = kio_frames.request_frame if kind == "request" else kio_frames.response_frame
    return write(kio_frames.fill(schema, values), unknown_tag=unknown_tag and schema.__flexible__)


def kios(row: Row) -> Row:
    return row | {"partition_index": row["partition"], "error_code": KioErrorCode(row.get("error_code", 0))}


def old_epochs_frame(kind: Kind, version: int, topics: Topics) -> bytes:
    """kio has no such version: neither a current leader epoch nor a replica id, and at first no epoch in answers."""
    fields = dict(EPOCHS.asked if kind == "request" else EPOCHS.answered)
    if kind == "response" and version == 0:
        del fields["leader_epoch"]
    body = struct.pack(">hhih", EPOCHS.key, version, 5, -1) if kind == "request" else struct.pack(">i", 5)
    body += struct.pack(">i", len(topics))
    for name, rows in topics:
        raw = name.encode()
        body += struct.pack(">h", len(raw)) + raw + struct.pack(">i", len(rows))
        for row in rows:
            body += struct.pack(">" + "".join(fields.values()), *(row[each] for each in fields))
    return kio_frames.with_length(body)


def assert_read_as(found: list[Any], topics: Topics) -> None:
    flat = [{"topic": name} | row for name, rows in topics for row in rows]
    assert [{name: getattr(each, name) for name in row} for each, row in zip(found, flat, strict=True)] == flat


@both_apis
@drawn(150)
@given(data=st.data(), unknown_tag=st.booleans())
def test_a_request_is_read(api: Api, data: st.DataObject, unknown_tag: bool) -> None:
    version, topics = data.draw(st.sampled_from(api.versions)), data.draw(api.topics(api.asked))
    frame = frame_of(api, "request", version, topics, unknown_tag=unknown_tag)
    assert_read_as(api.read("request", frame, version), topics)


@both_apis
@drawn(150)
@given(data=st.data(), unknown_tag=st.booleans())
def test_an_answer_is_changed_in_its_place(api: Api, data: st.DataObject, unknown_tag: bool) -> None:
    """All answers but the first."""
    version, topics = data.draw(st.sampled_from(api.versions)), data.draw(api.topics(api.answered))
    changes: dict[str, Any] = {name: data.draw(VALUES[api.answered[name]]) for name in api.changed}
    frame = bytearray(frame_of(api, "response", version, topics, unknown_tag=unknown_tag))
    answers = api.read("response", frame, version)
    if api is EPOCHS and version == 0:
        assert [answer.leader_epoch for answer in answers] == [None] * len(answers)
        topics = [(name, [{**row, "leader_epoch": None} for row in rows]) for name, rows in topics]
        changes["leader_epoch"] = None
    assert_read_as(answers, topics)
    for answer in answers[1:]:
        for name, value in changes.items():
            setattr(answer, name, value)
        api.codec.patch(frame, answer)
    untouched = iter([row for _, rows in topics for row in rows][:1])
    changed = [(name, [next(untouched, row | changes) for row in rows]) for name, rows in topics]
    assert bytes(frame) == frame_of(api, "response", version, changed, unknown_tag=unknown_tag)


@both_apis
def test_bytes_that_are_cut_longer_or_changed(api: Api) -> None:
    for version in api.versions:
        kinds: tuple[tuple[Kind, Mapping[str, str]], ...] = ("request", api.asked), ("response", api.answered)
        for kind, fields in kinds:
            rows = [dict.fromkeys(fields, number) for number in range(3)]
            frame = frame_of(api, kind, version, [("orders", rows[:2]), ("other", rows[2:])])
            if kind == "request":
                header = decode_request_header(memoryview(frame))
                read, at = partial(api.codec.decode_request, header=header), header.body_position
            else:
                read, at = partial(api.codec.decode_response, api_version=version), 8
            assert_all_of_it_is_read(read, frame, body_position=at, shortest=at if kind == "request" else 0)


def test_more_than_is_read_is_refused() -> None:
    whole: Topics = [("a", [{"partition": number, "offset": 0} for number in range(PARTITIONS_MAX)])]
    frame = frame_of(DELETIONS, "request", 2, whole)
    request = delete_records.decode_request(memoryview(frame), decode_request_header(memoryview(frame)))
    assert (len(request.partitions), request.timeout_ms) == (PARTITIONS_MAX, 4321)
    more = frame_of(DELETIONS, "request", 2, [*whole, ("b", whole[0][1][:1])])
    longer = frame_of(DELETIONS, "request", 2, [("a", [])]) + bytes(REQUEST_BYTES_MAX)
    for refused, says in ((more, "ask for fewer"), (longer, "ask for less")):
        with pytest.raises(PeerProtocolError, match=says):
            DELETIONS.read("request", refused, 2)
