"""Which of a plug-in's keys may be shown: those that are known to hold no secret, and no others."""

from storage.config.masking import may_be_shown, without_credentials
from storage.plugin_keys import STORE_KEYS
from tests.support.for_each import for_each

SECRET_STORE_KEYS = {
    "storage.aws.access.key.id",
    "storage.aws.secret.access.key",
    "storage.aws.session.token",
    "storage.azure.account.key",
    "storage.azure.connection.string",
    "storage.azure.sas.token",
    "storage.gcs.credentials.json",
    "storage.proxy.password",
}


def test_of_the_stores_keys_just_the_secret_ones_are_hidden() -> None:
    assert {key for key in STORE_KEYS if not may_be_shown(f"rsm.config.{key}")} == SECRET_STORE_KEYS


@for_each(
    "name",
    [
        "rsm.config.pwd",
        "rsm.config.apikey",
        "rsm.config.sas",
        "rsm.config.kek",
        "rsm.config.customer.key",
        "rsm.config.what.nobody.has.heard.of",
        "rlmm.config.remote.log.metadata.common.client.sasl.jaas.config",
        "rlmm.config.remote.log.metadata.common.client.ssl.keystore.key",
        "rlmm.config.remote.log.metadata.common.client.ssl.keystore.password",
    ],
)
def test_what_is_not_known_to_be_harmless_is_hidden(name: str) -> None:
    assert not may_be_shown(name)


@for_each(
    "name",
    [
        "rsm.config.chunk.size",
        "rsm.config.dir",
        "rsm.config.encryption.key.pair.id",
        "rsm.config.encryption.key.pairs",
        "rsm.config.encryption.key.pairs.key1.private.key.file",
        "rsm.config.fetch.chunk.cache.prefetch.max.size",
        "rsm.config.key.prefix",
        "rsm.config.key.prefix.mask",
        "rsm.config.upload.rate.limit.bytes.per.second",
        "rlmm.config.remote.log.metadata.common.client.bootstrap.servers",
        "rlmm.config.remote.log.metadata.common.client.sasl.mechanism",
        "rlmm.config.remote.log.metadata.topic.num.partitions",
    ],
)
def test_what_is_known_to_be_harmless_is_shown(name: str) -> None:
    assert may_be_shown(name)


@for_each(
    "text, shown",
    [
        ("https://store.example:9000/a", "https://store.example:9000/a"),
        ("https://me:open-sesame@store.example/a?b=c", "https://[hidden]@store.example/a?[hidden]"),
        ("http://token@store.example", "http://[hidden]@store.example"),
        ("me:open-sesame@proxy:1080", "[hidden]@proxy:1080"),
        ("a:9092,b:9092", "a:9092,b:9092"),
        ("me@example.org", "me@example.org"),
        ("a:1,me:open@b:2", "a:1,[hidden]@b:2"),
    ],
)
def test_a_user_before_a_host_and_a_query_are_left_out(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
