"""load: every problem at once, the checks across keys, defaults, secrets."""

from pathlib import Path

from standalone.copier.config import MetadataTopicConfig
from storage.config.sources import variable_name
from storage.config.value_kinds import GIB, MIB
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines, problems_of, shown
from tidegate.config.load import copy_problems


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    lines = "mode=both\nproxy.listen=0.0.0.0:70000\nexpert.cache.block.bytes=32 MiB\nnonsense=1\n"
    lines += "expert.tier.linger.ms=${env:X}\n"
    assert problems_of(tmp_path, lines, environ={"TIDEGATE_LOG_LEVEL": "loud"}, minimal=False) == (
        "tidegate.properties:4: unknown key nonsense (a broker's own keys belong in the file that broker.config names)",
        "tidegate.properties:5: expert.tier.linger.ms: ${env:X}: environment variable X is not set",
        "tidegate.properties:1: mode = both: must be one of replica, standalone",
        "environment TIDEGATE_LOG_LEVEL: log.level = loud: must be one of debug, info, warning, error",
        "upstream.bootstrap.servers is required: The brokers that are asked first.",
        "tidegate.properties:2: proxy.listen = 0.0.0.0:70000: at most port 65535",
        "remote.log.storage.manager.class.name is required: Kafka's "
        "`org.apache.kafka.server.log.remote.storage.LocalTieredStorage`, Aiven's "
        "`io.aiven.kafka.tieredstorage.RemoteStorageManager`, or `tidegate.PlainObjects`. Or set broker.config to the "
        "broker's file, which has it.",
        "tidegate.properties:3: expert.cache.block.bytes = 32 MiB: at most 16 MiB",
    )


SNI = "proxy.tls.sni.pattern=broker-$(nodeId).example\n"
CERTIFICATE = "proxy.tls.certificate.file=server.pem\nproxy.tls.key.file=server.key\n"


ONE_PORT = "cannot be set together with proxy.tls.sni.pattern, which has one port for all brokers"
CONTRADICTIONS = {
    "proxy.listen=127.0.0.1:65535\n": "no port is left after it: set proxy.broker.port.start",
    "proxy.broker.ports=1:19092\n": "proxy.broker.ports = 1:19092: port 19092 is the bootstrap listener's",
    "admin.listen=127.0.0.1:19092\n": "admin.listen = 127.0.0.1:19092: is proxy.listen too",
    "cache.memory.bytes=1 GiB\n": "memory.max.bytes: less than cache.memory.bytes + expert.readahead.total.max.bytes"
    " + expert.tier.inflight.bytes.max + expert.proxy.held.bytes.max = 2112 MiB: raise it or lower one of them",
    "expert.readahead.total.max.bytes=32 MiB\nreadahead.stream.max.bytes=33 MiB\n": "readahead.stream.max.bytes = 33 "
    "MiB: at most expert.readahead.total.max.bytes = 32 MiB",
    "cache.memory.bytes=2 MiB\nexpert.cache.block.bytes=4 MiB\n": "expert.cache.block.bytes = 4 MiB: at most "
    "cache.memory.bytes = 2 MiB",
    "cache.encrypt=maybe\n": "cache.encrypt = maybe: must be true or false",
    "cache.encrypt.key.file=key\n": "cache.encrypt.key.file = key: needs cache.encrypt = true",
    "cache.encrypt=true\n": "cache.encrypt = true: needs cache.path",
    "proxy.protocol=true\n": "set proxy.protocol.trusted to the balancers' ones",
    "proxy.protocol.trusted=10.0.0.7\n": "needs proxy.protocol = true",
    "proxy.tls.key.file=server.key\n": "proxy.tls.key.file = server.key: needs proxy.tls.certificate.file",
    f"{CERTIFICATE}proxy.tls.client.auth=requested\n": "needs proxy.tls.client.ca.file",
    SNI: "proxy.tls.sni.pattern = broker-$(nodeId).example: needs proxy.tls.certificate.file",
    f"{CERTIFICATE}proxy.listen=0.0.0.0:19092\nproxy.tls.sni.pattern=kafka.example\n": "proxy.tls.sni.pattern ="
    " kafka.example: must hold $(nodeId) exactly once",
    f"{SNI}{CERTIFICATE}proxy.broker.port.start=20000\n": f"proxy.broker.port.start = 20000: {ONE_PORT}",
    f"{SNI}{CERTIFICATE}proxy.broker.ports=1:20000\n": f"proxy.broker.ports = 1:20000: {ONE_PORT}",
    f"{SNI}{CERTIFICATE}proxy.advertised.host=b-$(nodeId).example\n": "cannot hold $(nodeId) together with"
    " proxy.tls.sni.pattern, which is what clients get",
}


def test_keys_that_contradict_each_other_are_one_problem(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    for lines, problem in CONTRADICTIONS.items():
        (found,) = problems_of(tmp_path, lines)
        assert found.endswith(problem), lines


def test_a_wildcard_address_needs_an_advertised_host(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "[::]", "*", "", "[0:0:0:0:0:0:0:0]"):
        (problem,) = problems_of(tmp_path, f"proxy.listen={host}:19092\n")
        assert problem.endswith("set proxy.advertised.host"), host
        config = load_lines(tmp_path, f"proxy.listen={host}:19092\nproxy.advertised.host=b-$(nodeId).example\n")
        assert config.proxy.advertised_host == "b-$(nodeId).example", host


def test_budgets_derive_from_memory_unless_set_themselves(tmp_path: Path) -> None:
    config = load_lines(tmp_path, "memory.max.bytes=3 GiB\ncache.memory.bytes=64 MiB\n")
    assert config.cache.memory_bytes == 64 * MIB
    assert (config.readahead.total_bytes_max, config.tier.inflight_bytes_max) == (1024 * MIB, 1024 * MIB)
    assert shown(config, "expert.tier.inflight.bytes.max") == ("1 GiB", "derived")
    assert shown(config, "cache.memory.bytes") == ("64 MiB", "tidegate.properties:4")
    assert load_lines(tmp_path, "expert.readahead.total.max.bytes=32 MiB\n").readahead.stream_bytes_max == 32 * MIB


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    secret = "hunter2"
    (tmp_path / "secret").write_text(secret)
    sasl = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\nupstream.sasl.username=a\n"
    lines = (
        f"{sasl}upstream.sasl.password={secret}\nrsm.config.storage.aws.secret.access.key={secret}\n"
        f"rsm.config.harmless=${{dir:.:secret}}\n"
        "remote.log.metadata.common.client.sasl.mechanism=PLAIN\n"
        "remote.log.metadata.common.client.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required username="u" password="{secret}";\n'
    )
    config = load_lines(tmp_path, lines)
    assert config.upstream.security.sasl is not None
    assert config.upstream.security.sasl.password == secret
    assert config.remote_storage_config["harmless"] == secret
    assert secret not in repr(config)
    # A change of a secret is seen by its text, which nothing shows.
    secrets = {key.name: key.value for key in config.effective if key.text == secret}
    assert secrets == {
        "upstream.sasl.password": "[hidden]",
        "rsm.config.storage.aws.secret.access.key": "[hidden]",
        "rsm.config.harmless": "${dir:.:secret}",
    }
    assert secret not in repr([(key.value, key) for key in config.effective])
    failing = problems_of(tmp_path, f"{lines}mode=x\nupstream.sasl.mechanisms=y\nproxy.tls.key.password={secret}\n")
    assert secret not in "\n".join(failing)


def test_server_names_put_all_brokers_on_one_port(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    # Clients get neither the listen host nor a port after the listen port, so both may be what they like.
    config = load_lines(tmp_path, f"{SNI}{CERTIFICATE}proxy.listen=0.0.0.0:65535\nproxy.advertised.port.start=443\n")
    assert config.proxy.tls_sni_pattern == "broker-$(nodeId).example"
    assert shown(config, "proxy.broker.port.start") == ("(unset)", "default")
    assert config.warnings == ()


def test_proxy_headers_are_taken_only_from_who_is_trusted(tmp_path: Path) -> None:
    assert load_lines(tmp_path, "").proxy.protocol_trusted is None
    config = load_lines(tmp_path, "proxy.protocol=true\nproxy.protocol.trusted=10.0.0.7\n")
    assert [str(network) for network in config.proxy.protocol_trusted or ()] == ["10.0.0.7/32"]


def test_an_origin_is_a_line_a_variable_or_the_default(tmp_path: Path) -> None:
    config = load_lines(tmp_path, "log.level=debug\nlog.format=json\n", environ={"TIDEGATE_LOG_LEVEL": "error"})
    assert shown(config, "log.level") == ("error", "environment TIDEGATE_LOG_LEVEL")
    assert shown(config, "log.format") == ("json", "tidegate.properties:4")
    assert shown(config, "expert.tier.linger.ms") == ("20", "default")


def test_what_this_version_would_ignore_is_refused_a_sentence_each(tmp_path: Path) -> None:
    sasl = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
    assert problems_of(tmp_path, f"{sasl}upstream.sasl.mechanism=OAUTHBEARER\n") == (
        "upstream.sasl.mechanism: OAUTHBEARER as Tidegate's own identity comes in a later version; leave the key unset",
    )


def test_copying_inside_serve_needs_its_mode_its_topics_and_a_folder(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "copy.enabled=true\n") == (
        "tidegate.properties:3: copy.enabled = true: needs mode = standalone: with replica the brokers write the tier",
        "tidegate.properties:3: copy.enabled = true: needs copy.topics",
        "tidegate.properties:3: copy.enabled = true: needs copy.staging.path, or cache.path",
    )
    config = load_lines(tmp_path, "mode=standalone\ncache.path=/cache\ncopy.topics=orders, ^web-.*\n")
    assert config.copy.staging_path == Path("/cache/staging")
    assert config.copy.topics is not None
    held = [topic for topic in ("orders", "web-1", "orders2", "a-web-1") if config.copy.topics.holds(topic)]
    assert held == ["orders", "web-1"]


AIVEN = (
    "upstream.bootstrap.servers=b:1\nremote.log.storage.manager.class.name=io.aiven.kafka.tieredstorage."
    "RemoteStorageManager\n"
)
CHUNK_CACHE = "rsm.config.fetch.chunk.cache."
DISK = f"{CHUNK_CACHE}class=io.aiven.kafka.tieredstorage.fetch.cache.DiskChunkCache\n{CHUNK_CACHE}path=/plugin\n"
MEMORY = f"{CHUNK_CACHE}class=io.aiven.kafka.tieredstorage.fetch.cache.MemoryChunkCache\n"


def test_a_disk_cache_gives_size_retention_and_read_ahead(tmp_path: Path) -> None:
    disk = f"{DISK}{CHUNK_CACHE}size=1073741824\n"
    lines = f"{AIVEN}{disk}{CHUNK_CACHE}retention.ms=600000\n{CHUNK_CACHE}prefetch.max.size=268435456\n"
    config = load_lines(tmp_path, lines, minimal=False)
    assert (config.cache.disk_bytes, config.cache.retention_ms) == (GIB, 600_000)
    assert config.readahead.stream_bytes_max == 256 * MIB
    assert config.cache.path is None
    origin = "tidegate.properties:5 rsm.config.fetch.chunk.cache.size"
    assert shown(config, "cache.disk.bytes") == ("1 GiB", origin)
    ours = load_lines(tmp_path, f"{AIVEN}{disk}cache.disk.bytes=2 GiB\n", minimal=False)
    assert ours.cache.disk_bytes == 2 * GIB, "ours come first"
    assert load_lines(tmp_path, disk).cache.disk_bytes == 16 * GIB, "another plug-in's keys mean nothing to us"


def test_the_plug_ins_prefetch_never_lowers_our_read_ahead(tmp_path: Path) -> None:
    # Failed before: 16 MiB, the plug-in's own example, took 128 MiB down to an eighth.
    for prefetch_mib, total_mib, stream_mib in ((16, 512, 128), (16, 64, 64), (256, 512, 256), (1024, 300, 300)):
        prefetch = f"{CHUNK_CACHE}prefetch.max.size={prefetch_mib * MIB}\n"
        lines = f"{AIVEN}{prefetch}expert.readahead.total.max.bytes={total_mib} MiB\n"
        found = load_lines(tmp_path, lines, minimal=False).readahead.stream_bytes_max
        assert found == stream_mib * MIB, (prefetch_mib, total_mib)


def test_a_memory_cache_is_taken_up_to_our_own_budget(tmp_path: Path) -> None:
    small = load_lines(tmp_path, f"{AIVEN}{MEMORY}{CHUNK_CACHE}size=67108864\n", minimal=False)
    large = load_lines(tmp_path, f"{AIVEN}{MEMORY}{CHUNK_CACHE}size=99999999999\n", minimal=False)
    assert (small.cache.memory_bytes, large.cache.memory_bytes) == (64 * MIB, 256 * MIB)


def test_how_the_metadata_topic_is_made_is_in_the_plug_ins_own_keys(tmp_path: Path) -> None:
    config = load_lines(
        tmp_path,
        "rlmm.config.remote.log.metadata.topic.num.partitions=5\n"
        "rlmm.config.remote.log.metadata.topic.replication.factor=2\n"
        "rlmm.config.remote.log.metadata.topic.min.isr=1\n",
    )
    assert config.metadata_topic == MetadataTopicConfig(partition_count=5, replication_factor=2, in_sync_min=1)
    assert load_lines(tmp_path, "").metadata_topic == MetadataTopicConfig()
    [problem] = problems_of(tmp_path, "rlmm.config.remote.log.metadata.topic.num.partitions=many\n")
    assert problem.endswith("topic.num.partitions = many: must be a whole number from 1 to 10000")


def test_staging_is_nobody_elses_place(tmp_path: Path) -> None:
    """Failed before: a start emptied the folder that held the tier, and `check` said nothing."""
    (tmp_path / "log" / "deep").mkdir(parents=True)
    (tmp_path / "log" / "meta.properties").touch()
    (tmp_path / "link").symlink_to(tmp_path / "tier")
    tier, cache = f"rsm.config.dir={tmp_path}/tier\n", f"cache.path={tmp_path}/cache\n"
    base = f"mode=standalone\ncopy.topics=orders\n{tier}{cache}"
    for staging, what in (
        ("tier", "rsm.config.dir"),
        ("tier/staging", "rsm.config.dir"),
        ("link/staging", "rsm.config.dir"),
        (".", "rsm.config.dir"),
        ("cache/blocks/staging", "the cache's blocks"),
        ("cache", "the cache's blocks"),
        ("log", "a broker's log folder"),
        ("log/deep/staging", "a broker's log folder"),
    ):
        problems = copy_problems(load_lines(tmp_path, f"{base}copy.staging.path={tmp_path}/{staging}\n"))
        assert any(f"it and {what} (" in each for each in problems), staging
    for staging in ("staging", "cache/staging", "tier-staging"):
        assert copy_problems(load_lines(tmp_path, f"{base}copy.staging.path={tmp_path}/{staging}\n")) == []
    [problem] = problems_of(tmp_path, f"{base}copy.enabled=true\ncopy.staging.path={tmp_path}/tier\n")
    assert "copy.enabled = true: needs another copy.staging.path than " in problem


def test_what_a_copier_needs_is_named(tmp_path: Path) -> None:
    """`copy.enabled` is a wrong configuration without it, and `tidegate copy` says the same."""
    assert len(problems_of(tmp_path, "copy.enabled=true\n")) == 3
    config = load_lines(tmp_path, "mode=standalone\ncopy.topics=orders\n")
    [problem] = copy_problems(config)
    assert problem.endswith("tidegate copy needs copy.staging.path, or cache.path")
    lines = f"mode=standalone\ncopy.topics=orders\ncopy.enabled=true\ncache.path={tmp_path}\n"
    assert copy_problems(load_lines(tmp_path, lines)) == []


def test_a_key_that_moved_acts_under_its_old_name_with_one_warning(tmp_path: Path) -> None:
    linger = "expert.tier.linger.ms"
    now = {"expert.cache.block.bytes": "2 MiB", linger: "7", "expert.proxy.send.stall.ms": "1000"}
    old = {name.removeprefix("expert."): value for name, value in now.items()}
    config = load_lines(tmp_path, "".join(f"{name}={value}\n" for name, value in old.items()))
    assert (config.cache.block_bytes, config.tier.linger_ms, config.proxy.send_stall_ms) == (2 * MIB, 7, 1000)
    assert list(config.warnings) == [
        f"tidegate.properties:{line}: {name} is expert.{name} now; the old name ends with 0.3"
        for line, name in enumerate(old, 3)
    ]
    assert load_lines(tmp_path, "".join(f"{name}={value}\n" for name, value in now.items())).warnings == ()
    variable = variable_name(linger.removeprefix("expert."))
    (warning,) = load_lines(tmp_path, "", environ={variable: "7"}).warnings
    assert warning.startswith(f"environment {variable}: tier.")
    (problem,) = problems_of(tmp_path, f"{linger.removeprefix('expert.')}=7\n{linger}=8\n")
    assert problem.endswith("keep one of them")
