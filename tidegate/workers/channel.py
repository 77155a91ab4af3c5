"""One end of the Unix socket between supervisor and worker: frames in and out, questions and their answers.

Rule 1. What is to be sent waits in one queue, and one task sends it: a cancelled sender leaves no half frame behind.
Rule 2. A question whose answer cannot come any more, because the other end has gone, raises ChannelClosedError.
Rule 3. A connection that was given is the other end's as soon as its frame was sent whole. Until then it is the
        giver's, who may give it to somebody else. Once its turn to be sent has come, the giver waits for the frame,
        or for the channel's end, even if he is cancelled: a number that he closed may be another one's by then.
"""

import array
import itertools
import os
import socket as stdlib_socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
import trio

from proxy.upstream.waiters import Waiters
from tidegate.workers.frames import DESCRIPTORS_MAX, Frame, FrameDecoder, FrameError, FrameKind, encode

_RECEIVE_BYTES: Final = 256 * 1024
_ANCILLARY_BYTES: Final = stdlib_socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
_CLOSE_ON_EXEC: Final = getattr(stdlib_socket, "MSG_CMSG_CLOEXEC", 0)
"""Not on macOS; nothing here starts other programs."""

_LONG_ANSWERS: Final = frozenset({"metrics"})
"""To these questions. Samples of many topics are a megabyte of JSON, which is written in a thread."""

_FAILED: Final = "question_failed"

_log = structlog.get_logger(__name__)


class ChannelClosedError(Exception):
    """The other end has gone."""


class QuestionFailedError(ChannelClosedError):
    """The other end could not answer; what failed is in its log."""


class _Outgoing:
    """A frame that waits to be sent, with a descriptor or without."""

    def __init__(self, data: bytes, descriptor: int | None) -> None:
        self.data = data
        self.descriptor = descriptor
        self.done = trio.Event()
        self.is_begun = False
        self.is_sent = False
        self.is_withdrawn = False


class Channel:
    """Owned by the trio thread.

    Args:
        sock: connected; closed when `run` ends.
        answer: what a question of the other end is answered with; runs in a task of its own.
        hear: gets each TELL and GIVE in order, and owns a GIVE's descriptor.
        end: called when nothing more comes, in the very turn of the loop that finds it so.
    """

    def __init__(
        self,
        sock: trio.socket.SocketType,
        *,
        answer: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
        hear: Callable[[Frame], None],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = sock
        self._answer = answer
        self._hear = hear
        self._end = end
        self._outgoing: deque[_Outgoing] = deque()
        self._more = trio.Event()
        self._ids = itertools.count(1)
        self._asked = Waiters[Mapping[str, Any]]()
        self._is_closed = False

    async def run(self) -> None:
        """Send and receive until the other end has gone, or says what cannot be."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all)
                await self._receive_all(nursery)
                nursery.cancel_scope.cancel()
        except* OSError as group:
            _log.debug("worker_channel_broke", reason=str(group.exceptions[0]))
        except* FrameError as group:
            _log.error("worker_channel_fault", reason=str(group.exceptions[0]))
        except* Exception as group:  # a fault of ours in what was heard: it ends this channel, and a worker at most
            _log.error("worker_channel_fault", reason=repr(group.exceptions[0]), exc_info=group)
        finally:
            self._close()

    def tell(self, what: str, **body: object) -> None:
        """Send this soon; nothing happens when the other end has gone."""
        if not self._is_closed:
            self._put(_Outgoing(encode(FrameKind.TELL, {"what": what, **body}), None))

    async def ask(self, what: str, **body: object) -> Mapping[str, Any]:
        """The other end's answer.

        Raises:
            ChannelClosedError: there will be none.
            QuestionFailedError: a fault of ours at the other end.
        """
        if self._is_closed:
            raise ChannelClosedError
        id_ = next(self._ids)
        asked = self._asked.add(id_)
        self._put(_Outgoing(encode(FrameKind.ASK, {"what": what, **body}, id_), None))
        try:
            answer = await asked.wait()
        finally:
            self._asked.forget(id_)
        if answer is None:
            raise ChannelClosedError
        if _FAILED in answer:
            raise QuestionFailedError(answer[_FAILED])
        return answer

    async def give(self, sock: trio.socket.SocketType, **body: object) -> None:
        """Give an accepted connection; the caller closes its own copy of it, and only then.

        Raises:
            ChannelClosedError: it was not given.
        """
        if self._is_closed:
            raise ChannelClosedError
        outgoing = _Outgoing(encode(FrameKind.GIVE, body), sock.fileno())
        self._put(outgoing)
        try:
            await outgoing.done.wait()
        finally:
            outgoing.is_withdrawn = True
            if outgoing.is_begun:
                with trio.CancelScope(shield=True):
                    await outgoing.done.wait()
        if not outgoing.is_sent:
            raise ChannelClosedError

    def _put(self, outgoing: _Outgoing) -> None:
        self._outgoing.append(outgoing)
        self._more.set()

    async def _send_all(self) -> None:
        while True:
            while not self._outgoing:
                self._more = trio.Event()
                await self._more.wait()
            outgoing = self._outgoing[0]
            if not outgoing.is_withdrawn:
                await self._send(outgoing)
            self._outgoing.popleft()
            outgoing.done.set()

    async def _send(self, outgoing: _Outgoing) -> None:
        outgoing.is_begun = True
        left = memoryview(outgoing.data)
        ancillary = []
        if outgoing.descriptor is not None:
            rights = array.array("i", [outgoing.descriptor])
            ancillary = [(stdlib_socket.SOL_SOCKET, stdlib_socket.SCM_RIGHTS, rights)]
        while left:
            sent = await self._socket.sendmsg([left], ancillary)
            left, ancillary = left[sent:], []
        outgoing.is_sent = True

    async def _receive_all(self, nursery: trio.Nursery) -> None:
        decoder = FrameDecoder()
        try:
            while True:
                data, ancillary, flags, _ = await self._socket.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
                descriptors = array.array("i")
                for level, kind, rights in ancillary:
                    if (level, kind) == (stdlib_socket.SOL_SOCKET, stdlib_socket.SCM_RIGHTS):
                        descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
                has_lost_one = bool(flags & stdlib_socket.MSG_CTRUNC)
                frames = decoder.receive(data, descriptors, has_lost_one=has_lost_one)
                if not data:
                    return
                for frame in frames:
                    self._take(frame, nursery)
        finally:
            self._end()
            for descriptor in decoder.left_descriptors():
                os.close(descriptor)

    def _take(self, frame: Frame, nursery: trio.Nursery) -> None:
        match frame.kind:
            case FrameKind.ASK:
                nursery.start_soon(self._answer_to, frame)
            case FrameKind.ANSWER:
                self._asked.hand_over(frame.id, frame.body)
            case _:
                self._hear(frame)

    async def _answer_to(self, question: Frame) -> None:
        try:
            body = await self._answer(question.body)
        except Exception as error:  # a fault in one answer must not end a process that serves
            _log.error("worker_question_fault", question=question.body.get("what"), exc_info=error)
            body = {_FAILED: repr(error)}
        if self._is_closed:
            return
        if question.body.get("what") in _LONG_ANSWERS:
            data = await trio.to_thread.run_sync(encode, FrameKind.ANSWER, body, question.id)
        else:
            data = encode(FrameKind.ANSWER, body, question.id)
        self._put(_Outgoing(data, None))

    def _close(self) -> None:
        self._is_closed = True
        self._socket.close()
        for outgoing in self._outgoing:
            outgoing.done.set()
        self._outgoing.clear()
        self._asked.end()
