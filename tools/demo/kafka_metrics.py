"""A broker's own counters, read through its JVM by BrokerMetrics.java: a witness that is not Tidegate.

The little Java program is started at the first question (about a second) and kept until close.
"""

import contextlib
import subprocess
import time
from pathlib import Path

from tools.demo.kafka_process import KafkaClusterError
from tools.demo.readable import readable

_SOURCE = Path(__file__).with_name("BrokerMetrics.java")
_ANSWER_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 64 * 1024


class BrokerMetrics:
    """Metrics of the JVM with this process id; not to be shared between threads."""

    def __init__(self, java: str, broker_pid: int) -> None:
        self._command = (java, "-XX:TieredStopAtLevel=1", "-Xmx64m", str(_SOURCE), str(broker_pid))
        self._process: subprocess.Popen[bytes] | None = None

    def broker_topic_count(self, name: str, topic: str | None = None) -> int:
        """The Count of kafka.server's BrokerTopicMetrics meter `name`, of all topics or of one; 0 while absent.

        Raises:
            KafkaClusterError: the broker's JVM cannot be asked.
        """
        label = "" if topic is None else f",topic={topic}"
        answer = self._ask(f"kafka.server:type=BrokerTopicMetrics,name={name}{label} Count")
        return 0 if answer == "absent" else int(answer)

    def close(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a question that the dead program never took
                    pipe.close()
        self._process = None

    def _ask(self, question: str) -> str:
        if self._process is None:
            # Ends by itself when its standard input does, so it needs no guard.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise KafkaClusterError("BrokerMetrics.java was started without pipes")
        try:
            stdin.write(question.encode() + b"\n")
        except BrokenPipeError as error:
            raise KafkaClusterError("BrokerMetrics.java has ended; its error is above") from error
        answer = b""
        deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
        while not answer.endswith(b"\n"):
            is_there = readable([stdout], max(0.0, deadline_s - time.monotonic()))
            part = stdout.read(_ANSWER_BYTES_MAX) if is_there else b""
            if not part or len(answer) > _ANSWER_BYTES_MAX:
                raise KafkaClusterError(f"BrokerMetrics.java gave no answer to: {question}")
            answer += part
        return answer.decode().strip()
