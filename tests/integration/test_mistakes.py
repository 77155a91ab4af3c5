"""What an operator gets wrong, made really on a cluster as operators have it, and what `tidegate check` says: one
message, the key at fault, what to do.

Three brokers with an authorizer and an S3 server are shared; everything else is a socket, a file or a limit of this
process. The configuration is right but for the mistake.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from storage.config import ConfigError
from tests.support.certificates import days_from_2020, make_certificate
from tests.support.mistakes import (
    BUCKET,
    MISTAKES,
    UNREACHABLE_NAME,
    USAGE,
    WARNING,
    WRONG,
    Stage,
    mistake,
    right_stage,
    setting,
)
from tests.support.s3_server import S3Server
from tests.support.scripted_http import response, s3_error
from tests.support.secured_kafka import DESCRIBE, DESCRIBE_CONFIGS, METADATA_TOPIC, READ, SecuredKafka
from tests.support.serving import START_S_MAX, serving
from tests.support.versitygw import versitygw
from tidegate import exit_codes
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "versitygw")]

COMMON = "rlmm.config.remote.log.metadata.common.client."


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("store")
    with versitygw(folder, tmp_path_factory.mktemp("versitygw")) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(autouse=True)
def nobodys_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


# FILE.


setting("misspelt_key", "unknown key proxy.lisen; the nearest is proxy.listen", proxy_lisen=f"{HOST}:1")
setting("a_brokers_key", "unknown key log.dirs", "belong in the file that broker.config names", log_dirs="/data")
setting("misspelt_choice", "mode = replicate: must be", mode="replicate")
setting("quoted_value", "admin.listen is in quotes", "leave them out", admin_listen=f'"{HOST}:1"')
setting("decimal_unit", "cache.memory.bytes = 1G: must be", cache_memory_bytes="1G")
setting("variable_not_set", "environment variable TIDE_PW is not set", upstream_sasl_password="${env:TIDE_PW}")
setting("file_not_there", "broker.config: /nowhere/server.properties", broker_config="/nowhere/server.properties")
setting("not_a_brokers_file", "remote.log.storage.manager.class.name is required", broker_config="/dev/null")
setting("plugin_that_we_lack", "x.Y", remote_log_storage_manager_class_name="x.Y")
setting("old_name", "tier.linger.ms is expert.tier.linger.ms now", code=WARNING, tier_linger_ms="5")
setting(
    "misspelt_plugin_key",
    "rsm.config.dirr is no key that is known",
    "nearest is rsm.config.dir",
    code=WARNING,
    rsm_config_dirr="/tier",
)
setting(
    "idle_plugin_key",
    "these keys have no effect here: rsm.config.delete.on.close",
    code=WARNING,
    rsm_config_delete_on_close="true",
)
setting(
    "misspelt_client_key",
    "is no key that is known",
    "the nearest is",
    code=WARNING,
    **{f"{COMMON}sasl.mechanis": "PLAIN"},
)
setting(
    "two_roles_at_one_address",
    "admin.listen",
    "is proxy.listen too",
    proxy_listen=f"{HOST}:19092",
    admin_listen=f"{HOST}:19092",
)
setting("wildcard_without_a_name", "set proxy.advertised.host", proxy_listen="0.0.0.0:19092")
setting(
    "budgets_beyond_the_sum", "raise it or lower one of them", memory_max_bytes="512 MiB", cache_memory_bytes="1 GiB"
)
setting("too_many_workers", "proxy.workers = 64: so many need memory.max.bytes", proxy_workers="64")
setting("key_without_encryption", "needs cache.encrypt = true", cache_encrypt_key_file="/dev/null")
setting("anybody_may_claim_an_address", "set proxy.protocol.trusted", proxy_protocol="true")
setting(
    "copier_beside_the_brokers",
    "copy.enabled = true: needs mode = standalone",
    copy_enabled="true",
    copy_topics="a",
    copy_staging_path="/nowhere",
)
setting(
    "staging_over_the_tier",
    "another copy.staging.path",
    mode="standalone",
    copy_enabled="true",
    copy_topics="a",
    copy_staging_path="/",
)
setting(
    "metadata_that_expires",
    "remote.log.metadata.topic.retention.ms = -1",
    mode="standalone",
    copy_enabled="true",
    copy_topics="a",
    copy_staging_path="/nowhere",
    rlmm_config_remote_log_metadata_topic_retention_ms="60000",
)


@mistake("begins with a byte order mark", "save it as UTF-8 without one", code=USAGE)
def byte_order_mark(stage: Stage) -> None:
    stage.head = "\xef\xbb\xbf# Tidegate\n"


@mistake("admin.listen is given in lines 1, ", "the last one counts", code=WARNING)
def key_given_twice(stage: Stage) -> None:
    stage.head = f"admin.listen={HOST}:1\n"


@mistake("environment variable TIDEGATE_PROXY_LISEN names no key", "nearest is TIDEGATE_PROXY_LISTEN", code=WARNING)
def misspelt_variable(stage: Stage) -> None:
    stage.environ["TIDEGATE_PROXY_LISEN"] = f"{HOST}:1"


@mistake("upstream.sasl.password: is required: upstream.security.protocol has SASL", code=USAGE)
def no_password(stage: Stage) -> None:
    del stage.properties["upstream.sasl.password"]


@mistake("brokers.jks is a JKS store, which only Java reads; convert it: keytool -importkeystore", code=USAGE)
def store_that_only_java_reads(stage: Stage) -> None:
    """The brokers' own identity is asked for."""
    stage.properties["metadata.identity"] = "broker"


@mistake("metadata.identity is not set, and both", "set metadata.identity to broker or upstream", code=WARNING)
def identity_that_nobody_chose(stage: Stage) -> None:
    del stage.properties["metadata.identity"]
    stage.properties[f"{COMMON}ssl.truststore.location"] = str(stage.kafka.certificate)


@mistake("Kerberos is not supported", code=USAGE)
def kerberos(stage: Stage) -> None:
    stage.properties["metadata.identity"] = "broker"
    module = "com.sun.security.auth.module.Krb5LoginModule required;"
    stage.properties |= {
        f"{COMMON}ssl.truststore.location": str(stage.kafka.certificate),
        f"{COMMON}sasl.jaas.config": module,
    }


@mistake("proxy.tls.sni.pattern", "needs proxy.tls.certificate.file", code=USAGE)
def names_without_tls(stage: Stage) -> None:
    del stage.properties["proxy.broker.ports"]
    stage.properties["proxy.tls.sni.pattern"] = "b$(nodeId).example.org"


# What clients meet.


@mistake("proxy.advertised.host tells clients", "not to be found by DNS; correct the name, or DNS")
def host_that_nobody_knows(stage: Stage) -> None:
    stage.properties["proxy.advertised.host"] = UNREACHABLE_NAME


@mistake("192.0.2.1", "no address of this machine", code=WARNING)
def host_of_another_machine(stage: Stage) -> None:
    stage.properties["proxy.advertised.host"] = "192.0.2.1"


@mistake(
    "proxy.tls.certificate.file is for localhost, 127.0.0.1", "not for 127.0.0.2, which proxy.advertised.host tells"
)
def certificate_for_another_host(stage: Stage) -> None:
    stage.properties |= {
        "proxy.advertised.host": "127.0.0.2",
        "proxy.tls.certificate.file": str(stage.kafka.certificate),
        "proxy.tls.key.file": str(stage.kafka.key),
    }


@mistake("proxy.tls.certificate.file expired at", "renew it")
def certificate_that_expired(stage: Stage) -> None:
    stage.certificate(HOST, days=days_from_2020(-50))


@mistake("proxy.tls.certificate.file expires at", "renew it", code=WARNING)
def certificate_that_expires_soon(stage: Stage) -> None:
    stage.certificate(HOST, days=days_from_2020(5))


@mistake("has no subject alternative name", f"make one with {HOST}")
def certificate_without_names(stage: Stage) -> None:
    stage.certificate()


@mistake("holds no certificate of the issuer", code=WARNING)
def certificate_without_its_issuer(stage: Stage) -> None:
    stage.certificate(HOST, issuer=make_certificate("ours"))


@mistake("proxy.tls.certificate.file", code=USAGE)
def key_of_another_certificate(stage: Stage) -> None:
    stage.show(make_certificate("one", [HOST]), key=make_certificate("two"))


setting("certificate_that_is_not_there", "proxy.tls.certificate.file", proxy_tls_certificate_file="/nowhere/server.pem")
setting("key_without_certificate", "needs proxy.tls.certificate.file", proxy_tls_key_file="/dev/null")


@mistake("is for 127.0.0.1 and not for 0x7f000001", "proxy.tls.sni.pattern tells clients: they refuse it")
def names_that_the_certificate_lacks(stage: Stage) -> None:
    """Broker 1 is 127.0.0.1 in hexadecimal: a name that leads here without DNS."""
    del stage.properties["proxy.broker.ports"]
    stage.certificate(HOST)
    stage.properties["proxy.tls.sni.pattern"] = "0x7f00000$(nodeId)"


@mistake("clients on other machines reach themselves by it", code=WARNING)
def loopback_told_to_everybody(stage: Stage) -> None:
    stage.properties |= {"proxy.listen": f"0.0.0.0:{free_port()}", "proxy.advertised.host": HOST}
    stage.certificate(HOST)


# What is insecure.


setting(
    "pages_for_everybody",
    "can be reached from other machines and asks for no password",
    code=WARNING,
    admin_listen="0.0.0.0:19464",
)
setting(
    "rights_that_last",
    "authority.max.age.ms is 3600000",
    "still reads it from the tier",
    code=WARNING,
    authority_max_age_ms="3600000",
)


@mistake("to brokers all clients are ANONYMOUS", code=WARNING)
def clients_that_nobody_can_tell_apart(stage: Stage) -> None:
    stage.be_nobody("PLAINTEXT")
    stage.properties["upstream.bootstrap.servers"] = stage.kafka.address("PLAINTEXT")
    del stage.properties["upstream.ssl.ca.location"]


setting(
    "any_certificate",
    "any certificate of that authority passes for a broker's",
    code=WARNING,
    upstream_ssl_endpoint_identification_algorithm="none",
)


# This machine.


@mistake("cannot listen on 127.0.0.1:", "which proxy.listen names: Address already in use; stop what listens there")
def proxy_port_taken(stage: Stage) -> None:
    stage.properties["proxy.listen"] = stage.listener()


@mistake("cannot listen on 127.0.0.1:", "which admin.listen names: Address already in use; stop what listens there")
def admin_port_taken(stage: Stage) -> None:
    stage.properties["admin.listen"] = stage.listener()


@mistake("clients will not hear of broker 2", "Address already in use")
def a_brokers_port_taken(stage: Stage) -> None:
    port = stage.listener().rpartition(":")[2]
    stage.properties["proxy.broker.ports"] = f"1:{free_port()},2:{port},3:{free_port()}"


@mistake("clients will not hear of broker 3", "give it port 65536; name its port in proxy.broker.ports")
def port_beyond_the_last(stage: Stage) -> None:
    stage.properties |= {"proxy.broker.ports": f"1:{free_port()},2:{free_port()}", "proxy.broker.port.start": "65533"}


@mistake("which proxy.listen names: Cannot assign requested address; this machine has no such address")
def anothers_address(stage: Stage) -> None:
    """One port for all brokers, which would each complain too."""
    del stage.properties["proxy.broker.ports"]
    stage.certificate(*(f"0x7f00000{node_id}" for node_id in (1, 2, 3)))
    stage.properties |= {"proxy.listen": "192.0.2.1:19092", "proxy.tls.sni.pattern": "0x7f00000$(nodeId)"}


@mistake(
    "cache.path",
    "cannot be written by this user",
    "so serve does not start; name a folder that belongs to it",
    code=USAGE,
)
def read_only_folder(stage: Stage) -> None:
    """root writes into what nobody may write, but not into the kernel's own folders."""
    stage.properties["cache.path"] = "/sys/kernel/tidegate"


@mistake("Not a directory", ", so serve does not start", code=USAGE)
def cache_below_a_file(stage: Stage) -> None:
    stage.properties["cache.path"] = str(stage.kafka.certificate / "cache")


@mistake("cache.path", "is in use by another process: name a folder for this one")
def cache_of_another_process(stage: Stage) -> None:
    stage.cache_of_another()


setting(
    "cache_larger_than_its_disk",
    "lower it, or use a larger disk",
    code=WARNING,
    cache_path="/tmp/tidegate-none",
    cache_disk_bytes="1024 TiB",
)
setting(
    "audit_log_nowhere",
    "audit.log /nowhere/audit.log cannot be made, so serve does not start",
    code=WRONG,
    audit_log="/nowhere/audit.log",
)
setting("audit_log_that_is_a_folder", "audit.log /tmp is not a file", "serve does not", code=WRONG, audit_log="/tmp")
setting(
    "more_memory_than_there_is",
    "the kernel would kill it; lower the key, or raise the limit",
    code=WRONG,
    memory_max_bytes="1 TiB",
)
setting("more_connections_than_files", "LimitNOFILE=", code=WARNING, proxy_connections_max="1000000")


# Brokers.


@mistake("connection refused: nothing listens there", "check upstream.bootstrap.servers 127.0.0.1:")
def nobody_listens(stage: Stage) -> None:
    stage.properties["upstream.bootstrap.servers"] = f"{HOST}:{free_port()}"


setting(
    "unknown_host",
    f"cannot connect to {UNREACHABLE_NAME}:9092: the host's name cannot be resolved",
    "check upstream.bootstrap.servers",
    code=WRONG,
    upstream_bootstrap_servers=f"{UNREACHABLE_NAME}:9092",
)


@mistake("it answers in HTTP, not in Kafka's protocol: check the port", "upstream.bootstrap.servers")
def port_of_a_web_server(stage: Stage) -> None:
    stage.be_nobody("PLAINTEXT")
    stage.properties["upstream.bootstrap.servers"] = stage.answerer(response(400))


@mistake("it may be a KRaft controller's port; name brokers' ports in its place")
def port_of_a_controller(stage: Stage) -> None:
    stage.be_nobody("PLAINTEXT")
    stage.properties["upstream.bootstrap.servers"] = f"{HOST}:{stage.kafka.cluster.plan.controller_port}"


@mistake("TLS handshake with 127.0.0.1:", "it may be a listener without TLS: check upstream.security.protocol")
def tls_to_a_plain_listener(stage: Stage) -> None:
    stage.be("tidegate", "PLAIN", "SASL_SSL", "PLAINTEXT")


@mistake("check upstream.security.protocol")
def plain_text_to_a_tls_listener(stage: Stage) -> None:
    stage.properties["upstream.security.protocol"] = "SASL_PLAINTEXT"


@mistake("the listener may want a sign-in (SASL); check upstream.security.protocol")
def no_sign_in_where_one_is_wanted(stage: Stage) -> None:
    stage.be_nobody("SSL")
    stage.properties[f"{COMMON}ssl.truststore.location"] = str(stage.kafka.certificate)


@mistake("CERTIFICATE_VERIFY_FAILED", "check upstream.ssl.ca.location")
def authority_not_known(stage: Stage) -> None:
    del stage.properties["upstream.ssl.ca.location"]


@mistake("Hostname mismatch")
def name_that_the_brokers_certificate_lacks(stage: Stage) -> None:
    """127.0.0.1 in hexadecimal."""
    stage.properties["upstream.bootstrap.servers"] = f"0x7f000001:{stage.kafka.ports['SASL_SSL']}"


CREDENTIAL_KEYS = "check upstream.sasl.mechanism, upstream.sasl.username and upstream.sasl.password"
setting(
    "wrong_password", "PLAIN for 'tidegate' failed", CREDENTIAL_KEYS, code=WRONG, upstream_sasl_password="open-sesame"
)
setting("unknown_user", "PLAIN for 'tidgate' failed", CREDENTIAL_KEYS, code=WRONG, upstream_sasl_username="tidgate")
setting(
    "wrong_scram_password",
    "SCRAM-SHA-512 for 'tidegate' failed",
    CREDENTIAL_KEYS,
    code=WRONG,
    upstream_sasl_mechanism="SCRAM-SHA-512",
    upstream_sasl_password="open-sesame",
)
setting(
    "mechanism_that_we_lack",
    "OAUTHBEARER as Tidegate's own identity",
    code=USAGE,
    upstream_sasl_mechanism="OAUTHBEARER",
)


@mistake(
    "ACL Describe on Topic tiered-secret",
    "is missing",
    "kafka-acls.sh --bootstrap-server",
    "--operation Describe --topic tiered-secret",
)
def no_right_to_describe_a_topic(stage: Stage) -> None:
    stage.kafka.allow("checker", READ, METADATA_TOPIC)
    stage.open.callback(stage.kafka.withdraw, "checker", READ, METADATA_TOPIC)
    stage.be("checker", "PLAIN", "SASL_SSL")


@mistake("ACL Describe on Topic __remote_log_metadata is missing", "--operation Describe --topic __remote_log_metadata")
def no_right_to_the_metadata_topic(stage: Stage) -> None:
    stage.be("outsider", "PLAIN", "SASL_SSL")


@mistake("ACL Read on Topic __remote_log_metadata is missing", "kafka-acls.sh")
def may_describe_the_metadata_topic_only(stage: Stage) -> None:
    for topic in (METADATA_TOPIC, stage.kafka.topic.name):
        stage.kafka.allow("checker", DESCRIBE, topic)
        stage.open.callback(stage.kafka.withdraw, "checker", DESCRIBE, topic)
    stage.be("checker", "PLAIN", "SASL_SSL")


@mistake("ACL DescribeConfigs on Topic __remote_log_metadata is missing", "kafka-acls.sh", code=WARNING)
def retention_not_to_be_seen(stage: Stage) -> None:
    for operation, topic in ((READ, METADATA_TOPIC), (DESCRIBE, stage.kafka.topic.name)):
        stage.kafka.allow("checker", operation, topic)
        stage.open.callback(stage.kafka.withdraw, "checker", operation, topic)
    stage.be("checker", "PLAIN", "SASL_SSL")


@mistake("has retention.ms=3600000", "set it to -1", code=WARNING)
def segments_that_are_forgotten(stage: Stage) -> None:
    stage.kafka.set_metadata_topic("retention.ms", "3600000")
    stage.open.callback(stage.kafka.set_metadata_topic, "retention.ms", "-1")


# The tier.


setting("wrong_folder", "there is no such folder", "check rsm.config.dir", code=WRONG, rsm_config_dir="/nowhere")


@mistake("NoSuchBucket", "check rsm.config.storage.s3.bucket.name")
def wrong_bucket(stage: Stage) -> None:
    stage.store(storage_s3_bucket_name="anothers")


@mistake("NoSuchKey", "check rsm.config.key.prefix and rsm.config.storage.s3.bucket.name")
def wrong_prefix(stage: Stage) -> None:
    stage.store(key_prefix="anothers/")


@mistake("NoCredentialsError: no credentials were found; set rsm.config.storage.aws.access.key.id")
def no_credentials(stage: Stage) -> None:
    stage.store(storage_aws_access_key_id="", storage_aws_secret_access_key="")


@mistake("SignatureDoesNotMatch", "check rsm.config.storage.aws.access.key.id and its secret")
def wrong_secret_key(stage: Stage) -> None:
    stage.store(storage_aws_secret_access_key="open-sesame")


@mistake("InvalidAccessKeyId", "check rsm.config.storage.aws.access.key.id")
def wrong_access_key(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{stage.listener(s3_error(403, 'InvalidAccessKeyId'))}")


@mistake("AccessDenied")
def key_without_rights(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{stage.listener(s3_error(403, 'AccessDenied'))}")


@mistake("nobody answers there; check rsm.config.storage.s3.endpoint.url")
def wrong_endpoint(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{HOST}:{free_port()}")


@mistake("not JSON", "look first whether rsm.config.storage.s3.endpoint.url")
def endpoint_of_a_web_server(stage: Stage) -> None:
    page = response(200, b"<html>hello</html>", {"Content-Type": "text/html"})
    stage.store(storage_s3_endpoint_url=f"http://{stage.listener(page)}")


@mistake("TLS failed; check http:// or https:// in rsm.config.storage.s3.endpoint.url")
def https_to_an_http_store(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=stage.s3.endpoint_url.replace("http://", "https://"))


@mistake("RequestTimeTooSkewed", "this machine's clock is wrong: set it (NTP)")
def wrong_clock(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{stage.listener(s3_error(403, 'RequestTimeTooSkewed'))}")


@mistake("the bucket is elsewhere")
def wrong_region(stage: Stage) -> None:
    stage.store(storage_s3_endpoint_url=f"http://{stage.listener(s3_error(301, 'PermanentRedirect'))}")


@mistake("rsm.config.storage.s3.bucket.name is not set", code=USAGE)
def no_bucket(stage: Stage) -> None:
    stage.store(storage_s3_bucket_name="")


@mistake("rsm.config.encryption.key.pairs is not set", code=USAGE)
def encryption_without_keys(stage: Stage) -> None:
    stage.store(encryption_enabled="true")


@mistake("rsm.config.storage.backend.class", "which this version does not read", code=USAGE)
def backend_that_we_lack(stage: Stage) -> None:
    stage.store(storage_backend_class="io.aiven.kafka.tieredstorage.storage.oci.OciStorage")


@pytest.fixture(scope="module")
def cluster(operators: SecuredKafka) -> Iterator[SecuredKafka]:
    """Tidegate's user may see the retention, too."""
    operators.allow("tidegate", DESCRIBE_CONFIGS, METADATA_TOPIC)
    yield operators
    operators.withdraw("tidegate", DESCRIBE_CONFIGS, METADATA_TOPIC)


def test_a_right_configuration_is_not_complained_of(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    """Nor are ports of a Tidegate that runs here."""
    with right_stage(cluster, s3, tmp_path) as right:
        assert right.check() == (exit_codes.DONE, [], [])
        with serving(tmp_path, right.properties) as serve:
            serve.wait_log("ready: ")
            assert right.check() == (exit_codes.DONE, [], [])


def test_a_mistake_has_one_message_that_says_what_to_do(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    assert len(MISTAKES) >= 60
    otherwise = []
    for each in MISTAKES:
        (tmp_path / each.name).mkdir()
        with right_stage(cluster, s3, tmp_path / each.name) as stage:
            each.make(stage)
            code, wrong, warned = stage.check()
        messages = wrong if each.code != WARNING else wrong + warned
        if (len(messages), code) != (1, each.code) or not all(words in messages[0] for words in each.said):
            otherwise.append(f"{each.name}: exit code {code}, {messages}")
    assert not otherwise, "\n".join(otherwise)


def test_serve_refuses_what_check_refuses(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    """FILE can be read, which all commands do alike, and what it names is refused."""
    started = []
    with ExitStack() as stack:
        for each in MISTAKES:
            (tmp_path / each.name).mkdir()
            stage = stack.enter_context(right_stage(cluster, s3, tmp_path / each.name))
            if each.code == USAGE:
                each.make(stage)
                with suppress(ConfigError):
                    stage.load()
                    started.append((each, stack.enter_context(serving(stage.folder, stage.properties))))
        for each, serve in started:
            assert serve.process.wait(START_S_MAX) == USAGE, serve.log()
            assert any(words in serve.log() for words in each.said), (each.name, serve.log())
    assert len(started) >= 6
