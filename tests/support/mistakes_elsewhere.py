"""Mistakes in what brokers and the tier are asked for, and at them."""

import shutil

from metrics.troubles import TroubleId
from tests.support.broker_relay import broker_elsewhere
from tests.support.mistakes import (
    CLIENT_KEYS,
    UNREACHABLE_NAME,
    USAGE,
    WARNING,
    WRONG,
    Stage,
    Table,
    leaders_of,
    read_from_its_start,
)
from tests.support.scripted_http import response, s3_error
from tests.support.secured_kafka import DESCRIBE, METADATA_TOPIC, READ
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

ELSEWHERE = Table()
mistake, setting = ELSEWHERE.mistake, ELSEWHERE.setting

NO_CATALOG = (TroubleId.CATALOG_NOT_READ,)
"""Without a broker."""

# Brokers.


@mistake("connection refused: nothing listens there", "check upstream.bootstrap.servers 127.0.0.1:", follows=NO_CATALOG)
def nobody_listens(stage: Stage) -> None:
    stage.properties["upstream.bootstrap.servers"] = f"{HOST}:{free_port()}"


setting(
    "unknown_host",
    f"cannot connect to {UNREACHABLE_NAME}:9092: the host's name cannot be resolved",
    "check upstream.bootstrap.servers",
    follows=NO_CATALOG,
    code=WRONG,
    upstream_bootstrap_servers=f"{UNREACHABLE_NAME}:9092",
)


@mistake(
    "it answers in HTTP, not in Kafka's protocol: check the port", "upstream.bootstrap.servers", follows=NO_CATALOG
)
def port_of_a_web_server(stage: Stage) -> None:
    stage.be_nobody("PLAINTEXT")
    stage.properties["upstream.bootstrap.servers"] = stage.answerer(response(400))


@mistake("it may be a KRaft controller's port; name brokers' ports in its place", follows=NO_CATALOG)
def port_of_a_controller(stage: Stage) -> None:
    stage.be_nobody("PLAINTEXT")
    stage.properties["upstream.bootstrap.servers"] = f"{HOST}:{stage.kafka.cluster.plan.controller_port}"


@mistake(
    "TLS handshake with 127.0.0.1:",
    "it may be a listener without TLS: check upstream.security.protocol",
    follows=NO_CATALOG,
)
def tls_to_a_plain_listener(stage: Stage) -> None:
    stage.be("tidegate", "PLAIN", "SASL_SSL", "PLAINTEXT")


@mistake("check upstream.security.protocol", follows=NO_CATALOG)
def plain_text_to_a_tls_listener(stage: Stage) -> None:
    stage.properties["upstream.security.protocol"] = "SASL_PLAINTEXT"


@mistake("the listener may want a sign-in (SASL); check upstream.security.protocol", follows=NO_CATALOG)
def no_sign_in_where_one_is_wanted(stage: Stage) -> None:
    stage.be_nobody("SSL")
    stage.properties[f"{CLIENT_KEYS}ssl.truststore.location"] = str(stage.kafka.certificate)


@mistake("CERTIFICATE_VERIFY_FAILED", "check upstream.ssl.ca.location", follows=NO_CATALOG)
def authority_not_known(stage: Stage) -> None:
    del stage.properties["upstream.ssl.ca.location"]


@mistake("Hostname mismatch", follows=NO_CATALOG)
def name_that_the_brokers_certificate_lacks(stage: Stage) -> None:
    """127.0.0.1 in hexadecimal."""
    stage.properties["upstream.bootstrap.servers"] = f"0x7f000001:{stage.kafka.ports['SASL_SSL']}"


CREDENTIAL_KEYS = "check upstream.sasl.mechanism, upstream.sasl.username and upstream.sasl.password"
setting(
    "wrong_password",
    "PLAIN for 'tidegate' failed",
    CREDENTIAL_KEYS,
    follows=NO_CATALOG,
    code=WRONG,
    upstream_sasl_password="open-sesame",
)
setting(
    "unknown_user",
    "PLAIN for 'tidgate' failed",
    CREDENTIAL_KEYS,
    follows=NO_CATALOG,
    code=WRONG,
    upstream_sasl_username="tidgate",
)
setting(
    "wrong_scram_password",
    "SCRAM-SHA-512 for 'tidegate' failed",
    CREDENTIAL_KEYS,
    follows=NO_CATALOG,
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


@mistake("no answer within 2 s", "or mend their `advertised.listeners`")
def broker_that_hangs(stage: Stage) -> None:
    """By its own words it is where somebody listens who never answers. What the tier needs others lead, or give."""
    stage.properties["metadata.identity"] = "broker"
    stage.be_nobody("PLAINTEXT")
    stage.properties |= {
        f"{CLIENT_KEYS}bootstrap.servers": stage.kafka.address("SASL_SSL"),
        f"{CLIENT_KEYS}security.protocol": "SASL_SSL",
        f"{CLIENT_KEYS}ssl.truststore.location": stage.properties.pop("upstream.ssl.ca.location"),
    }
    host, _, port = stage.listener().rpartition(":")
    leaders = leaders_of(stage)
    (silent, *_) = {1, 2, 3} - {*leaders}
    elsewhere = broker_elsewhere(stage.kafka.cluster, silent, (host, int(port)), through=leaders[0])
    stage.properties["upstream.bootstrap.servers"] = stage.open.enter_context(elsewhere)


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


@mistake("ACL Read on Topic __remote_log_metadata is missing", "kafka-acls.sh", follows=NO_CATALOG)
def may_describe_the_metadata_topic_only(stage: Stage) -> None:
    for topic in (METADATA_TOPIC, stage.kafka.topic.name):
        stage.kafka.allow("describer", DESCRIBE, topic)
        stage.open.callback(stage.kafka.withdraw, "describer", DESCRIBE, topic)
    stage.be("describer", "PLAIN", "SASL_SSL")


@mistake(
    "ACL DescribeConfigs on Topic __remote_log_metadata is missing",
    "kafka-acls.sh",
    code=WARNING,
    only_check="nothing but check asks for the retention",
)
def retention_not_to_be_seen(stage: Stage) -> None:
    for operation, topic in ((READ, METADATA_TOPIC), (DESCRIBE, stage.kafka.topic.name)):
        stage.kafka.allow("checker", operation, topic)
        stage.open.callback(stage.kafka.withdraw, "checker", operation, topic)
    stage.be("checker", "PLAIN", "SASL_SSL")


@mistake("has retention.ms=3600000", "set it to -1", code=WARNING, only_check="serve does without the right to see it")
def segments_that_are_forgotten(stage: Stage) -> None:
    stage.kafka.set_metadata_topic("retention.ms", "3600000")
    stage.open.callback(stage.kafka.set_metadata_topic, "retention.ms", "-1")


# The tier.


@mistake("00000000000000000000-", "No such file or directory", shown_by=read_from_its_start)
def segment_that_somebody_deleted(stage: Stage) -> None:
    tier = stage.folder / "tier"
    shutil.copytree(stage.kafka.cluster.tier_dir, tier)
    (first,) = tier.glob(f"**/{stage.kafka.topic.name}-0-*/00000000000000000000-*.log")
    first.unlink()
    stage.properties["rsm.config.dir"] = str(tier)


setting(
    "catalog_too_small",
    "there are more segments than catalog.segments.max 1: brokers read 1 partitions; raise it, and the memory for it",
    code=WARNING,
    catalog_segments_max="1",
)
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
