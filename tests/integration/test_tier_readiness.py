"""A Tidegate whose tier is configured wrongly is not ready, and is once that is mended, without a restart.

Failed before: `ready:` was said and `/readyz` was 200 whatever the store answered, so a rollout passed, and consumers
got errors for ever.
"""

import json
from pathlib import Path

import pytest

from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from tests.support.s3_server import CREDENTIALS, S3Server
from tests.support.serving import Serving, before_kafka, serving
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "versitygw")]


def properties(kafka: KafkaCluster, gateway: S3Server, folder: Path, bucket: str, secret: str) -> dict[str, str]:
    keys = gateway.config(bucket)
    del keys["storage.aws.access.key.id"], keys["storage.aws.secret.access.key"]
    write_secret(folder, secret)
    return {
        **before_kafka(kafka),
        "admin.listen": f"127.0.0.1:{free_port()}",
        "remote.log.storage.manager.class.name": "tidegate.PlainObjects",
        **{f"rsm.config.{key}": value for key, value in keys.items()},
        "rsm.config.storage.aws.credentials.file": str(folder / "credentials"),
    }


def write_secret(folder: Path, secret: str) -> None:
    new = folder / "credentials.new"
    new.write_text(f"aws.access.key.id={CREDENTIALS.access_key_id}\naws.secret.access.key={secret}\n")
    new.replace(folder / "credentials")


def wait_refused(served: Serving, why: str) -> None:
    """The only thing that it is not ready for is its tier, which has said so."""

    def tells() -> bool:
        status, body = served.page("/readyz")
        reasons = json.loads(body)["reasons"]
        return status == 503 and len(reasons) == 1 and reasons[0].startswith("tier: ") and why in reasons[0]

    served.wait_log("broker_listening")
    wait_until(tells, f"it to be refused: {why}")
    assert "ready: bootstrap" not in served.log()
    assert [event["event"] for event in served.wait_events("tier_unavailable")] == ["tier_unavailable"]


def test_a_wrong_secret(kafka: KafkaCluster, gateway: S3Server, tmp_path: Path) -> None:
    wrong = properties(kafka, gateway, tmp_path, ROOT_DIRECTORY_NAME, "not the secret")
    with serving(tmp_path, wrong) as served:
        wait_refused(served, "SignatureDoesNotMatch")
        write_secret(tmp_path, CREDENTIALS.secret_access_key)
        served.wait_log("ready: bootstrap")
        assert served.page("/readyz")[0] == 200
