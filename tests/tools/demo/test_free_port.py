"""A port is given once, to all that ask."""

import subprocess
import sys

from tests.support.needs import ROOT
from tools.demo.kafka_cluster import free_port

HOST = "127.0.0.1"
ASK_FOR_THAT_ONE = """
import random, sys
from tools.demo.kafka_cluster import KafkaClusterError, free_port

class Stubborn:
    def randrange(self, *_):
        return int(sys.argv[1])

random.SystemRandom = Stubborn
try:
    print("given", free_port())
except KafkaClusterError as error:
    print(error)
"""


def test_a_port_is_not_given_to_another_process_though_nobody_listens_yet() -> None:
    port = free_port()
    command = (sys.executable, "-c", ASK_FOR_THAT_ONE, str(port))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"no free port found on {HOST}\n"
