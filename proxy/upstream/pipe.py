"""Bytes from one socket to another that nobody looks at: by `splice`, through a pipe, so that no process copies them.
Those in front of them, which somebody looked at, go with them.

Rule 1. An event loop has one pipe, and nobody keeps a byte in it: what goes in comes out before another task runs. So
        it is in no account, and a peer that takes nothing leaves its bytes in the socket that they came by.
Rule 2. What the receiving socket does not take of it all the same is read back, for its owner to send.
Rule 3. A pipe that is not empty at its end is closed, and never used again.
Rule 4. Where there is none (no descriptor is left, a user's pages of pipes are used up, the kernel refuses, another
        system), all is copied.
"""

import errno
import fcntl
import os
import sys
from contextlib import suppress

import trio

PIPE_BYTES = 1024 * 1024
"""What a user without rights may have (`fs.pipe-max-size`), but for `fs.pipe-user-pages-soft`."""

_REFUSALS = (errno.EINVAL, errno.EPERM, errno.ENOSYS)
"""By a kernel, or a sandbox, that does not splice these sockets."""

_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK if sys.platform == "linux" else 0


class Pipe:
    """It is empty whenever another task runs.

    Raises:
        OSError: there is none to be had.
    """

    def __init__(self) -> None:
        assert sys.platform == "linux"
        self.is_refused = False
        """The kernel does not splice: there is no other pipe then."""
        self._reader = self._writer = -1
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            self.close()
            raise

    def __del__(self) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        return self._reader < 0

    def close(self) -> None:
        """It may hold bytes. Idempotent."""
        ends, self._reader, self._writer = (self._reader, self._writer), -1, -1
        for descriptor in ends:
            if descriptor >= 0:
                os.close(descriptor)

    def put(self, head: memoryview) -> int:
        """Take these few bytes, all of them; `drain` must follow at once."""
        return os.write(self._writer, head)

    def fill(self, source: int, size_max: int) -> int:
        """Take what has come by a socket; 0: nothing has, or it has ended. `drain` must follow at once.

        Raises:
            OSError: of the socket's.
        """
        assert sys.platform == "linux"
        try:
            return os.splice(source, self._writer, size_max, flags=_FLAGS)
        except OSError as error:
            self.is_refused = error.errno in _REFUSALS
            if error.errno == errno.EAGAIN or self.is_refused:
                return 0
            self.close()
            raise

    def drain(self, destination: int, size: int) -> bytes:
        """Give all of `size` bytes to a socket; return what it did not take.

        Raises:
            OSError: of the socket's.
        """
        assert sys.platform == "linux"
        left = size
        try:
            while left and (sent := os.splice(self._reader, destination, left, flags=_FLAGS)):
                left -= sent
        except OSError as error:
            if error.errno not in (errno.EAGAIN, *_REFUSALS):
                self.close()
                raise
        if not left:
            return b""
        rest = os.read(self._reader, left)
        assert len(rest) == left, "a pipe that nobody waits for gives all it holds"
        return rest


_pipe: trio.lowlevel.RunVar[Pipe | None] = trio.lowlevel.RunVar("the pipe", None)


def the_pipe() -> Pipe | None:
    """The event loop's; None: there is none now."""
    pipe = _pipe.get()
    if pipe is not None and not pipe.is_closed:
        return None if pipe.is_refused else pipe
    pipe = None
    if sys.platform == "linux":
        with suppress(OSError):
            pipe = Pipe()
    _pipe.set(pipe)
    return pipe
