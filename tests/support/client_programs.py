"""Unmodified client libraries as programs, one contract for all, asked directly at the broker and through Tidegate.

    said = programs.ask("franz-go", {"scenario": "digest", "topic": topic, "lasts": {0: 99}})
    assert said.through == said.direct

A program is `COMMAND BOOTSTRAP`. Each line of its stdin is a request in JSON, each line of its stdout the answer:
{"answer": ...} or {"failure": text}. It runs until its stdin ends. The scenarios, with what they ask for besides
`topic` and `lasts` (the last visible offset by partition; it also says which partitions there are):

    digest      isolation                     every partition from its beginning to its last record, and a moment more
    timestamps  timestamps_ms, records, group the offset of each timestamp, and that many records from there on
    group       group, protocol               a member, joined by another, which leaves again: every record is got
    pause       isolation, paused             some partitions are paused after their first records until others end
    reset       policy, offset, start, end,   a read of partition 0 at an offset out of range: which end of the log
                group                         comes first (records are produced meanwhile), or the client's error

`group` is needed by clients that read in groups alone. Given `sasl` (its members are in client_scenarios.py), all but
aiokafka and kafkajs sign in before they read a digest, over plaintext. Digests are those of tests/support/digests.py.
"""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from tests.support.kafka import fresh_name
from tests.support.needs import JARS, OLD_CLIENTS, ROOT, TOOLS

ANSWER_TIMEOUT_S: Final = 150.0
"""More than the scenarios' own limits (30 to 120 s), which say what was waited for."""
CLOSE_TIMEOUT_S: Final = 2.0
TOOL_TIMEOUT_S: Final = 60.0
ACL_COMMAND: Final = "org.apache.kafka.tools.AclCommand"
JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
INTEGRATION: Final = ROOT / "tests" / "integration"

Answer = dict[str, Any]


def java_command(program: str, clients_version: str | None = None) -> list[str]:
    """A program of one file, compiled when it starts; with Kafka's clients of an older version, if one is given."""
    source = INTEGRATION / "java" / f"{program}.java"
    class_path = f"{JARS}/*"
    if clients_version is not None:
        others = (str(jar) for jar in sorted(JARS.glob("*.jar")) if not jar.name.startswith("kafka-"))
        class_path = os.pathsep.join([str(OLD_CLIENTS / "java" / f"kafka-clients-{clients_version}.jar"), *others])
    return [shutil.which("java") or "java", *JAVA_OPTIONS, "-cp", class_path, str(source)]


def kafka_tool(main_class: str, *arguments: str) -> str:
    """Return what one of Kafka's own tools prints; it has to end well."""
    java = ["java", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", f"{JARS}/*", main_class]
    done = subprocess.run([*java, *arguments], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _python(module: str, old: str | None = None) -> Callable[[], list[str]]:
    """`old`: the folder of an older version, which is found before the environment's own."""
    path = () if old is None else ("env", f"PYTHONPATH={OLD_CLIENTS / old}")
    return lambda: [*path, sys.executable, "-m", f"tests.integration.python.{module}"]


def _go(tool: str) -> Callable[[], list[str]]:
    return lambda: [str(TOOLS / tool)]


def _kafkajs() -> list[str]:
    # Node looks for packages beside the program.
    program = TOOLS / "kafkajs" / "client.js"
    shutil.copyfile(INTEGRATION / "node" / "kafkajs" / "client.js", program)
    return ["node", str(program)]


CLIENTS: Final[Mapping[str, Callable[[], list[str]]]] = {
    "java": lambda: java_command("ClientScenarios"),
    "librdkafka": _python("confluent_program"),
    "kafka-python": _python("kafka_python_program"),
    "aiokafka": _python("aiokafka_program"),
    "franz-go": _go("franz"),
    "sarama": _go("sarama"),
    "kafkajs": _kafkajs,
}
"""What starts each client, but for the bootstrap servers."""

SIGNING_IN: Final[Mapping[str, Callable[[], list[str]]]] = {
    "confluent-kafka-2.3": _python("confluent_program", "confluent-kafka-2.3"),
    "confluent-kafka-2.10": _python("confluent_program", "confluent-kafka-2.10"),
    "confluent-kafka-2.11": _python("confluent_program", "confluent-kafka-2.11"),
    "confluent-kafka": CLIENTS["librdkafka"],
    "java-2.8": lambda: java_command("ClientScenarios", "2.8.2"),
    "java-3.3": lambda: java_command("ClientScenarios", "3.3.2"),
    "java-3.9": lambda: java_command("ClientScenarios", "3.9.1"),
    "java": CLIENTS["java"],
    "kafka-python-2.0": _python("kafka_python_program", "kafka-python-2.0"),
    "kafka-python": CLIENTS["kafka-python"],
    "franz-go": CLIENTS["franz-go"],
    "sarama": CLIENTS["sarama"],
}
"""What starts each version of a client that signs in."""

PROGRAMS: Final[Mapping[str, Callable[[], list[str]]]] = {
    **CLIENTS,
    "RelayedAdmin": lambda: java_command("RelayedAdmin"),
    "RelayedFeatures": lambda: java_command("RelayedFeatures"),
}
"""The clients, and programs with scenarios of their own: tests/integration/java says which."""


@dataclass(frozen=True, slots=True)
class Said:
    """The two answers to one request."""

    direct: Answer
    through: Answer


class ClientProgram:
    """One program before one address. Its error shows what it wrote to stderr."""

    def __init__(self, command: Sequence[str], bootstrap_servers: str) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the program
        self._process = subprocess.Popen(
            [*command, bootstrap_servers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, cwd=ROOT
        )
        self._unread = b""

    def send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> Answer:
        """The next answer.

        Raises:
            AssertionError: the program failed, ended or said nothing for too long.
        """
        line = self._line(time.monotonic() + ANSWER_TIMEOUT_S)
        assert line is not None, f"no answer; its errors:\n{self._errors()}"
        said = json.loads(line)
        return {"failure": said["failure"]} if "failure" in said else said["answer"]

    def close(self) -> None:
        """End it, in order if it will."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _line(self, deadline_s: float) -> bytes | None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    return None
                got = os.read(self._process.stdout.fileno(), 1 << 16)
                if not got:
                    return None
                self._unread += got
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")[-4000:]


class ClientPrograms:
    """A context manager. A client's two programs start when it is first asked, and run side by side."""

    def __init__(self, direct: str, through: str) -> None:
        self._addresses = (direct, through)
        self._running: dict[str, tuple[ClientProgram, ...]] = {}

    def ask(self, client: str, request: Mapping[str, Any]) -> Said:
        """Both answers; each program is given a group of its own. A failed pair is started again the next time.

        Raises:
            AssertionError: a program ended or said nothing for too long.
        """
        if client not in self._running:
            command = PROGRAMS[client]()
            self._running[client] = tuple(ClientProgram(command, address) for address in self._addresses)
        programs = self._running[client]
        try:
            for program in programs:
                program.send({**request, "group": fresh_name("client-group")})
            direct, through = (program.receive() for program in programs)
        except BaseException:
            self._close(client)
            raise
        if "failure" in direct or "failure" in through:
            self._close(client)
        return Said(direct, through)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for client in list(self._running):
            self._close(client)

    def _close(self, client: str) -> None:
        for program in self._running.pop(client, ()):
            program.close()
