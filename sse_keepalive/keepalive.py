"""
The core: an asynchronous iterable in, the same with keep-alive frames out.

How it works. ``await upstream.__anext__()`` is a chain of coroutines with a future at its end, and the running
task waits for that future. So a step of the upstream is driven by hand here. If it is done at once, its chunk is
handed out. If it stops at a future, the task is given a stand-in to wait for: an object that is done when that
future is done, *or* when a keep-alive frame falls due. It passes on what the task does with it (adding the task's
wake-up, cancelling), so the upstream runs in the very task and context that it would run in without this module,
is woken by the very same call, and meets a cancellation at the very same ``await``. There is no second task,
nothing to hand over, and nothing to cancel when a frame falls due: the task wakes, hands out the frame, and goes on
with the half-finished step when the consumer asks for more.

asyncio documents what a task can wait for: any object with a true ``_asyncio_future_blocking``
(:func:`asyncio.isfuture`), with the methods of a future.
"""

import asyncio
import inspect
import math
import types
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from sse_keepalive.frames import COMMENT, TELLING_LENGTH, ServerSentEvent
from sse_keepalive.silence import AS_BEFORE, IDLE, Silence, cancellations_of_task, in_seconds

Chunk = TypeVar("Chunk")
Upstream = TypeVar("Upstream", bound=AsyncIterable[Any])

#: Chunks that cannot change behind our back, as a memoryview can.
TEXT_TYPES: Final = (str, bytes)

#: So many chunks in a row may be ready at once before the event loop gets a turn: few enough that other streams
#: wait for microseconds, so many that the turn costs next to nothing beside them.
READY_RUN: Final = 16


def with_sse_keep_alive(
    upstream: Upstream,
    interval: float | None,
    *,
    first_interval: float | None = None,
    frame: str | bytes = COMMENT,
) -> "Upstream | KeepAliveStream[Any]":
    """
    Return ``upstream`` with a keep-alive frame wherever it has been silent for ``interval`` seconds.

    Apart from these frames the result behaves as ``upstream`` itself does in an ``async for``: the same task, the
    same context, the same exceptions. Close it as one closes a generator: ``async with contextlib.aclosing(...)``.

    :param upstream: any asynchronous iterable of ``str`` or ``bytes``.
    :param interval: seconds of silence before a frame. Unless ``0 < interval < inf`` the very object that was
        passed in is returned.
    :param first_interval: the same until something was sent; the interval by default, 0 for at once.
    :param frame: what to send: the name of a ready-made frame or the text of one. It takes the type of the chunks;
        before the first of these, it goes out in the type given here.
    :raises TypeError: if it is on, and ``upstream`` not asynchronously iterable, or the frame neither text nor bytes.
    :raises ValueError: if it is on, and the frame could damage the stream.
    """
    if in_seconds(interval) == math.inf:
        return upstream
    return KeepAliveStream(upstream, interval, first_interval=first_interval, frame=frame)


class KeepAliveStream(Generic[Chunk]):
    """
    The stream behind :func:`with_sse_keep_alive`, whose interval may be off: then no frame falls due until
    :meth:`use` turns it on. Its methods are to be called in the thread of the loop that it runs in.
    """

    # Being a slot, __anext__ is that of the generator itself: the pull of a chunk costs no call of a method here.
    __slots__ = ("__anext__", "__weakref__", "_generator", "_silence", "_upstream")

    _generator: Any
    _upstream: Any

    def __init__(
        self,
        upstream: AsyncIterable[Chunk],
        interval: float | None,
        *,
        first_interval: float | None = None,
        frame: str | bytes = COMMENT,
    ) -> None:
        if not isinstance(upstream, AsyncIterable):
            raise TypeError(f"{type(upstream).__name__} is not an asynchronous iterable.")
        self._upstream = upstream
        self._silence = Silence(interval, first_interval, frame)
        self._generator = _with_frames(upstream, self._silence)
        self.__anext__ = self._generator.__anext__  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __anext__(self) -> Awaitable[Chunk]: ...

    def __aiter__(self) -> "KeepAliveStream[Chunk]":
        return self

    async def aclose(self) -> None:
        """
        Close the upstream and wait for its clean-up.

        In the middle of a step the upstream meets a cancellation at its ``await``, at a ``yield`` it meets
        ``GeneratorExit``. Closing twice does nothing.

        :raises BaseException: what the clean-up raised.
        :raises RuntimeError: if another task is waiting for the next chunk.
        """
        try:
            if not self._has_ended():
                await self._generator.aclose()
            # A generator that was never started does nothing when it is closed, and an end by itself closes nothing.
            # What is iterated through another object has not been closed yet either.
            upstream, self._upstream = self._upstream, None
            if not self._silence.closed or not hasattr(upstream, "__anext__"):
                self._silence.closed = True
                await _aclose(upstream)
        finally:
            upstream = None
            if self._has_ended():
                # CPython 3.11 takes a generator for running for ever if an exception has ended its aclose().
                self.__anext__ = _after_the_end  # type: ignore[method-assign]
                self._upstream = None
                self._silence.stop()  # which a generator that never ran has not done
            del self  # and upstream above, from this frame, which the traceback of an error in the clean-up keeps

    def _has_ended(self) -> bool:
        return self._generator.ag_frame is None

    def end(self) -> None:
        """
        End the stream in order: at once if it is silent between two events, else where its event ends, after
        :data:`EVENT_PATIENCE` seconds at the latest. The task that consumes it then closes the upstream.
        """
        self._silence.end()

    def fail(self, error: BaseException) -> bool:
        """
        End the stream as :meth:`end` does, and then raise ``error`` from it, as if it were the upstream's own.

        :returns: whether it will: not if it has ended already, or fails with another error.
        """
        return not self._has_ended() and self._silence.end(error)

    def begin_after(self, ready: Callable[[], Awaitable[Any]]) -> None:
        """Await ``ready()`` in the first step, before anything of the upstream runs: to be called before that."""
        self._silence.ready = ready

    async def push(self, event: ServerSentEvent) -> bool:
        """
        Hand out an event from elsewhere: at once if the stream is silent between two events, else where one ends.

        Return when the consumer has asked for what comes behind it: ``True``; or ``False`` if the stream has ended
        before.
        """
        silence = None if self._has_ended() else self._silence
        del self  # a stream that is dropped meanwhile is to be finalised, which is what ends the wait
        if silence is not None and await silence.push(event):
            return True
        await asyncio.sleep(0)  # whoever pushes again and again must not keep the loop for himself
        return False

    @property
    def is_between_events(self) -> bool:
        """Whether what was handed out so far ends with a complete event, so that another may follow."""
        return self._silence.tracker.is_between_events()

    def use(self, interval: float | None, frame: str | bytes, *, first_interval: float | None = None) -> None:
        """
        Change the interval (seconds; ``None``, 0 or ``inf`` for off) and the frame, from the next frame on.

        :param first_interval: as for :func:`with_sse_keep_alive`.
        :raises TypeError: if the frame is neither text nor bytes.
        :raises ValueError: if the frame could damage the stream.
        """
        self._silence.use(interval, first_interval, frame)


async def _with_frames(upstream: Any, silence: Silence) -> AsyncGenerator[Any]:
    """
    Yield the chunks of the upstream, and a frame whenever one is due.

    A generator, so that the loop finalises a stream that was dropped. What happens for every chunk happens here, in
    plain sight of the interpreter; whatever is rarer is the silence's business.
    """
    source = aiter(upstream)
    is_generator = isinstance(source, types.AsyncGeneratorType)
    pull = source.__anext__
    gives_turns = not isinstance(source, KeepAliveStream)  # which gives them itself
    tracker = silence.tracker
    loop = asyncio.get_running_loop()
    silence.begin(loop)
    has_opened = False
    ready_in_a_row = 0
    needs_turn = False
    step: Any = None if silence.ready is None else _first_step(silence.ready, pull)
    try:
        try:
            while True:
                if silence.has_orders:
                    if silence.is_over():
                        break
                    if silence.has_event_due():
                        yield silence.take_due()
                        silence.was_sent()
                        continue
                if needs_turn:
                    ready_in_a_row = 0
                    try:
                        frame_is_due = await silence.turn()
                    except asyncio.CancelledError as cancellation:
                        if not hasattr(source, "athrow"):
                            raise
                        step = source.athrow(cancellation)
                        if not is_generator:
                            step = _driveable(step)
                    else:
                        if frame_is_due:
                            yield silence.take_due()
                            silence.was_sent()
                try:
                    if step is None:
                        step = pull()
                        if not is_generator:
                            step = _driveable(step)
                    try:
                        awaited = step.send(None)
                    except StopIteration as finished:
                        chunk = finished.value
                        ready_in_a_row += 1
                        needs_turn = gives_turns and (ready_in_a_row >= READY_RUN or cancellations_of_task(loop) > 0)
                    except GeneratorExit:
                        silence.closed = True  # the step's own, not one of ours
                        raise
                    else:
                        ready_in_a_row = 0
                        needs_turn = False
                        chunk = await silence.wait(step, awaited)
                        while chunk is IDLE and not silence.is_over():
                            yield silence.take_due()
                            silence.was_sent()
                            chunk = await silence.wait(step, AS_BEFORE)
                        if chunk is IDLE:
                            break
                except StopAsyncIteration:
                    step = None
                    if rest := tracker.held_back():
                        yield rest
                    if source is upstream:
                        return
                    break
                step = None
                if has_opened and isinstance(chunk, TEXT_TYPES) and len(chunk) >= TELLING_LENGTH:
                    tracker.tail = chunk
                    silence.since = None
                else:
                    chunk = silence.follow(chunk)
                    has_opened = tracker.has_opened
                yield chunk
        except GeneratorExit:
            if silence.closed:
                raise
        except BaseException:
            if source is not upstream:  # nobody else has it to close it
                await _close(source, silence, None)
            raise
        await _close(source, silence, step)
    finally:
        silence.stop()
        # An exception's traceback keeps this frame, which must not lead back to the exception, or hold the upstream.
        awaited = step = pull = source = upstream = None
        silence.raise_failure()


async def _close(source: Any, silence: Silence, step: Any) -> None:
    """
    Close the source, in the middle of a step by cancelling what the step waits for, as ``task.cancel()`` would.

    A cancellation of this task that arrives meanwhile goes into the clean-up and is raised behind it. It is told
    from the one that is made here by the count that only ``task.cancel()`` raises.
    """
    silence.closed = True
    silence.refuse_events()
    cancellations = cancellations_of_task()
    try:
        if step is not None:
            await silence.abandon(step)
    except StopAsyncIteration:
        pass
    except asyncio.CancelledError:
        if cancellations_of_task() > cancellations:
            raise
    finally:
        step = None  # as in the generator, for this frame is kept as well
        try:
            await _aclose(source)
        finally:
            source = None
    if cancellations_of_task() > cancellations:
        raise asyncio.CancelledError


async def _first_step(ready: Callable[[], Awaitable[Any]], pull: Callable[[], Awaitable[Any]]) -> Any:
    await ready()
    return await pull()


async def _after_the_end() -> Any:
    raise StopAsyncIteration


def _aclose(source: Any) -> Awaitable[None]:
    return cast("Awaitable[None]", source.aclose()) if hasattr(source, "aclose") else _nothing()


async def _nothing() -> None:
    pass


def _driveable(step: Any) -> Any:
    """Return what ``await step`` would drive: an object with ``send``, ``throw`` and ``close``."""
    is_awaitable: bool = inspect.isawaitable(step)
    if not is_awaitable:
        raise TypeError(
            f"An asynchronous iterator's __anext__ returned {type(step).__name__}, which cannot be awaited."
        )
    if isinstance(step, types.CoroutineType | types.GeneratorType):  # the latter made by types.coroutine
        return step
    return _delegate(step.__await__())


def _delegate(iterator: Any) -> Generator[Any, Any, Any]:
    return (yield from iterator)
