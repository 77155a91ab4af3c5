"""Without Read on the metadata topic: /readyz says so, rather than that its partitions are being read."""

import json
from pathlib import Path

import pytest

from tests.support.secured_kafka import DESCRIBE, METADATA_TOPIC, READ, SecuredKafka
from tests.support.serving import before_kafka, serving
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import free_port

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


def test_the_acl_that_the_catalog_waits_for_is_in_the_reasons(guarded: SecuredKafka, tmp_path: Path) -> None:
    """Failed before: "50 metadata partitions are being read", for which the guide says to wait."""
    identity = guarded.identity("checker", "PLAIN", "SASL_PLAINTEXT")
    properties = {**before_kafka(guarded.cluster), **identity, "admin.listen": f"127.0.0.1:{free_port()}"}
    missing = f"ACL Read on Topic {METADATA_TOPIC} is missing"
    guarded.allow("checker", DESCRIBE, METADATA_TOPIC)
    try:
        with serving(tmp_path, properties) as served:
            served.wait_log("broker_listening")

            def reason() -> str:
                return str(next(iter(json.loads(served.page("/readyz")[1])["reasons"]), ""))

            wait_until(lambda: reason().startswith("catalog: ") and missing in reason(), "the reason to name the ACL")
            guarded.allow("checker", READ, METADATA_TOPIC)
            served.wait_log("ready: bootstrap")
    finally:
        guarded.withdraw("checker", DESCRIBE, METADATA_TOPIC)
        guarded.withdraw("checker", READ, METADATA_TOPIC)
