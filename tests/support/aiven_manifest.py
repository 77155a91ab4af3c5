"""What a manifest of the Aiven plug-in shows of its segment."""

from typing import Any

from storage.model import CustomMetadata, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, uuid_from_text


def metadata_in(members: dict[str, Any], custom_metadata: bytes | None = None) -> RemoteLogSegmentMetadata:
    """The metadata that the plug-in was given; the custom metadata are its answer, which no manifest has."""
    shown = members["remoteLogSegmentMetadata"]
    segment_id = shown["remoteLogSegmentId"]
    partition = segment_id["topicIdPartition"]
    key = TopicIdPartition(
        uuid_from_text(partition["topicId"]),
        partition["topicPartition"]["partition"],
        partition["topicPartition"]["topic"],
    )
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(key, uuid_from_text(segment_id["id"])),
        start_offset=shown["startOffset"],
        end_offset=shown["endOffset"],
        max_timestamp_ms=shown["maxTimestampMs"],
        broker_id=shown["brokerId"],
        event_timestamp_ms=shown["eventTimestampMs"],
        segment_size_bytes=members["chunkIndex"]["originalFileSize"],
        segment_leader_epochs={int(epoch): offset for epoch, offset in shown["segmentLeaderEpochs"].items()},
        custom_metadata=None if custom_metadata is None else CustomMetadata(custom_metadata),
    )
