"""Which names are taken for secrets."""

import pytest

from storage.config.masking import is_secret_name


@pytest.mark.parametrize(
    "name",
    [
        "rlmm.config.remote.log.metadata.common.client.sasl.jaas.config",
        "rlmm.config.remote.log.metadata.common.client.ssl.keystore.password",
        "rlmm.config.remote.log.metadata.common.client.ssl.keystore.key",
        "rsm.config.storage.aws.secret.access.key",
        "rsm.config.storage.aws.session.token",
        "rsm.config.storage.azure.account.key",
        "rsm.config.storage.azure.sas.token",
        "rsm.config.storage.azure.connection.string",
        "rsm.config.storage.gcs.credentials.json",
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "rsm.config.encryption.key.pairs.key1.private.key.file",
        "rsm.config.encryption.key.pair.id",
        "rsm.config.storage.gcs.credentials.path",
        "rsm.config.storage.aws.credentials.provider.class",
        "rsm.config.chunk.size",
        "rsm.config.key.prefix",
        "rlmm.config.remote.log.metadata.common.client.sasl.mechanism",
    ],
)
def test_a_path_a_class_or_a_number_is_none(name: str) -> None:
    assert not is_secret_name(name)
