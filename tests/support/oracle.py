"""Kafka's own classes, asked from tests: tools/oracle/Oracle.java kept running behind the fixture `oracle`.

    (answer,) = oracle.ask([{"do": "metadata_partition", "topic_id": "...", "partition": 3, "count": 50}])

Requests are dictionaries; the header of Oracle.java lists them with their fields and answers. In short:

    encode, decode                                    values of __remote_log_metadata, kinds segment, update,
                                                      partition_delete and snapshot
    metadata_partition                                topic_id, partition, count
    write_X, read_X                                   X of offset_index, time_index, transaction_index (base_offset),
                                                      leader_epochs, producer_snapshot; entries <-> hex;
                                                      the first two also look `targets` up

Uuids are Kafka's 22 characters, bytes are hex. What Kafka refuses is answered {"error": "..."}.
"""

import json
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.needs import JARS, ROOT

Answer = dict[str, Any]


class Oracle:
    """Starts its Java program at the first question, about a second; later ones take under a millisecond."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[Answer]:
        """One answer per request, in order.

        Raises:
            RuntimeError: the program ended instead of answering; its own error is on standard error.
        """
        process = self._started()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the oracle was started without pipes")
        # Written by a thread: with many questions both pipes would otherwise fill up and wait for each other.
        writer = threading.Thread(target=_write_all, args=(process, [json.dumps(request) for request in requests]))
        writer.start()
        answers = []
        for request in requests:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the oracle ended at {request!r}")
            answers.append(json.loads(line))
        writer.join()
        return answers

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            source = ROOT / "tools" / "oracle" / "Oracle.java"
            java = shutil.which("java") or "java"
            command = [java, "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{JARS}/*", str(source)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        return self._process


def _write_all(process: "subprocess.Popen[str]", lines: Sequence[str]) -> None:
    if process.stdin is not None:
        process.stdin.write("".join(line + "\n" for line in lines))
        process.stdin.flush()
