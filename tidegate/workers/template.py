"""The process that workers are forked from.

A worker must be startable at any time, with exactly the configuration of the start: FILE may be half edited by then.
The supervisor cannot fork itself, as it runs an event loop and threads. So before it does, it forks this process: one
thread, no loop, the application imported and the configuration read. It forks a worker whenever the supervisor asks,
waits for its end and tells it. Workers so start without two seconds of imports, and share the memory of what was
imported and of what was prepared for them: at the host's start, the catalog's snapshot.

Rule 1. It ends when the supervisor has, however that ended; it holds nothing that a worker needs.
Rule 2. It ignores signals to the group (Ctrl-C) and SIGTERM: the supervisor says what ends.
"""

import array
import contextlib
import gc
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import trio

from tidegate import exit_codes

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_COMMAND: Final = struct.Struct(">I?")
"""The worker's number, and whether it is the first of this number. Its end of the channel is the descriptor beside."""

_EVENT: Final = struct.Struct(">cIIi")
"""`S` started or `E` ended, worker, process id, wait status."""

Work = Callable[[int, bool, socket.socket], int]
"""A worker's life: its number, whether it is the first of this number, its end of the channel; the exit code."""

Prepare = Callable[[], Work]
"""Called once, in the template: what it reads, all workers share."""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A worker has started, or ended with this wait status."""

    worker: int
    process_id: int
    status: int | None

    @property
    def reason(self) -> str:
        """Return how it ended, in words."""
        if self.status is None:
            return "it runs"
        code = os.waitstatus_to_exitcode(self.status)
        return f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"

    @property
    def exit_code(self) -> int | None:
        """None: a signal ended it, or it runs."""
        code = -1 if self.status is None else os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class TemplateGoneError(Exception):
    """The template has ended: no worker can be started any more."""


class Template:
    """The supervisor's side. Make it while the process has one thread."""

    def __init__(self, prepare: Prepare) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        sys.stdout.flush()
        sys.stderr.flush()
        self.process_id = os.fork()
        if self.process_id == 0:
            ours.close()
            _run_template(theirs, prepare)
        theirs.close()
        self._socket = ours
        self._trio_socket: trio.socket.SocketType | None = None

    async def start(self, worker: int, *, is_first: bool) -> socket.socket:
        """Fork a worker; return our end of its channel. `events` tells when it runs.

        Raises:
            TemplateGoneError: it cannot be.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
            try:
                await self._stream().sendmsg([_COMMAND.pack(worker, is_first)], rights)
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    raise TemplateGoneError(str(error)) from error
                raise
        return ours

    async def next_event(self) -> WorkerEvent:
        """Return what happened next.

        Raises:
            TemplateGoneError: nothing will any more.
        """
        received = b""
        while len(received) < _EVENT.size:
            try:
                part = await self._stream().recv(_EVENT.size - len(received))
            except OSError as error:
                raise TemplateGoneError(str(error)) from error
            if not part:
                raise TemplateGoneError("the process that workers are forked from has ended")
            received += part
        kind, worker, process_id, status = _EVENT.unpack(received)
        return WorkerEvent(worker, process_id, status if kind == b"E" else None)

    def close(self) -> None:
        """End it, and wait for that; workers go on."""
        self._socket.close()
        if self._trio_socket is not None:
            self._trio_socket.close()
        os.waitpid(self.process_id, 0)

    def _stream(self) -> trio.socket.SocketType:
        if self._trio_socket is None:
            self._trio_socket = trio.socket.from_stdlib_socket(self._socket)
        return self._trio_socket


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
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor has gone
            _serve(commands, work)
        code = exit_codes.DONE
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(commands: socket.socket, work: Work) -> None:
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    workers: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(commands, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                woken.recv(4096)
                _reap(commands, workers)
            if commands in ready:
                data, descriptors, _, _ = socket.recv_fds(commands, _COMMAND.size, 1)
                if not data:
                    return
                worker, is_first = _COMMAND.unpack(data)
                with socket.socket(fileno=descriptors[0]) as channel:
                    try:
                        process_id = os.fork()
                    except OSError as error:  # no memory, or too many processes: perhaps not so a second later
                        print(f"tidegate: worker {worker} cannot be started: {error}", file=sys.stderr, flush=True)
                        commands.sendall(_EVENT.pack(b"E", worker, 0, exit_codes.FOUND_WRONG << 8))
                        continue
                    if process_id == 0:
                        selector.close()
                        for own in (commands, woken, wake):
                            own.close()
                        _run_worker(partial(work, worker, is_first, channel))
                workers[process_id] = worker
                commands.sendall(_EVENT.pack(b"S", worker, process_id, 0))


def _reap(commands: socket.socket, workers: dict[int, int]) -> None:
    while workers:
        process_id, status = os.waitpid(-1, os.WNOHANG)
        if process_id == 0:
            return
        commands.sendall(_EVENT.pack(b"E", workers.pop(process_id), process_id, status))


def _run_worker(work: Callable[[], int]) -> NoReturn:
    code = exit_codes.FOUND_WRONG
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
