"""What `stat` tells of a segment of Aiven's format, and of a damaged one; and which segments a sample has."""

import io
from pathlib import Path

from tests.support.checked_tier import CHUNK_BYTES, SEGMENTS, aiven_tier
from tidegate.commands.stat import print_stat, segment_stat


def test_the_manifest_is_told_without_a_secret(tmp_path: Path) -> None:
    tier = aiven_tier(tmp_path, compression=True, encryption=True)
    metadata = tier.metadatas[1]
    found = segment_stat(tier.manager, metadata)
    manifest, log = found["manifest"], SEGMENTS[1].log
    stored = tier.path(metadata, "log").stat().st_size
    assert (manifest["key_id"], manifest["compression"], manifest["encryption"]) == ("key1", True, True)
    assert (manifest["chunk_bytes"], manifest["chunks"]) == (CHUNK_BYTES, -(-len(log) // CHUNK_BYTES))
    assert (manifest["log_bytes"], manifest["stored_log_bytes"]) == (len(log), stored)
    assert found["indexes"]["TRANSACTION"]["entries"] == len(SEGMENTS[1].transaction_index or b"") // 34
    assert found["indexes"]["LEADER_EPOCH"]["entries"] == 2
    assert found["problems"] == []
    out = io.StringIO()
    print_stat(out, found)
    wrapped = tier.path(metadata, "rsm-manifest").read_text().partition('"dataKey":"')[2].partition('"')[0]
    assert wrapped.startswith("key1:")
    assert wrapped.partition(":")[2][:20] not in out.getvalue()


def test_what_is_missing_or_broken_is_a_problem(tmp_path: Path) -> None:
    tier = aiven_tier(tmp_path)
    tier.path(tier.metadatas[0], "log").unlink()
    [problem] = segment_stat(tier.manager, tier.metadatas[0])["problems"]
    assert problem.endswith(".log: it is missing")
    tier.path(tier.metadatas[1], "rsm-manifest").write_text("{}")
    found = segment_stat(tier.manager, tier.metadatas[1])
    assert found["indexes"] == {}
    assert found["problems"][0].startswith("manifest: version is missing")
    out = io.StringIO()
    print_stat(out, found)
    assert "WRONG   manifest: " in out.getvalue()
