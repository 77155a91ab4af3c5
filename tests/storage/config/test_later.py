"""What every reader of the tier refuses in this version instead of ignoring it."""

from pathlib import Path

import pytest

from tests.support.tier_config_files import tier_problems_of

SASL = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
METADATA = "rlmm.config.remote.log.metadata.common.client."
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        (f"{SASL}upstream.sasl.mechanism=OAUTHBEARER\n", "upstream.sasl.mechanism"),
        (
            f"{METADATA}security.protocol=SASL_PLAINTEXT\n{METADATA}sasl.mechanism=OAUTHBEARER\n"
            f"{METADATA}sasl.jaas.config={MODULE}\n",
            "remote.log.metadata.common.client.sasl.mechanism",
        ),
    ],
)
def test_an_identity_that_cannot_be_used_is_one_problem(lines: str, key: str, tmp_path: Path) -> None:
    assert tier_problems_of(tmp_path, lines) == (
        f"{key}: OAUTHBEARER as Tidegate's own identity comes in a later version; leave the key unset",
    )
