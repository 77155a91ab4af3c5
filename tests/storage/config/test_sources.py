"""Which value counts, what may stand where, what is said about the rest, and what is shown of it."""

from pathlib import Path

import pytest

from storage.config import ConfigError, load_tier_config
from storage.config.sources import Settings, gather, key_name, variable_name
from storage.config.tier_client import TIER_CLIENT_KEYS
from tests.support.for_each import for_each
from tests.support.tier_config_files import load_tier_lines, tier_file, tier_problems_of

LOCAL_TIERED = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


def broker_file(folder: Path, text: str) -> str:
    (folder / "server.properties").write_text(text)
    return "broker.config=server.properties\n"


def gathered(folder: Path, lines: str, environ: dict[str, str]) -> Settings:
    problems: list[str] = []
    settings = gather(tier_file(folder, lines), environ, TIER_CLIENT_KEYS, problems)
    assert problems == []
    return settings


def metadata_texts(folder: Path, lines: str) -> dict[str, str | None]:
    """The metadata plug-in's keys, and what they say."""
    return {name: given.text for name, given in gathered(folder, lines, {}).metadata.items()}


def test_environment_comes_before_file_before_broker_config(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        f"remote.log.metadata.manager.class.name=Theirs\nremote.log.storage.manager.class.name={LOCAL_TIERED}\n"
        "rsm.config.a=1\nrsm.config.b=1\nrsm.config.c=1\n",
    )
    settings = gathered(
        tmp_path,
        f"{line}rsm.config.b=2\nrsm.config.c=2\nexpert.tier.linger.ms=1\n",
        {"TIDEGATE_RSM_CONFIG_C": "3", "TIDEGATE_EXPERT_TIER_LINGER_MS": "2"},
    )
    assert {name: (given.text, given.origin) for name, given in settings.storage.items()} == {
        "a": ("1", "broker.config server.properties:3"),
        "b": ("2", "tidegate.properties:4"),
        "c": ("3", "environment TIDEGATE_RSM_CONFIG_C"),
    }
    texts = {name: given.text for name, given in settings.table.items()}
    assert texts["remote.log.storage.manager.class.name"] == "tidegate.PlainObjects"
    assert texts["remote.log.metadata.manager.class.name"] == "Theirs"
    assert texts["expert.tier.linger.ms"] == "2"


def test_file_overrides_the_brokers_class_and_prefix(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        f"remote.log.storage.manager.class.name={LOCAL_TIERED}\n"
        "remote.log.storage.manager.impl.prefix=theirs.\ntheirs.a=1\ntheirs.b=1\nrsm.config.stranger=1\n",
    )
    lines = line + "remote.log.storage.manager.impl.prefix=ours.\nours.b=2\n"
    config = load_tier_lines(tmp_path, lines)
    assert config.remote_storage_manager_class_name == "tidegate.PlainObjects"
    assert dict(config.remote_storage_config) == {"a": "1", "b": "2"}
    assert gathered(tmp_path, lines, {}).storage["a"].origin == "broker.config server.properties:3"


def test_a_prefix_of_the_brokers_file_holds_in_file_too(tmp_path: Path) -> None:
    line = broker_file(tmp_path, "remote.log.metadata.manager.impl.prefix=meta.\nmeta.a=1\n")
    assert metadata_texts(tmp_path, f"{line}meta.b=2\n") == {"a": "1", "b": "2"}
    assert "unknown key rlmm.config.b" in tier_problems_of(tmp_path, f"{line}rlmm.config.b=2\n")[0]


def test_an_empty_prefix_is_refused(tmp_path: Path) -> None:
    line = broker_file(tmp_path, "remote.log.storage.manager.impl.prefix=\n")
    assert tier_problems_of(tmp_path, line) == (
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
    settings = gathered(tmp_path, line, {})
    assert {name: given.text for name, given in settings.storage.items()} == {"dir": "/tier"}
    assert "remote.fetch.max.wait.ms" not in settings.table
    assert "mode" not in settings.table


def test_metadata_clients_are_taken_bare_and_prefixed_and_the_prefixed_win(tmp_path: Path) -> None:
    line = broker_file(
        tmp_path,
        "rlmm.config.remote.log.metadata.consumer.fetch.max.bytes=1\nremote.log.metadata.consumer.fetch.max.bytes=2\n"
        "remote.log.metadata.common.client.retries=3\nrlmm.config.remote.log.metadata.producer.acks=all\n"
        "rlmm.config.remote.log.metadata.topic.num.partitions=5\n",
    )
    assert metadata_texts(tmp_path, line) == {
        "remote.log.metadata.consumer.fetch.max.bytes": "1",
        "remote.log.metadata.common.client.retries": "3",
        "remote.log.metadata.producer.acks": "all",
        "remote.log.metadata.topic.num.partitions": "5",
    }
    overridden = metadata_texts(tmp_path, f"{line}remote.log.metadata.consumer.fetch.max.bytes=4\n")
    assert overridden["remote.log.metadata.consumer.fetch.max.bytes"] == "4"


@for_each(
    "line, nearest",
    [
        ("tier.lingers.ms=1", "expert.tier.linger.ms"),
        ("upstrem.bootstrap.servers=a:1", "upstream.bootstrap.servers"),
        ("prxy.listen=a:1", "proxy.listen"),
        ("bootstrap.servers=a:1", "upstream.bootstrap.servers"),
        ("rsm.confg.chunk.size=1", "rsm.config.chunk.size"),
        (
            "rlmm.conf.remote.log.metadata.topic.num.partitions=1",
            "rlmm.config.remote.log.metadata.topic.num.partitions",
        ),
    ],
)
def test_an_unknown_key_of_file_is_told_the_nearest(line: str, nearest: str, tmp_path: Path) -> None:
    (problem,) = tier_problems_of(tmp_path, line)
    assert problem.startswith(f"tidegate.properties:3: unknown key {line.partition('=')[0]}; the nearest is {nearest} ")


def test_what_cannot_be_looked_up_names_key_and_variable_once(tmp_path: Path) -> None:
    line = broker_file(tmp_path, "rsm.config.secret=${env:NONE}\n")
    assert tier_problems_of(tmp_path, f"{line}expert.tier.linger.ms=${{env:LINGER}}\n") == (
        "tidegate.properties:4: expert.tier.linger.ms: ${env:LINGER}: environment variable LINGER is not set",
        "broker.config server.properties:1: rsm.config.secret: ${env:NONE}: environment variable NONE is not set",
    )


def test_a_missing_broker_file_is_one_problem_of_the_key(tmp_path: Path) -> None:
    (problem,) = tier_problems_of(tmp_path, "broker.config=absent.properties\n")
    assert problem == (
        f"tidegate.properties:3: broker.config: {tmp_path}/absent.properties: cannot be read: No such file or directory"
    )


def test_relative_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    nested = tmp_path / "etc"
    nested.mkdir()
    (tmp_path / "server.properties").write_text("rsm.config.dir=tier\n")
    settings = gathered(nested, "broker.config=../server.properties\nupstream.ssl.ca.location=ca.pem\n", {})
    assert settings.table["upstream.ssl.ca.location"].folder == nested
    # A plug-in's value is the plug-in's: it is handed on as it is.
    assert settings.storage["dir"].text == "tier"


def test_an_unknown_variable_is_one_warning_and_the_tests_own_are_none(tmp_path: Path) -> None:
    environ = {"TIDEGATE_SERVICE_PORT": "1", "TIDEGATE_VECTORS": "x", "TIDEGATE_REQUIRE_ALL": "1", "OTHER": "x"}
    config = load_tier_lines(tmp_path, "", environ=environ)
    assert config.warnings == ("environment variable TIDEGATE_SERVICE_PORT names no key and is ignored",)


def test_a_variable_finds_a_plugin_key_whose_capitals_it_lost(tmp_path: Path) -> None:
    config = load_tier_lines(tmp_path, "rsm.config.keys.Key1=a\n", environ={"TIDEGATE_RSM_CONFIG_KEYS_KEY1": "b"})
    assert dict(config.remote_storage_config) == {"keys.Key1": "b"}


def test_an_alias_counts_as_its_key_and_must_not_contradict_it(tmp_path: Path) -> None:
    sasl = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
    config = load_tier_lines(tmp_path, f"{sasl}upstream.sasl.mechanisms=PLAIN\n")
    assert config.upstream.security.sasl is not None
    assert config.upstream.security.sasl.mechanism == "PLAIN"
    both = f"{sasl}upstream.sasl.mechanism=PLAIN\nupstream.sasl.mechanisms=SCRAM-SHA-256\n"
    assert tier_problems_of(tmp_path, both) == (
        "tidegate.properties:7: upstream.sasl.mechanisms contradicts upstream.sasl.mechanism: keep one of them",
    )


def test_a_file_that_cannot_be_read_is_the_only_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.properties: cannot be read"):
        load_tier_config(tmp_path / "absent.properties", {})


@for_each(
    "key, variable",
    [
        ("mode", "TIDEGATE_MODE"),
        ("cache.disk.bytes", "TIDEGATE_CACHE_DISK_BYTES"),
        ("rsm.config.a_b-c", "TIDEGATE_RSM_CONFIG_A__B___C"),
    ],
)
def test_a_key_becomes_a_variable_and_back(key: str, variable: str) -> None:
    assert variable_name(key) == variable
    assert key_name(variable) == key


def test_a_brokers_variable_need_not_be_found_where_another_source_gives_the_key(tmp_path: Path) -> None:
    broker = broker_file(
        tmp_path,
        "rsm.config.a=${strimzienv:A}\nrsm.config.b=${strimzienv:B}\n"
        "remote.log.storage.manager.class.name=${strimzienv:C}\n",
    )
    given = f"{broker}rsm.config.a=ours\nremote.log.storage.manager.class.name={LOCAL_TIERED}\n"
    settings = gathered(tmp_path, given, {"TIDEGATE_RSM_CONFIG_B": "environment's"})
    assert {name: setting.text for name, setting in settings.storage.items()} == {"a": "ours", "b": "environment's"}
    unknown = "no provider 'strimzienv': use env, file or dir"
    assert tier_problems_of(tmp_path, broker) == (
        f"broker.config server.properties:1: rsm.config.a: ${{strimzienv:A}}: {unknown}",
        f"broker.config server.properties:2: rsm.config.b: ${{strimzienv:B}}: {unknown}",
    )


def test_a_plug_ins_secret_is_never_shown_nor_a_password_in_an_address(tmp_path: Path) -> None:
    lines = (
        "rsm.config.pwd=planted\nrsm.config.kek.file=/keys/kek\nrsm.config.apikey=${env:KEY}\n"
        "rsm.config.storage.s3.endpoint.url=http://me:planted@s3\n"
        "rsm.config.storage.azure.endpoint.url=https://a.net/c?sv=1&sig=planted\n"
    )
    settings = gathered(tmp_path, lines, {"KEY": "planted"})
    shown = [setting.masked(name, None) for name, setting in settings.storage.items()]
    expected = ["[hidden]", "/keys/kek", "${env:KEY}", "http://[hidden]@s3", "https://a.net/c?[hidden]"]
    assert sorted(shown) == sorted(expected)


@for_each("mark", ["utf-8-sig", "utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_is_named(tmp_path: Path, mark: str) -> None:
    """Failed before: unknown keys `\xef\xbb\xbf#`, or thousands of them with zeros between."""
    file = tmp_path / "tidegate.properties"
    text = ("" if mark == "utf-8-sig" else "\ufeff") + "# ours\nupstream.bootstrap.servers=broker:9092\n"
    file.write_bytes(text.encode(mark))
    with pytest.raises(ConfigError) as caught:
        load_tier_config(file, {})
    (problem,) = caught.value.problems
    assert problem == f"{file}: begins with a byte order mark, as some editors write: save it as UTF-8 without one"


def test_a_value_in_quotes_is_one_problem_of_its_own(tmp_path: Path) -> None:
    """Failed before: "must be a host and port", or a bucket of that name was asked for. A broker takes its quotes for
    part of the value, and a password may have some."""
    broker = broker_file(tmp_path, "rsm.config.b='kept'\n")
    environ = {"TIDEGATE_RSM_CONFIG_C": '"three"', "TIDEGATE_UPSTREAM_SASL_PASSWORD": '"fine"'}
    lines = f'{broker}proxy.listen="here:1"\nrsm.config.a=\'one\'\nupstream.security.protocol="PLAINTEXT"\n'
    problems = tier_problems_of(tmp_path, lines, environ=environ)
    assert sorted(problems) == [
        "environment TIDEGATE_RSM_CONFIG_C: TIDEGATE_RSM_CONFIG_C is in quotes, which would be part of the value: "
        "leave them out",
        "tidegate.properties:5: rsm.config.a is in quotes, which would be part of the value: leave them out",
        "tidegate.properties:6: upstream.security.protocol is in quotes, which would be part of the value: leave them "
        "out",
    ]
    assert gathered(tmp_path, broker, {}).storage["b"].text == "'kept'"
