"""What this version refuses instead of ignoring it."""

from pathlib import Path

import pytest

from proxy.config.keys import SERVE_KEYS
from proxy.config.later import LATER
from tests.support.config_files import problems_of

SASL = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
METADATA = "rlmm.config.remote.log.metadata.common.client."
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("mode=standalone\n", "mode"),
        (f"{SASL}upstream.sasl.mechanism=OAUTHBEARER\n", "upstream.sasl.mechanism"),
        (
            f"{METADATA}security.protocol=SASL_PLAINTEXT\n{METADATA}sasl.mechanism=OAUTHBEARER\n"
            f"{METADATA}sasl.jaas.config={OAUTHBEARER_MODULE}\n",
            "remote.log.metadata.common.client.sasl.mechanism",
        ),
    ],
)
def test_a_value_that_would_be_ignored_is_refused_in_one_sentence(lines: str, key: str, tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, lines)
    (feature,) = [later.feature for later in LATER if later.key == key]
    assert problem == f"{key}: {feature} comes in a later version; leave the key unset"


def test_such_a_key_is_still_checked(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "cache.encrypt=maybe\n")[0].endswith("must be true or false")
    assert "needs cache.encrypt = true" in problems_of(tmp_path, "cache.encrypt.key.file=key\n")[0]
    assert "needs cache.path" in problems_of(tmp_path, "cache.encrypt=true\n")[0]


def test_every_refusal_stands_under_a_key_that_exists() -> None:
    assert all(later.key in SERVE_KEYS.by_name or later.key.startswith("remote.log.metadata.") for later in LATER)
