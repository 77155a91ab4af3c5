"""`tidegate check` over fake brokers and a tier in a folder: each thing that can be wrong, named."""

import io
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from protocol.client.messages import LIST_OFFSETS, METADATA, SASL_HANDSHAKE
from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)
from storage.object_store.http import tls
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.aiven_writer import make_key_pair
from tests.support.certificates import make_certificate
from tests.support.command_world import CommandWorld
from tests.support.metadata_records import COPY_FINISHED, COPY_STARTED, DELETE_FINISHED, DELETE_STARTED, batch_of
from tests.support.scripted_http import response, scripted_http
from tidegate import exit_codes
from tidegate.commands import check, check_tier

ORDERS = TopicIdPartition(Uuid(b"orders orders id"), 0, "orders")


class World(CommandWorld):
    """All healthy until a test breaks something."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.configs = {"retention.ms": "-1"}
        self.configs_code = ErrorCode.none
        self.opens_all = self.as_json = False
        self.cluster.brokers[1].describe_configs(lambda _: self.configs_code or self.configs)
        log = self.cluster.add_log(ORDERS)
        log.log_start_offset, log.local_log_start_offset = 10, 42

    def add_segment(
        self,
        number: int,
        *,
        data: bytes = batch_of(b"order", 1),
        finished: bool = True,
        state: RemoteLogSegmentState = COPY_STARTED,
        manager: RemoteStorageManager | None = None,
        partition: TopicIdPartition = ORDERS,
    ) -> None:
        """A segment in the tier and its records in the metadata topic."""
        segment_id = RemoteLogSegmentId(partition, Uuid(bytes([number]) * 16))
        metadata = RemoteLogSegmentMetadata(segment_id, number * 10, number * 10 + 9, 0, 1, number, len(data), {0: 0})
        self.copy(metadata, log=data, manager=manager)
        self.publish(replace(metadata, state=state))
        if finished:
            self.move(number, COPY_FINISHED, partition)

    def move(self, number: int, state: RemoteLogSegmentState, partition: TopicIdPartition = ORDERS) -> None:
        segment_id = RemoteLogSegmentId(partition, Uuid(bytes([number]) * 16))
        self.publish(RemoteLogSegmentMetadataUpdate(segment_id, number, state, 1))

    def run(self, prefix: str = "rsm.config.", *, shows_defaults: bool = False) -> tuple[int, str]:
        out = io.StringIO()
        config = self.config(prefix)
        code = check.run(config, out, opens_all=self.opens_all, as_json=self.as_json, shows_defaults=shows_defaults)
        return code, out.getvalue()

    def warnings(self) -> list[str]:
        return [line for line in self.run()[1].splitlines() if line.startswith("warning ")]

    def assert_done(self, *said: str) -> str:
        """Nothing is wrong, and all of this is said. The whole text."""
        return self._assert_said(exit_codes.DONE, said)

    def assert_wrong(self, *said: str) -> str:
        return self._assert_said(exit_codes.FOUND_WRONG, said)

    def _assert_said(self, expected: int, said: tuple[str, ...]) -> str:
        code, text = self.run()
        assert code == expected, text
        for each in said:
            assert each in text
        return text


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_nothing_wrong_is_said_and_exits_with_done(world: World) -> None:
    world.add_segment(1)
    text = world.assert_done(
        "ok      cluster fake, brokers: 1",
        "ok      broker 1 at a:1",
        f"ok      {METADATA_TOPIC} has 1 partitions",
        "ok      2 records read, 0 of them not decodable",
        "ok      1 of 1 topics can be described",
        "ok      orders-0: the local log starts at 42",
        "offsets 10 to 19: read",
        "ok      1 segments were opened",
        "nothing wrong",
    )
    [warning] = [line for line in text.splitlines() if line.startswith("warning")]
    assert "upstream.security.protocol is PLAINTEXT: to brokers all clients are ANONYMOUS" in warning


def test_holes_that_a_cut_metadata_topic_left_are_told(world: World) -> None:
    """Failed before: nothing was wrong."""
    for number in (1, 2, 4):
        world.add_segment(number)
    world.assert_wrong("WRONG   orders-0: offsets 30 to 39 are in no segment", "1 wrong")
    world.add_segment(3)
    world.assert_done()
    world.metadata.log_start_offset = 3
    del world.metadata.batches[:3]
    world.assert_wrong(
        f"partitions of {METADATA_TOPIC} do not begin at offset 0 any more: 0 (at 3)",
        "WRONG   orders-0: offsets 10 to 29 are in no segment",
    )
    world.lines = "mode=standalone\n"
    assert "are in no segment" not in world.run()[1]


def test_every_effective_key_is_shown_with_its_origin_and_no_secret(world: World) -> None:
    world.lines = (
        "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\n"
        "upstream.sasl.username=alice\nupstream.sasl.password=open-sesame\n"
    )
    world.cluster.brokers[1].answer(
        SASL_HANDSHAKE, {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("GSSAPI",)}
    )
    text = world.assert_wrong(
        "WRONG   upstream gives no metadata",
        "PLAIN for 'alice'; it offers GSSAPI",
        "check upstream.sasl.mechanism, upstream.sasl.username",
    )
    assert "open-sesame" not in text


def test_an_unreachable_upstream_is_wrong_but_the_tier_is_checked_all_the_same(world: World) -> None:
    world.cluster.stop(1)
    world.assert_wrong(
        "cannot connect to a:1", "ok      the store answers", "no finished segment is known yet, so no object was read"
    )


def test_a_broker_without_local_log_starts_is_too_old(world: World) -> None:
    world.cluster.brokers[1].versions[LIST_OFFSETS.key] = (0, 7)
    world.assert_wrong("broker 1 at a:1: ListOffsets ends at version 7; remote storage needs Kafka 3.6")


def test_brokers_without_topic_ids_are_refused_in_one_sentence(world: World) -> None:
    world.cluster.brokers[1].versions[METADATA.key] = (0, 9)
    for mode in ("replica", "standalone"):
        world.lines = f"mode={mode}\n"
        text = world.assert_wrong(
            "WRONG   a:1: metadata version 10 or later is needed, the broker has versions 0 to 9: it is "
        )
        assert text.count("is older than Kafka 2.8, which has topic ids; upgrade it") == 1, mode
        assert "check upstream" not in text, mode


def test_only_a_copiers_check_writes_into_the_tier(world: World) -> None:
    said = "the store takes objects and uploads in parts"
    for lines, writes in (("", False), ("mode=standalone\n", False), ("mode=standalone\ncopy.topics=orders\n", True)):
        world.lines = lines
        assert (said in world.run()[1]) == writes
    assert not [path for path in world.tier.rglob("*") if path.is_file()]


def test_an_absent_metadata_topic_is_wrong(world: World) -> None:
    del world.cluster.topics[METADATA_TOPIC]
    world.assert_wrong(f"WRONG   topic {METADATA_TOPIC} does not exist")


def test_a_topic_that_kafka_compacts_is_no_warning(world: World) -> None:
    """KIP-1266: first `compact,delete` with one time for both, then `compact`."""
    world.record_key = b"a key"
    world.add_segment(1)
    both = "retention.ms=1209600000", "cleanup.policy=compact,delete"
    for policy, retention_ms, lag_ms, more, warnings in (
        ("delete", "-1", None, {}, ()),  # as Kafka makes it
        ("compact", "604800000", "0", {}, ()),
        ("compact,delete", "1209600000", "1209600000", {}, ()),  # migrating
        ("compact,delete", "1209600000", "0", {}, both),  # compacted before it expires
        ("delete,compact", "9", "9", {"retention.bytes": "7"}, ("retention.bytes=7",)),  # migrating, but by size
    ):
        lag = {} if lag_ms is None else {"min.compaction.lag.ms": lag_ms}
        world.configs = {"cleanup.policy": policy, "retention.ms": retention_ms, **lag, **more}
        text = world.assert_done("offsets 10 to 19: read")
        said = [line.split(" has ", 1)[1] for line in text.splitlines() if line.startswith("warning __")]
        assert tuple(line.split(";")[0].split(":")[0] for line in said) == warnings, world.configs


def test_a_missing_describe_configs_acl_is_only_a_warning(world: World) -> None:
    world.configs_code = ErrorCode.topic_authorization_failed
    world.assert_done(f"ACL DescribeConfigs on Topic {METADATA_TOPIC} is missing (only this check needs it)")


def test_a_missing_read_acl_on_the_metadata_topic_is_named(world: World) -> None:
    world.publish(b"x")
    denied = ErrorCode.topic_authorization_failed
    world.cluster.hooks["metadata fetch"] = lambda: setattr(world.metadata, "error_code", denied)
    world.assert_wrong(f"ACL Read on Topic {METADATA_TOPIC} is missing")


def test_a_missing_describe_acl_on_a_tiered_topic_is_named(world: World) -> None:
    world.add_segment(1)
    world.cluster.topics["orders"].error_code = ErrorCode.topic_authorization_failed
    world.assert_wrong("WRONG   ACL Describe on Topic orders is missing", "0 of 1 topics can be described")


def test_records_that_cannot_be_decoded_are_counted_and_the_first_is_shown(world: World) -> None:
    world.publish(b"\x07garbage", b"")
    world.assert_done("warning 2 records cannot be decoded; the first: 0/0: ")


def test_missing_objects_are_one_line(world: World) -> None:
    for number in (1, 2, 3):
        world.add_segment(number)
    for file in world.root.rglob("*.log"):
        file.unlink()
    text = world.assert_wrong("(and 2 more like it, of 3 that were opened)", "1 wrong")
    assert "WRONG" in text.split("Tier", 1)[1]


def test_an_object_that_is_no_segment_is_wrong(world: World) -> None:
    world.add_segment(1, data=b"not a record batch at all, though long enough")
    world.assert_wrong("does not begin with a record batch")


def test_an_empty_tier_is_asked_whether_it_answers(world: World) -> None:
    # Failed before: without a segment the store was never asked, and nothing was wrong.
    world.root.rmdir()
    world.assert_wrong("kafka-tiered-storage: there is no such folder")


def test_tls_by_pythons_ssl_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning where nobody asked for it."""
    words = "TLS from the store is received by Python's ssl: "
    world.lines = "rsm.config.storage.s3.bucket.name=logs\ntier.tls.native=false\n"
    world.assert_done(f"ok      {words}tier.tls.native=false")
    world.lines = "rsm.config.storage.s3.bucket.name=logs\n"
    monkeypatch.setattr(tls, "library", lambda: None)
    world.assert_done(f"warning {words}this Python has OpenSSL built in")


def test_only_finished_segments_are_read(world: World) -> None:
    world.add_segment(1, data=b"half", finished=False)
    world.assert_done("no finished segment is known")


def test_what_clients_will_refuse_is_wrong(world: World, tmp_path: Path) -> None:
    """Failed before: an expired certificate was nothing wrong."""
    made = make_certificate("old", ["127.0.0.1"], days=1)
    (tmp_path / "server.pem").write_bytes(made.pem + made.key_pem)
    world.lines = f"proxy.tls.certificate.file={tmp_path / 'server.pem'}\n"
    world.assert_wrong(
        "WRONG   proxy.tls.certificate.file expired at 2020-01-02", "; renew it  # certificate_expired", "1 wrong"
    )


def test_a_node_id_beyond_the_ports_is_said_and_what_clients_are_told_is_listed(world: World) -> None:
    # Failed before: nothing was wrong, and every client was closed.
    world.cluster.add(101, "b", 1)
    world.cluster.add(102, "c", 1)
    world.lines = "proxy.listen=127.0.0.1:65500\nproxy.advertised.host=kafka-$(nodeId).example.org\n"
    world.assert_wrong(
        "ok      clients get kafka-1.example.org:65502 for broker 1",
        "WRONG   clients will not hear of broker 101",
        "WRONG   clients will not hear of broker 102",
        "name its port in proxy.broker.ports",
        "WRONG   proxy.advertised.host tells clients kafka-1.example.org (",
        "3 wrong",
    )


def test_a_topic_that_is_gone_is_named_only_while_segments_of_it_are_left(world: World) -> None:
    # Failed before: it was "still being deleted" for as long as the metadata topic keeps its records.
    world.add_segment(1)
    world.cluster.add_log(TopicIdPartition(Uuid(b"recreated, later"), 0, "orders"))
    world.assert_done("warning topic orders with id", "was deleted, and 1 of its segments are in the tier")
    for state in (DELETE_STARTED, DELETE_FINISHED):
        world.move(1, state)
    assert "was deleted" not in world.assert_done("ok      none yet")


def test_segments_of_every_age_are_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_tier, "SEGMENTS_MAX", 3)
    for number in (3, 1, 5, 2, 4):
        world.add_segment(number)
    for world.opens_all, opened in ((True, 5), (False, 3)):
        text = world.assert_done(f"ok      {opened} segments were opened")
        read = [line.split("offsets ")[1] for line in text.splitlines() if line.endswith(": read")]
        assert read == ["10 to 19: read", "50 to 59: read"]
    for file in world.root.rglob("00000000000000000030-*"):
        file.unlink()
    for world.opens_all in (True, False):
        world.assert_wrong("offsets 10 to 19: read", "30-", "it was deleted, or lies elsewhere: check rsm.config.dir")


def test_a_key_pair_that_only_old_segments_need_is_missed(world: World) -> None:
    # Failed before: the newest segment alone was read.
    keys = {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
        "storage.root": str(world.tier),
        "chunk.size": "1000",
    }
    for number, name in enumerate(("old", "new", "new"), 1):
        keys |= make_key_pair(world.folder, name)
        manager = AivenRemoteStorageManager(keys)
        world.add_segment(number, manager=manager)
        manager.close()
    world.storage_manager = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
    world.lines = "".join(f"rsm.config.{name}={value}\n" for name, value in keys.items())
    world.assert_wrong(
        "offsets 30 to 39: read",
        "wrapped by key pair 'old', not among rsm.config.encryption.key.pairs: add it there",
        "1 wrong",
    )


def test_what_is_insecure_is_a_warning(world: World) -> None:
    for lines, said in (
        (
            "upstream.security.protocol=SSL\nproxy.listen=0.0.0.0:0\nproxy.advertised.host=a\n",
            "but clients come to proxy.listen 0.0.0.0:0 in plain text",
        ),
        (
            "upstream.security.protocol=SSL\nupstream.ssl.endpoint.identification.algorithm=none\n",
            "upstream.ssl.endpoint.identification.algorithm is off",
        ),
        ("authority.max.age.ms=3600000\n", "authority.max.age.ms is 3600000"),
        ("admin.listen=0.0.0.0:0\n", "admin.listen 0.0.0.0:0 can be reached from other machines"),
        ("rsm.config.storage.s3.endpoint.url=http://store:9000\n", "rsm.config.storage.s3.endpoint.url is http"),
    ):
        world.lines = lines
        assert len([line for line in world.warnings() if said in line]) == 1, said
    world.lines = "rsm.config.storage.s3.endpoint.url=http://127.0.0.1:9000\nauthority.max.age.ms=1000\n"
    [unknown, plaintext] = world.warnings()
    assert "rsm.config.storage.s3.endpoint.url is no key that is known" in unknown, "to LocalTieredStorage"
    assert "PLAINTEXT" in plaintext


def test_the_prefix_of_the_broker_is_in_messages(world: World) -> None:
    # Failed before: messages named rsm.config, which the operator did not have.
    world.lines = "remote.log.storage.manager.impl.prefix=ours.\nours.delete.enable=perhaps\nours.dir=/x\n"
    code, text = world.run(prefix="ours.")
    assert code == exit_codes.USAGE
    assert "WRONG   ours.delete.enable is 'perhaps', not true or false" in text


def test_one_document_holds_keys_findings_and_verdict(world: World) -> None:
    world.as_json = True
    world.cluster.stop(1)
    code, text = world.run()
    document = json.loads(text)
    assert (code, document["wrong"], document["verdict"]) == (exit_codes.FOUND_WRONG, 1, "1 wrong")
    assert {"name": "admin.listen", "value": "127.0.0.1:0", "origin": "tidegate.properties:2"} in document["keys"]
    titles = [section["title"] for section in document["sections"]]
    assert titles == ["Configuration", "Security", "Identity", "Upstream brokers", "This machine", "Tier"]
    [finding] = document["sections"][3]["findings"]
    assert finding["verdict"] == "wrong"
    assert "cannot connect to a:1" in finding["sentence"]
    assert finding["id"] == "upstream_unavailable"


def test_findings_come_first_and_defaults_only_if_wanted(world: World) -> None:
    # Failed before: 122 keys, most of them defaults, stood before the first finding.
    _, text = world.run()
    findings, _, keys = text.partition("\nKeys\n")
    assert "ok      the keys fit together" in findings
    assert "admin.listen" in keys
    assert "cache.disk.bytes" not in keys
    assert "more have their defaults: --keys shows them" in keys
    assert "cache.disk.bytes" in world.run(shows_defaults=True)[1].partition("\nKeys\n")[2]


def test_whatever_a_section_runs_into_the_others_are_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Failed before: a traceback, and nothing after it.
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    for name in ("check_security", "_check_brokers", "check_machine", "_check_metadata_topic", "_check_topics"):
        with monkeypatch.context() as patched:
            patched.setattr(check, name, broken)
            text = world.assert_wrong(
                "ended early: RuntimeError: a bug of ours (test_check.py:", "\nTier\nok", "1 wrong"
            )
        assert text.count("WRONG") == 1, name
    monkeypatch.setattr(check, "check_tier", broken)
    world.assert_wrong("WRONG   section Tier ended early: RuntimeError", "1 wrong")


def test_a_cache_folder_that_cannot_be_looked_at_is_a_sentence(world: World) -> None:
    # Failed before: a traceback where the parent may not be entered; a name that is too long is refused to root, too.
    world.lines = f"cache.path={world.folder / ('x' * 300)}\n"
    code, text = world.run()
    assert code == exit_codes.USAGE  # as `serve` ends
    assert "File name too long, so serve does not start; name a folder that belongs to it" in text


def test_an_audit_log_that_serve_could_not_write_is_wrong(world: World) -> None:
    # Failed before: nothing was wrong, and `serve` did not start.
    for place, said in (
        (world.folder / "absent" / "audit.jsonl", "No such file or directory; name a file in a folder that is there"),
        (world.tier, "Is a directory"),
        (Path("/sys/kernel/audit.jsonl"), "serve does not start so"),
    ):
        world.lines = f"audit.log={place}\n"
        world.assert_wrong(f"WRONG   cannot write {place}, which audit.log names", said, "1 wrong")
    for fine in (str(world.folder / "audit.jsonl"), "stdout"):
        world.lines = f"audit.log={fine}\n"
        world.assert_done()
    assert not (world.folder / "audit.jsonl").exists()


def test_more_memory_than_there_is_is_wrong(world: World) -> None:
    # Failed before: nothing was wrong, and the kernel killed `serve`.
    world.lines = "memory.max.bytes=1000 GiB\n"
    world.assert_wrong("WRONG   memory.max.bytes 1000 GiB", "lower the key, or raise the limit")


def test_a_serve_that_is_running_here_is_said_once(world: World) -> None:
    # Failed before: "ok cannot listen on …: Address already in use", for each port.
    with socket.create_server(("127.0.0.1", 0)) as other, scripted_http() as admin:
        admin.answer(response(200, b'{"ready": true, "degraded": false}'))
        taken = f"proxy.listen=127.0.0.1:{other.getsockname()[1]}\n"
        world.lines = f"{taken}admin.listen={admin.endpoint_url.removeprefix('http://')}\n"
        text = world.assert_done(
            "ok      a serve is running with these addresses: it answers at admin.listen 127.0.0.1:"
        )
        assert "cannot listen" not in text
        world.lines = taken
        world.assert_wrong("WRONG   cannot listen on 127.0.0.1:")


def test_a_missing_right_comes_with_the_line_that_grants_it(world: World) -> None:
    # Failed before: the right was named, and its grant was left to the reader.
    world.add_segment(1)
    world.cluster.topics["orders"].error_code = ErrorCode.topic_authorization_failed
    world.configs_code = ErrorCode.topic_authorization_failed
    line = "kafka-acls.sh --bootstrap-server a:1 --add --allow-principal User:ANONYMOUS --operation"
    world.assert_wrong(
        f"{line} Describe --topic orders  # not_described", f"{line} DescribeConfigs --topic {METADATA_TOPIC}"
    )


def test_segments_of_iceberg_are_the_brokers_and_not_wrong(world: World) -> None:
    # Failed before: `segment.format=iceberg` stopped check and serve.
    keys = {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
        "storage.root": str(world.tier),
        "chunk.size": "1000",
    }
    manager = AivenRemoteStorageManager(keys)
    for number in (1, 2):
        world.add_segment(number, manager=manager)
    next(world.tier.rglob("00000000000000000010-*.rsm-manifest")).unlink()
    world.storage_manager = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
    world.lines = "".join(f"rsm.config.{name}={value}\n" for name, value in keys.items())
    world.assert_wrong("it was deleted, or lies elsewhere")
    world.lines += "rsm.config.segment.format=iceberg\n"
    text = world.assert_done("offsets 20 to 29: read")
    [warning] = [line for line in text.splitlines() if "in Iceberg mode" in line]
    assert warning.startswith("warning segment ")
    assert "brokers read it in our place" in warning
