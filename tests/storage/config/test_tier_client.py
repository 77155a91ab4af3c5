"""load_tier_config: serve's own file, read for its tier, with serve's checks and none of serve's other keys; and the
settings of our own connections that come of it."""

import ssl
import subprocess
import sys
from pathlib import Path

from protocol.client.sasl import SaslCredentials
from protocol.client.settings import ClientSettings
from storage.config.client_settings import client_settings
from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.tier_config_files import load_tier_lines, tier_file, tier_problems_of

ROOT = Path(__file__).parents[3]
COMMON = "rlmm.config.remote.log.metadata.common.client."
SASL = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.username=a\nupstream.sasl.password=b\n"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


def test_serves_own_keys_are_passed_over_unread(tmp_path: Path) -> None:
    lines = (
        "proxy.listen=nonsense\nproxy.tls.key.password=${env:ABSENT}\nproxy.tls.certificate.file=absent.pem\n"
        "cache.disk.bytes=much\ncache.disc.bytes=1\nlog.level=loud\nlog.level=quiet\nadmin.listen=x\n"
        "metrics.kip405.names=x\nmemory.max.bytes=x\nexpert.readahead.total.max.bytes=x\n"
        "expert.relay.rewrite.bytes.max=x\nauthority.max.age.ms=x\nexpert.frontier.max.age.ms=x\n"
        "catalog.segments.max=x\n"
    )
    environ = {"TIDEGATE_CACHE_PATH": "x", "TIDEGATE_PROXY_LISTEN": "x"}
    assert load_tier_lines(tmp_path, lines, environ=environ).warnings == ()


def test_what_concerns_brokers_and_tier_is_reported_with_key_and_origin(tmp_path: Path) -> None:
    lines = (
        "upstream.security.protocol=TLS\nexpert.tier.linger.ms=x\nrsm.config.key=${env:ABSENT}\n"
        f"{COMMON}bootstrap.servers=nowhere\nmode=both\n"
    )
    environ = {"TIDEGATE_REMOTE_FETCH_MAX_WAIT_MS": "-1"}
    assert tier_problems_of(tmp_path, lines, environ=environ, minimal=False) == (
        "tidegate.properties:3: rsm.config.key: ${env:ABSENT}: environment variable ABSENT is not set",
        "tidegate.properties:5: mode = both: must be one of replica, standalone",
        "upstream.bootstrap.servers is required: The brokers that are asked first.",
        "tidegate.properties:1: upstream.security.protocol = TLS: must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, "
        "SASL_SSL",
        "remote.log.storage.manager.class.name is required: Kafka's "
        "`org.apache.kafka.server.log.remote.storage.LocalTieredStorage`, Aiven's "
        "`io.aiven.kafka.tieredstorage.RemoteStorageManager`, or `tidegate.PlainObjects`. Or set broker.config to the "
        "broker's file, which has it.",
        "environment TIDEGATE_REMOTE_FETCH_MAX_WAIT_MS: remote.fetch.max.wait.ms = -1: at least 0",
        "tidegate.properties:2: expert.tier.linger.ms = x: must be a whole number",
        f"tidegate.properties:4: {COMMON}bootstrap.servers = nowhere: must be host:port, an IPv6 address in brackets",
    )


def test_it_is_loaded_without_trio_an_sdk_or_the_proxy(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from storage.config import load_tier_config\n"
        f"load_tier_config(pathlib.Path({str(tier_file(tmp_path, ''))!r}), {{}})\n"
        "heavy = {'trio', 'boto3', 'kio', 'cryptography', 'proxy', 'metrics'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@for_each(
    "lines, key",
    [
        (f"{SASL}upstream.sasl.mechanism=OAUTHBEARER\n", "upstream.sasl.mechanism"),
        (
            f"{COMMON}security.protocol=SASL_PLAINTEXT\n{COMMON}sasl.mechanism=OAUTHBEARER\n"
            f"{COMMON}sasl.jaas.config={MODULE}\n",
            "remote.log.metadata.common.client.sasl.mechanism",
        ),
    ],
)
def test_an_identity_that_cannot_be_used_is_one_problem(lines: str, key: str, tmp_path: Path) -> None:
    assert tier_problems_of(tmp_path, lines) == (
        f"{key}: OAUTHBEARER as Tidegate's own identity comes in a later version; leave the key unset",
    )


def settings_of(folder: Path, lines: str) -> ClientSettings:
    config = load_tier_lines(folder, lines)
    return client_settings(config.upstream)


def test_plaintext_has_servers_and_nothing_else(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "upstream.bootstrap.servers=a:1,[::1]:2\n")
    assert settings.bootstrap_servers == (("a", 1), ("::1", 2))
    assert (settings.tls, settings.sasl, settings.principal) == (None, None, "an anonymous client")
    assert settings.client_id("spark") == f"tidegate-spark-{settings.client_host}"


def test_sasl_over_tls_has_credentials_and_a_checking_context(tmp_path: Path) -> None:
    certificate, _ = server_certificate(tmp_path)
    settings = settings_of(
        tmp_path,
        "upstream.security.protocol=SASL_SSL\n"
        "upstream.sasl.mechanism=SCRAM-SHA-512\n"
        "upstream.sasl.username=carol\n"
        "upstream.sasl.password=open sesame\n"
        f"upstream.ssl.ca.location={certificate}\n",
    )
    assert settings.sasl == SaslCredentials("SCRAM-SHA-512", "carol", "open sesame")
    assert settings.tls is not None
    assert settings.tls.verify_mode is ssl.CERT_REQUIRED
    assert settings.principal == "'carol'"
    assert "open sesame" not in repr(settings)
