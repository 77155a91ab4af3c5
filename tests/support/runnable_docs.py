"""A guide's commands, taken out of its Markdown and run one by one in one shell, as a reader would paste them.

- Every fenced ```sh block is run, in order, in one bash in one folder; each command must end with 0.
- A ```text block right behind commands is what the last of them prints, standard error included: line by line, and
  `...` stands for anything but a line end; a line that is only `...` for any number of lines.
- What a reader fills in himself stands in the first block, as `NAME=value` lines and nothing else. A test may replace
  these values, and no others; where an expected text holds the guide's own value, the test's is expected.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.demo.readable import readable

COMMAND_TIMEOUT_S = 120.0
OUTPUT_BYTES_MAX = 4 * 1024 * 1024

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Z_]+)=(?P<value>\S*)(?: +#.*)?")


class GuideError(Exception):
    """The guide is not one that can be run, or a command of it did not do what it says."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and what the guide says that it prints; None: the guide does not say."""

    text: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Guide:
    """The variables of a guide's first block with their values there, and the commands behind it."""

    variables: Mapping[str, str]
    commands: tuple[Command, ...]

    def expected_with(self, values: Mapping[str, str], expected: str) -> str:
        """An expected text with the reader's values for the guide's own, longer ones first."""
        for name, value in sorted(self.variables.items(), key=lambda item: -len(item[1])):
            if value:
                expected = expected.replace(value, values.get(name, value))
        return expected


def read_guide(markdown: str) -> Guide:
    """Parse a guide.

    Raises:
        GuideError: a first block that is not variables only, an expected text without a command, a command that never
            ends.
    """
    blocks = [(found["language"], found["body"]) for found in _BLOCK.finditer(markdown)]
    runnable = [block for block in blocks if block[0] in ("sh", "text")]
    if not runnable or runnable[0][0] != "sh":
        raise GuideError("a guide begins with a block of variables")
    commands: list[Command] = []
    for language, body in runnable[1:]:
        if language == "sh":
            commands += [Command(text) for text in split_commands(body)]
        elif not commands or commands[-1].expected is not None:
            raise GuideError(f"nothing was run that could print {body!r}")
        else:
            commands[-1] = Command(commands[-1].text, body)
    return Guide(_variables(runnable[0][1]), tuple(commands))


def split_commands(body: str) -> list[str]:
    """A block's commands: lines are put together until the shell takes them for whole."""
    commands: list[str] = []
    pending = ""
    for line in body.splitlines(keepends=True):
        if not pending and (not line.strip() or line.startswith("#")):
            continue
        pending += line
        if _is_whole(pending):
            commands.append(pending.rstrip("\n"))
            pending = ""
    if pending:
        raise GuideError(f"a command that does not end: {pending!r}")
    return commands


def matches(expected: str, printed: str) -> bool:
    """Return whether `printed` is what `expected` describes; spaces at line ends do not count."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    pattern = ""
    for line in expected.strip("\n").splitlines():
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


@contextmanager
def running(
    guide: Guide, *, folder: Path, values: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator["Shell"]:
    """A shell in `folder` with the guide's variables set; whatever it started ends with it.

    Raises:
        GuideError: `values` names something that the guide does not have its reader fill in.
    """
    strangers = sorted(set(values) - set(guide.variables))
    if strangers:
        raise GuideError(f"not for the reader to fill in: {', '.join(strangers)}")
    shell = Shell(guide, {**guide.variables, **values}, folder, environment)
    try:
        yield shell
    finally:
        shell.close()


class Shell:
    """One bash that is given a guide's commands. Not for several threads."""

    def __init__(self, guide: Guide, values: Mapping[str, str], folder: Path, environment: Mapping[str, str]) -> None:
        self._guide = guide
        self._values = values
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the shell
        # Statuses come by a pipe of their own, so that what commands print, later ones too, cannot be taken for them.
        self._statuses, status_end = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[status_end],
            start_new_session=True,
        )
        os.close(status_end)
        self._status_end = status_end
        for name, value in values.items():
            self._run(f"{name}={value}")

    def follow(self) -> Iterator[tuple[Command, str]]:
        """Run command after command; each with what it printed, before the next is begun.

        Raises:
            GuideError: one failed, took too long, or printed something else than the guide says.
        """
        for command in self._guide.commands:
            status, printed = self._run(command.text)
            if status != 0:
                raise GuideError(f"exit code {status}: {command.text}\n{printed}")
            if command.expected is not None:
                expected = self._guide.expected_with(self._values, command.expected)
                if not matches(expected, printed):
                    raise GuideError(f"{command.text}\nprinted:\n{printed}\nand not:\n{expected}")
            yield command, printed

    def close(self) -> None:
        """End the shell and all that it has started."""
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a command that the dead shell never took
                self._process.stdin.close()
        os.close(self._statuses)
        self._output.close()

    def _run(self, text: str) -> tuple[int, str]:
        assert self._process.stdin is not None
        begin = self._output.seek(0, os.SEEK_END)
        # Nothing that runs in the background may keep the pipe for itself, or read the commands behind its own.
        line = f"{{ {text}\n}} {self._status_end}>&- </dev/null\necho $? >&{self._status_end}\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        status = self._status(text)
        self._output.seek(begin)
        return status, self._output.read(OUTPUT_BYTES_MAX).decode("utf-8", "replace")

    def _status(self, text: str) -> int:
        answer = b""
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        while not answer.endswith(b"\n"):
            is_there = readable([self._statuses], max(0.0, deadline_s - time.monotonic()))
            part = os.read(self._statuses, 64) if is_there else b""
            if not part:
                self._output.seek(0)
                printed = self._output.read(OUTPUT_BYTES_MAX).decode("utf-8", "replace")
                raise GuideError(f"not done after {COMMAND_TIMEOUT_S:g} s, or the shell ended: {text}\n{printed}")
            answer += part
        return int(answer)


def _variables(body: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for line in body.splitlines():
        found = _ASSIGNMENT.fullmatch(line.rstrip())
        if found is None:
            raise GuideError(f"the first block holds variables only, not {line!r}")
        variables[found["name"]] = found["value"]
    return variables


def _is_whole(text: str) -> bool:
    """Return what bash says of it without running it; of a here-document that is not closed it only complains."""
    if text.endswith("\\\n"):
        return False
    parsed = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
    return parsed.returncode == 0 and not parsed.stderr
