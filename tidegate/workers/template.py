"""The processes that workers are forked from.

A worker must be startable at any time, with exactly the configuration of the start: FILE may be half edited by then.
The supervisor cannot fork itself, as it runs an event loop and threads. So before it does, it forks a template: one
thread, no loop, the application imported and the configuration read. A template forks whenever the supervisor asks.
Workers so start without two seconds of imports, and share the memory of what was imported and of what was prepared for
them: at the host's start, the catalog's snapshot.

Rule 1. A template is nobody's parent: what it forks becomes the supervisor's child, which waits for its end. So a
        template that dies takes nothing with it. Where the kernel gives orphans to init (macOS), workers' exit codes
        are not known.
Rule 2. There are two of them. When one has died, the other forks a third with what it has in memory. Only when both
        have died before one could be forked can no worker be started any more.
Rule 3. They end when the supervisor has, however that ended; they hold nothing that a worker needs.
Rule 4. They ignore signals to the group (Ctrl-C) and SIGTERM: the supervisor says what ends.
"""

import array
import contextlib
import ctypes
import gc
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import structlog
import trio

from tidegate import exit_codes

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_COMMAND: Final = struct.Struct(">iI?")
"""What to fork, the worker's number, and whether it is the first of this number. Beside it is a descriptor: the
worker's end of its channel, or the template's of its commands."""
_WORKER, _TEMPLATE = 0, 1

_ANSWER: Final = struct.Struct(">I")
"""The process id of what was forked; 0: nothing."""

_TEMPLATES: Final = 2
_FORK_AGAIN_S: Final = 1.0
"""After the kernel has refused another template: no memory, or too many processes."""

_LOOK_AGAIN_S: Final = 0.02
"""A process closes its end of a socket a moment before it has ended; or seconds, when it writes its last lines."""

_PR_SET_CHILD_SUBREAPER: Final = 36

Work = Callable[[int, bool, socket.socket], int]
"""A worker's life: its number, whether it is the first of this number, its end of the channel; the exit code."""

Prepare = Callable[[], Work]
"""Called once, in the template: what it reads, all workers share."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended, in words. `exit_code`: None if a signal ended it, or nobody knows."""

    process_id: int
    reason: str
    exit_code: int | None = None


class NotStartedError(Exception):
    """Nothing could be forked."""


class Template:
    """The supervisor's side. Make it while the process has one thread."""

    def __init__(self, prepare: Prepare) -> None:
        _adopt_orphans()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        sys.stdout.flush()
        sys.stderr.flush()
        process_id = os.fork()
        if process_id == 0:
            ours.close()
            _run_template(theirs, prepare)
        theirs.close()
        self._processes = [_Process(ours, process_id)]
        self._changed: trio.Event | None = None

    @property
    def has_gone(self) -> bool:
        """Return whether no worker can be started any more."""
        return not self._processes

    async def start(self, worker: int, *, is_first: bool) -> tuple[socket.socket, int]:
        """Fork a worker; return our end of its channel, and its process id.

        Raises:
            NotStartedError: it cannot be.
        """
        return await self._fork(_COMMAND.pack(_WORKER, worker, is_first))

    async def keep(self) -> None:
        """Fork another template whenever one has ended, until none is left."""
        async with trio.open_nursery() as nursery:
            for process in self._processes:
                nursery.start_soon(self._watch, process)
            while self._processes:
                self._changed = trio.Event()
                if len(self._processes) == _TEMPLATES:
                    await self._changed.wait()
                    continue
                try:
                    self._processes.append(_Process(*await self._fork(_COMMAND.pack(_TEMPLATE, 0, False))))
                except NotStartedError:
                    with trio.move_on_after(_FORK_AGAIN_S):
                        await self._changed.wait()
                else:
                    nursery.start_soon(self._watch, self._processes[-1])

    async def wait_ended(self, process_id: int) -> ProcessEnd:
        """Return how a process ended that was forked here; call it when it is about to end."""
        while True:
            try:
                ended, status = os.waitpid(process_id, os.WNOHANG)  # noqa: ASYNC222  # returns at once
            except ChildProcessError:  # init's, or not ours yet
                try:
                    os.kill(process_id, 0)
                except ProcessLookupError:
                    return ProcessEnd(process_id, "ended, nobody knows how")
            else:
                if ended:
                    return _end(process_id, status)
            await trio.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """End the templates, and wait for that; workers go on."""
        for process in self._processes:
            process.close()
        for process in self._processes:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.process_id, 0)

    async def _watch(self, process: "_Process") -> None:
        await process.run()
        self._processes.remove(process)
        assert self._changed is not None
        self._changed.set()
        _log.error("template_died", pid=process.process_id, others=len(self._processes))
        await self.wait_ended(process.process_id)

    async def _fork(self, command: bytes) -> tuple[socket.socket, int]:
        for process in [*self._processes]:
            # A pair for each: one that dies may have forked before.
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            except OSError as error:  # no open file is left
                raise NotStartedError(f"there is no way to talk to it: {error.strerror}") from error
            try:
                with theirs:
                    process_id = await process.fork(command, theirs)
            except (OSError, trio.ClosedResourceError, trio.EndOfChannel):  # it has ended: the next one
                ours.close()
                continue
            except BaseException:
                ours.close()
                raise
            if process_id:
                return ours, process_id
            ours.close()
            raise NotStartedError("the kernel refuses another process")
        raise NotStartedError("the processes that workers are forked from have ended")


class _Process:
    """A template, as the supervisor has it. It does one thing after another, and answers each."""

    def __init__(self, commands: socket.socket, process_id: int) -> None:
        self.process_id = process_id
        self._commands = commands
        self._trio_commands: trio.socket.SocketType | None = None
        self._lock = trio.Lock()
        self._answer, self._answers = trio.open_memory_channel[int](1)

    async def run(self) -> None:
        """Hear its answers until it has ended."""
        with contextlib.suppress(OSError):
            while data := await self._stream().recv(_ANSWER.size):
                await self._answer.send(_ANSWER.unpack(data)[0])
        self._answer.close()
        self.close()

    async def fork(self, command: bytes, theirs: socket.socket) -> int:
        """Return the process id of what it has forked; 0: nothing.

        Raises:
            OSError: it has ended.
            trio.EndOfChannel: it has ended, and may have forked before.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
        async with self._lock:
            await self._stream().sendmsg([command], rights)
            return await self._answers.receive()

    def close(self) -> None:
        """Make it end."""
        self._commands.close()
        if self._trio_commands is not None:
            self._trio_commands.close()

    def _stream(self) -> trio.socket.SocketType:
        if self._trio_commands is None:
            self._commands.setblocking(False)
            self._trio_commands = trio.socket.from_stdlib_socket(self._commands)
        return self._trio_commands


def _adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind, where the kernel can (Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end(process_id: int, status: int) -> ProcessEnd:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return ProcessEnd(process_id, f"exit code {code}", code)
    try:
        return ProcessEnd(process_id, f"killed by {signal.Signals(-code).name}")
    except ValueError:
        return ProcessEnd(process_id, f"killed by signal {-code}")


# Inside a template.


def _run_template(commands: socket.socket, prepare: Prepare) -> NoReturn:
    code = exit_codes.FOUND_WRONG
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        work = prepare()
        # What is there now is nobody's garbage. Unfrozen, the first collection in each worker would write into all of
        # it, and the memory would be shared no more.
        gc.collect()
        gc.freeze()
        code = _serve(commands, work)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(commands: socket.socket, work: Work) -> int:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor has gone
        while True:
            data, descriptors, _, _ = socket.recv_fds(commands, _COMMAND.size, 1)
            if not data:
                break
            what, worker, is_first = _COMMAND.unpack(data)
            with socket.socket(fileno=descriptors[0]) as channel:
                life = partial(_serve, channel, work) if what == _TEMPLATE else partial(work, worker, is_first, channel)
                _fork(commands, life)
    return exit_codes.DONE


def _fork(commands: socket.socket, life: Callable[[], int]) -> None:
    """Start a life in a process that is not our child: by one in between, which answers and ends."""
    try:
        between = os.fork()
        if between == 0:
            _run_between(commands, life)
        _, status = os.waitpid(between, 0)
    except OSError as error:
        status = 1
        print(f"tidegate: no process can be started: {error}", file=sys.stderr, flush=True)
    if status:
        commands.sendall(_ANSWER.pack(0))


def _run_between(commands: socket.socket, life: Callable[[], int]) -> NoReturn:
    code = exit_codes.FOUND_WRONG
    try:
        process_id = os.fork()
        if process_id == 0:
            commands.close()
            _run(life)
        commands.sendall(_ANSWER.pack(process_id))
        code = exit_codes.DONE
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(life: Callable[[], int]) -> NoReturn:
    code = exit_codes.FOUND_WRONG
    try:
        code = life()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
