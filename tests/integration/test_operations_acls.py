"""docs/operate/secure.md: its kafka-acls commands, run as they stand, give Tidegate's own identity all it needs."""

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # its re-export is not marked as such

from tests.support.client_programs import ACL_COMMAND, kafka_tool
from tests.support.needs import ROOT
from tests.support.secured_kafka import DESCRIBE, METADATA_TOPIC, READ, SecuredKafka
from tests.support.waiting import wait_until
from tidegate import exit_codes
from tidegate.commands.check import run as run_check
from tidegate.config import load
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

GUIDE = ROOT / "docs" / "operate" / "secure.md"
USER = "checker"
RIGHTS = ((READ, METADATA_TOPIC), (DESCRIBE, "*"), (AclOperation.DESCRIBE_CONFIGS, METADATA_TOPIC))
"""What the commands grant."""


def commands() -> list[list[str]]:
    """The guide's commands, as arguments behind the program's name."""
    lines = re.findall(r"^kafka-acls\.sh (.+)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture
def granted(guarded: SecuredKafka) -> Iterator[None]:
    """The guide's rights, taken back afterwards."""
    assert len(commands()) == len(RIGHTS)
    # For our user at our broker; the rest stays as the guide has it.
    ours = {"broker-1:9092": guarded.cluster.bootstrap_servers, "User:tidegate": f"User:{USER}"}
    for arguments in commands():
        kafka_tool(ACL_COMMAND, *(ours.get(argument, argument) for argument in arguments))
    yield
    for operation, topic in RIGHTS:
        guarded.withdraw(USER, operation, topic)


def test_check_is_content_with_the_rights_of_the_guide(guarded: SecuredKafka, granted: None, tmp_path: Path) -> None:
    properties = guarded.identity(USER, "PLAIN", "SASL_PLAINTEXT")
    properties["broker.config"] = str(guarded.cluster.server_properties_path(1))
    file = tmp_path / "tidegate.properties"
    file.write_text(properties_text(properties), encoding="utf-8")

    def is_content() -> bool:
        out = io.StringIO()
        return run_check(load(file, {}), out) == exit_codes.DONE and "ACL" not in out.getvalue()

    # A moment may pass between the tool's end and the broker's knowing.
    wait_until(is_content, "check finds no right missing")
