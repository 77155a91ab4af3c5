"""The Kafka of the demo and of the tests: what is missing is said, and nothing is left behind.

That it tiers and counts, and that its brokers come and go, is shown by all that is built on it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import JARS, ROOT
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, KafkaClusterError

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

DIE_WITH_A_BROKER = """
import os, pathlib, signal, sys
from tools.demo.kafka_cluster import KafkaCluster
cluster = KafkaCluster(jars=pathlib.Path(sys.argv[1]), work=pathlib.Path(sys.argv[2]))
cluster.start()
print(cluster.broker(1).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    cluster = KafkaCluster(jars=JARS, work=tmp_path, properties={"num.io.threads": "none"})
    with pytest.raises(KafkaClusterError, match=r"num\.io\.threads"):
        cluster.start()


def test_a_missing_jar_folder_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(KafkaClusterError, match="make setup"):
        KafkaCluster(jars=tmp_path, work=tmp_path)


@pytest.mark.needs("linux")
def test_a_broker_dies_with_us_even_when_we_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIE_WITH_A_BROKER, str(JARS), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=90)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not _is_alive(int(done.stdout)), "the broker dies with the process that started it")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # An orphan may wait as a zombie for a parent that never asks.
    return state != "Z" and os.path.exists(f"/proc/{pid}")
