"""Which value counts, what may stand where, and what is said about the rest."""

from pathlib import Path

import pytest

from proxy.config import ConfigError, load
from tests.support.config_files import load_lines, problems_of, shown
from tests.support.vectors import vector

LOCAL_TIERED = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


def broker_file(folder: Path, text: str) -> str:
    (folder / "server.properties").write_text(text)
    return "broker.config=server.properties\n"


def test_environment_comes_before_file_before_broker_config(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        f"remote.log.storage.manager.class.name={LOCAL_TIERED}\nrsm.config.a=1\nrsm.config.b=1\nrsm.config.c=1\n",
    )
    config = load_lines(
        tmp_path,
        f"upstream.bootstrap.servers=b:1\n{line}rsm.config.b=2\nrsm.config.c=2\nlog.level=debug\nlog.format=console\n",
        environ={"TIDEGATE_RSM_CONFIG_C": "3", "TIDEGATE_LOG_LEVEL": "error"},
        minimal=False,
    )
    assert dict(config.remote_storage_config) == {"a": "1", "b": "2", "c": "3"}
    assert (config.log.level, config.log.format) == ("error", "console")
    assert config.remote_storage_manager_class_name == LOCAL_TIERED
    assert shown(config, "rsm.config.a") == ("1", "broker.config server.properties:2")
    assert shown(config, "rsm.config.b") == ("2", "tidegate.properties:3")
    assert shown(config, "rsm.config.c") == ("3", "environment TIDEGATE_RSM_CONFIG_C")
    assert shown(config, "log.level") == ("error", "environment TIDEGATE_LOG_LEVEL")
    assert shown(config, "tier.linger.ms") == ("20", "default")


def test_file_overrides_the_brokers_class_and_prefix(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        f"remote.log.storage.manager.class.name={LOCAL_TIERED}\n"
        "remote.log.storage.manager.impl.prefix=theirs.\ntheirs.a=1\ntheirs.b=1\nrsm.config.stranger=1\n",
    )
    lines = line + "remote.log.storage.manager.impl.prefix=ours.\nours.b=2\n"
    config = load_lines(tmp_path, lines)
    assert config.remote_storage_manager_class_name == "tidegate.PlainObjects"
    assert dict(config.remote_storage_config) == {"a": "1", "b": "2"}
    assert shown(config, "ours.a")[1] == "broker.config server.properties:3"


def test_a_prefix_of_the_brokers_file_holds_in_file_too(tmp_path: Path) -> None:
    line = broker_file(tmp_path, "remote.log.metadata.manager.impl.prefix=meta.\nmeta.a=1\n")
    assert dict(load_lines(tmp_path, f"{line}meta.b=2\n").remote_log_metadata_config) == {"a": "1", "b": "2"}
    assert "unknown key rlmm.config.b" in problems_of(tmp_path, f"{line}rlmm.config.b=2\n")[0]


def test_an_empty_prefix_is_refused(tmp_path: Path) -> None:
    line = broker_file(tmp_path, "remote.log.storage.manager.impl.prefix=\n")
    assert problems_of(tmp_path, line) == (
        "broker.config server.properties:1: remote.log.storage.manager.impl.prefix must not be empty: "
        "every key would be the plug-in's",
        "broker.config server.properties:1: remote.log.storage.manager.impl.prefix = : must not be empty",
    )


def test_the_brokers_file_may_hold_strangers_and_their_variables_are_not_looked_up(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        "log.dirs=/data\nlistener.name.x.ssl.key.password=${env:ABSENT}\nremote.log.manager.thread.pool.size=2\n"
        "remote.fetch.max.wait.ms=5000\nmode=standalone\nrsm.config.dir=/tier\n",
    )
    config = load_lines(tmp_path, line)
    assert dict(config.remote_storage_config) == {"dir": "/tier"}
    assert config.tier.fetch_wait_ms_max == 500


def test_metadata_clients_are_taken_bare_and_prefixed_and_the_prefixed_win(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        "rlmm.config.remote.log.metadata.consumer.fetch.max.bytes=1\nremote.log.metadata.consumer.fetch.max.bytes=2\n"
        "remote.log.metadata.common.client.retries=3\nrlmm.config.remote.log.metadata.producer.acks=all\n"
        "rlmm.config.remote.log.metadata.topic.num.partitions=5\n",
    )
    config = load_lines(tmp_path, line)
    assert dict(config.metadata_client.consumer) == {"fetch.max.bytes": "1"}
    assert dict(config.metadata_client.common_client) == {"retries": "3"}
    assert dict(config.metadata_client.producer) == {"acks": "all"}
    assert dict(config.remote_log_metadata_config) == {
        "remote.log.metadata.consumer.fetch.max.bytes": "1",
        "remote.log.metadata.common.client.retries": "3",
        "remote.log.metadata.producer.acks": "all",
        "remote.log.metadata.topic.num.partitions": "5",
    }
    overridden = load_lines(tmp_path, f"{line}remote.log.metadata.consumer.fetch.max.bytes=4\n")
    assert dict(overridden.metadata_client.consumer) == {"fetch.max.bytes": "4"}


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("cache.disc.bytes=1", "cache.disk.bytes"),
        ("bootstrap.servers=a:1", "upstream.bootstrap.servers"),
        ("proxy.listeners=a:1", "proxy.listen"),
        ("rsm.confg.chunk.size=1", "rsm.config.chunk.size"),
        (
            "rlmm.conf.remote.log.metadata.topic.num.partitions=1",
            "rlmm.config.remote.log.metadata.topic.num.partitions",
        ),
    ],
)
def test_an_unknown_key_of_file_is_told_the_nearest(line: str, nearest: str, tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, line)
    assert problem.startswith(f"tidegate.properties:3: unknown key {line.partition('=')[0]}; the nearest is {nearest} ")


def test_a_key_near_to_nothing_is_refused_too(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "zzz=1")
    assert problem == (
        "tidegate.properties:3: unknown key zzz (a broker's own keys belong in the file that broker.config names)"
    )


def test_variables_are_looked_up_in_both_files(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("key=from file\n")
    line = broker_file(
        tmp_path,
        "config.providers=mine\n"
        "config.providers.mine.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
        "rsm.config.secret=${mine:secrets.properties:key}\n",
    )
    config = load_lines(tmp_path, f"{line}tier.linger.ms=${{env:LINGER}}\n", environ={"LINGER": "7"})
    assert config.remote_storage_config["secret"] == "from file"
    assert config.tier.linger_ms == 7


def test_what_cannot_be_looked_up_names_key_and_variable_once(tmp_path: Path) -> None:
    line = broker_file(tmp_path, "rsm.config.secret=${env:NONE}\n")
    assert problems_of(tmp_path, f"{line}tier.linger.ms=${{env:LINGER}}\n") == (
        "broker.config server.properties:1: rsm.config.secret: ${env:NONE}: environment variable NONE is not set",
        "tidegate.properties:4: tier.linger.ms: ${env:LINGER}: environment variable LINGER is not set",
    )


def test_a_missing_broker_file_is_one_problem_of_the_key(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "broker.config=absent.properties\n")
    assert problem == (
        f"tidegate.properties:3: broker.config: {tmp_path}/absent.properties: cannot be read: No such file or directory"
    )


def test_relative_paths_are_relative_to_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The keys with paths of our own belong to features that come later.
    monkeypatch.setattr("proxy.config.later.LATER", ())
    nested = tmp_path / "etc"
    nested.mkdir()
    (tmp_path / "server.properties").write_text("rsm.config.dir=tier\n")
    config = load_lines(nested, "broker.config=../server.properties\ncatalog.snapshot.path=snapshots\n")
    assert config.catalog.snapshot_path == nested / "snapshots"
    # A plug-in's value is the plug-in's: it is handed on as it is.
    assert config.remote_storage_config["dir"] == "tier"


def test_an_unknown_variable_is_one_warning_and_the_tests_own_are_none(tmp_path: Path) -> None:
    environ = {"TIDEGATE_SERVICE_PORT": "1", "TIDEGATE_VECTORS": "x", "TIDEGATE_REQUIRE_ALL": "1", "OTHER": "x"}
    config = load_lines(tmp_path, "", environ=environ)
    assert config.warnings == ("environment variable TIDEGATE_SERVICE_PORT names no key and is ignored",)


def test_a_variable_finds_a_plugin_key_whose_capitals_it_lost(tmp_path: Path) -> None:
    config = load_lines(tmp_path, "rsm.config.keys.Key1=a\n", environ={"TIDEGATE_RSM_CONFIG_KEYS_KEY1": "b"})
    assert dict(config.remote_storage_config) == {"keys.Key1": "b"}


def test_a_repeated_key_is_a_warning(tmp_path: Path) -> None:
    config = load_lines(tmp_path, "log.level=info\nlog.level=debug\n")
    assert config.warnings == ("tidegate.properties: log.level is given in lines 3, 4; the last one counts",)
    assert config.log.level == "debug"


def test_an_alias_counts_as_its_key_and_must_not_contradict_it(tmp_path: Path) -> None:
    sasl = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
    config = load_lines(tmp_path, f"{sasl}upstream.sasl.mechanisms=PLAIN\n")
    assert config.upstream.security.sasl is not None
    assert config.upstream.security.sasl.mechanism == "PLAIN"
    both = f"{sasl}upstream.sasl.mechanism=PLAIN\nupstream.sasl.mechanisms=SCRAM-SHA-256\n"
    assert problems_of(tmp_path, both) == (
        "tidegate.properties:7: upstream.sasl.mechanisms contradicts upstream.sasl.mechanism: keep one of them",
    )


def test_a_file_that_cannot_be_read_is_the_only_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.properties: cannot be read"):
        load(tmp_path / "absent.properties", {})


def test_a_real_brokers_file_gives_the_tiers_part(tmp_path: Path) -> None:
    file = vector("aiven-tier", "broker.properties")
    config = load_lines(tmp_path, f"upstream.bootstrap.servers=b:1\nbroker.config={file}\n", minimal=False)
    assert config.remote_storage_manager_class_name == "io.aiven.kafka.tieredstorage.RemoteStorageManager"
    assert config.remote_storage_config["chunk.size"] == "65536"
    assert len(config.remote_storage_config) == 12
    assert config.remote_log_metadata_config["remote.log.metadata.topic.num.partitions"] == "5"
