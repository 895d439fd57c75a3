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
import contextvars
import inspect
import math
import types
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from typing import Any, Final, Generic, TypeVar, cast

from sse_keepalive.frames import COMMENT, TELLING_LENGTH, Tracker, as_frame

Chunk = TypeVar("Chunk")
Upstream = TypeVar("Upstream", bound=AsyncIterable[Any])

#: So many chunks in a row may be ready at once before the event loop gets a turn: few enough that other streams
#: wait for microseconds, so many that the turn costs next to nothing beside them.
READY_RUN: Final = 16

#: How long, in seconds, a stream that was told to end may go on to finish the event that it is in.
EVENT_PATIENCE: Final = 2.0

#: A timer may come early by so much, in seconds: uvloop's clock counts in milliseconds.
_CLOCK_STEP: Final = 0.001

#: What a wait returns when a frame or the end is due before the chunk has come.
_IDLE: Final[Any] = object()

#: Stands for what a step waits for when that is known from before.
_AS_BEFORE: Final[Any] = object()


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
    :raises TypeError: if ``upstream`` is not asynchronously iterable, or the frame neither text nor bytes.
    :raises ValueError: if the frame could damage the stream.
    """
    if interval is None or not 0 < interval < math.inf:
        return upstream
    return KeepAliveStream(upstream, interval, first_interval=first_interval, frame=frame)


class KeepAliveStream(Generic[Chunk]):
    """
    The stream behind :func:`with_sse_keep_alive`, whose interval may be off: then no frame falls due until
    :meth:`use` turns it on. Its methods are to be called in the thread of the loop that it runs in.
    """

    # Being a slot, __anext__ is that of the generator itself: the pull of a chunk costs no call of a method here.
    __slots__ = ("__anext__", "__weakref__", "_generator", "_silence", "_upstream")

    __anext__: Callable[[], Awaitable[Chunk]]

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
        self._silence = _Silence(interval, first_interval, frame)
        self._generator = _with_frames(upstream, self._silence)
        self.__anext__ = self._generator.__anext__

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
        await self._generator.aclose()
        # A generator that was never started does nothing when it is closed, and an end by itself closes nothing.
        if not self._silence.closed:
            self._silence.closed = True
            await _aclose(self._upstream)

    def end(self) -> None:
        """
        End the stream in order: at once if it is silent between two events, else where its event ends, after
        :data:`EVENT_PATIENCE` seconds at the latest. The task that consumes it then closes the upstream.
        """
        self._silence.end()

    def use(self, interval: float | None, frame: str | bytes) -> None:
        """
        Change the interval (seconds; ``None``, 0 or ``inf`` for off) and the frame, from the next frame on.

        :raises TypeError: if the frame is neither text nor bytes.
        :raises ValueError: if the frame could damage the stream.
        """
        self._silence.use(interval, frame)


async def _with_frames(upstream: Any, silence: "_Silence") -> AsyncGenerator[Any]:
    """
    Yield the chunks of the upstream, and a frame whenever one is due.

    A generator, so that the loop finalises a stream that was dropped. What happens for every chunk happens here, in
    plain sight of the interpreter; whatever is rarer is the silence's business.
    """
    source = aiter(upstream)
    is_generator = isinstance(source, types.AsyncGeneratorType)
    tracker = silence.tracker
    silence.begin()
    ready_in_a_row = 0
    needs_turn = False
    step: Any = None
    try:
        try:
            while not (silence.ending and silence.may_end()):
                if needs_turn:
                    ready_in_a_row = 0
                    try:
                        frame_is_due = await silence.turn()
                    except asyncio.CancelledError as cancellation:
                        if not hasattr(source, "athrow"):
                            raise
                        step = source.athrow(cancellation)
                    else:
                        if frame_is_due:
                            yield silence.take_frame()
                try:
                    if step is None:
                        step = source.__anext__()
                        if not is_generator:
                            step = _driveable(step)
                    try:
                        awaited = step.send(None)
                    except StopIteration as finished:
                        chunk = finished.value
                        ready_in_a_row += 1
                        needs_turn = ready_in_a_row >= READY_RUN or _cancellations() > 0
                    else:
                        ready_in_a_row = 0
                        needs_turn = False
                        chunk = await silence.wait(step, awaited)
                        while chunk is _IDLE and not (silence.ending and silence.may_end()):
                            yield silence.take_frame()
                            chunk = await silence.wait(step, _AS_BEFORE)
                        if chunk is _IDLE:
                            break
                except StopAsyncIteration:
                    if rest := tracker.held_back():
                        yield rest
                    return
                step = None
                if tracker.has_opened and len(chunk) >= TELLING_LENGTH:
                    tracker.tail = chunk
                    silence.since = None
                else:
                    chunk = silence.follow(chunk)
                yield chunk
        except GeneratorExit:
            if silence.closed:
                raise
        await _close(source, silence, step)
    finally:
        silence.stop()
        # An exception's traceback keeps this frame: it must neither hold the upstream nor lead back to the exception.
        del upstream, source, step
        awaited = None


async def _close(source: Any, silence: "_Silence", step: Any) -> None:
    """
    Close the source, in the middle of a step by cancelling what the step waits for, as ``task.cancel()`` would.

    A cancellation of this task that arrives meanwhile goes into the clean-up and is raised behind it. It is told
    from the one that is made here by the count that only ``task.cancel()`` raises.
    """
    silence.closed = True
    cancellations = _cancellations()
    try:
        if step is not None:
            await silence.abandon(step)
    except StopAsyncIteration:
        pass
    except asyncio.CancelledError:
        if _cancellations() > cancellations:
            raise
    finally:
        del step
        await _aclose(source)
    if _cancellations() > cancellations:
        raise asyncio.CancelledError


async def _aclose(source: Any) -> None:
    aclose = getattr(source, "aclose", None)
    if aclose is not None:
        await aclose()


def _cancellations() -> int:
    """Return how many cancellations the running task has been asked for and has not taken back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _driveable(step: Any) -> Any:
    """Return what ``await step`` would drive: an object with ``send``, ``throw`` and ``close``."""
    if isinstance(step, types.CoroutineType):
        return step
    if not inspect.isawaitable(step):
        raise TypeError(
            f"An asynchronous iterator's __anext__ returned {type(step).__name__}, which cannot be awaited."
        )
    if isinstance(step, types.GeneratorType):  # a coroutine made by types.coroutine
        return step
    iterator = step.__await__()
    return iterator if hasattr(iterator, "throw") and hasattr(iterator, "send") else _delegate(iterator)


def _delegate(iterator: Any) -> Generator[Any, Any, Any]:
    return (yield from iterator)


class _Silence(asyncio.Future[None]):
    """
    How long a stream has been silent; and what its task waits for meanwhile, the stand-in of the module's docstring.

    At most one timer is armed, and chunks do not touch it: when it fires it looks for how long the silence has really
    lasted, and is armed for the rest. If it fires while the consumer has the turn, nothing is due.

    It is a real subclass of Future because anyio looks for one when it decides whether a task still has to be
    cancelled. As a future it needs a loop, so it becomes one at the first pull (:meth:`begin`).
    """

    __slots__ = (
        "_clock",
        "_context",
        "_end_by",
        "_first_interval",
        "_frame",
        "_interval",
        "_is_waiting",
        "_running_loop",
        "_timer",
        "_wake_up",
        "awaited",
        "closed",
        "due",
        "ending",
        "since",
        "tracker",
    )

    def __init__(self, interval: float | None, first_interval: float | None, frame: str | bytes) -> None:
        self.tracker = Tracker(text=isinstance(frame, str))
        #: When the silence began, by the loop's clock; None from a chunk until the next step suspends.
        self.since: float | None = None
        #: Whether a frame, or the end, is to go out before the step goes on.
        self.due = False
        #: The future that the half-finished step waits for; None if it only gave the loop a turn.
        self.awaited: Any = None
        #: Whether the stream was told to end.
        self.ending = False
        #: Whether the upstream was closed.
        self.closed = False
        self._first_interval = (
            first_interval if first_interval is not None and 0 <= first_interval < math.inf else None
        )
        self._end_by = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._wake_up: Any = None
        self._context: contextvars.Context | None = None
        self._set(interval, frame)

    def begin(self) -> None:
        self._running_loop = asyncio.get_running_loop()
        self._clock = self._running_loop.time
        super().__init__(loop=self._running_loop)

    # What the task of the stream calls.

    @types.coroutine
    def wait(self, step: Any, awaited: Any) -> Generator[Any, Any, Any]:
        """
        Drive a step that has suspended to its end and return its chunk, or ``_IDLE`` as soon as something is due.

        :param awaited: what the step has yielded to be waited for; ``_AS_BEFORE`` after ``_IDLE``.
        """
        offer = self._offer(awaited)
        if self.since is None:
            self.since = self._clock()
        if self._timer is None:
            self._arm()
        cancellations = 0
        error: BaseException | None = None
        self._is_waiting = True
        try:
            while True:
                if self.due and self._may_interrupt(cancellations):
                    return _IDLE
                self._asyncio_future_blocking = True
                try:
                    yield offer
                except GeneratorExit:
                    # The consumer's coroutine is being closed, and with it whatever it awaits.
                    self.closed = True
                    step.close()
                    raise
                except BaseException as thrown:
                    error = thrown
                    if isinstance(thrown, asyncio.CancelledError):
                        cancellations = _cancellations()
                self._wake_up = self._context = None
                if error is None and offer is self and not self.awaited.done():
                    continue  # woken because something is due, or was until a cancellation came
                try:
                    # Outside of the except block, or the upstream would see an exception that is not its own.
                    awaited = step.send(None) if error is None else step.throw(error)
                except StopIteration as finished:
                    self.due = False
                    self.awaited = None
                    return finished.value
                finally:
                    error = None
                offer = self._offer(awaited)
        finally:
            self._is_waiting = False
            del step  # as in the generator: a traceback keeps this frame
            awaited = None

    @types.coroutine
    def turn(self) -> Generator[None, None, bool]:
        """Give the loop a turn between two steps, and return whether a frame is due: these steps never suspend."""
        yield
        if self.since is None:
            self.since = self._clock()
        return self._is_overdue() and self._frame.at(self.tracker.tail) is not None

    async def abandon(self, step: Any) -> None:
        """Cancel what a half-finished step waits for, and drive the step to its end."""
        awaited: Any = _AS_BEFORE
        if self.awaited is None or not self.awaited.cancel():
            try:
                awaited = step.throw(asyncio.CancelledError())
            except StopIteration:
                return
        await self.wait(step, awaited)

    def take_frame(self) -> str | bytes:
        """Return the frame that is due. The silence is measured anew when the step goes on."""
        frame = self._frame.at(self.tracker.tail)
        self.tracker.sent_frame()
        self.due = False
        self.since = None
        return cast("str | bytes", frame)

    def follow(self, chunk: Any) -> Any:
        """Take note of a chunk that is empty, short, or the first."""
        if chunk:
            self.since = None
        return self.tracker.follow(chunk)

    def may_end(self) -> bool:
        """Whether a stream that was told to end has finished its event, or has had its time for that."""
        return self.tracker.is_between_events() or self._clock() >= self._end_by

    def stop(self) -> None:
        """Leave nothing behind."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.awaited = None

    # What others call, in the loop's thread.

    def end(self) -> None:
        if not self.ending:
            self.ending = True
            self._end_by = asyncio.get_running_loop().time() + EVENT_PATIENCE
            self._look_again()

    def use(self, interval: float | None, frame: str | bytes) -> None:
        self._set(interval, frame)
        self._look_again()

    # What the task calls on what it waits for, as on any future: it reaches the future that the step waits for.

    def add_done_callback(self, wake_up: Any, *, context: contextvars.Context | None = None) -> None:
        self._wake_up = wake_up
        self._context = context
        self.awaited.add_done_callback(wake_up, context=context)
        if self._timer is None:  # it fired while the consumer of a stream around this one had the turn
            self._arm()

    def remove_done_callback(self, wake_up: Any, /) -> int:
        self._wake_up = self._context = None
        return cast("int", self.awaited.remove_done_callback(wake_up))

    def cancel(self, msg: Any = None) -> bool:
        if not self.awaited.cancel(msg=msg):
            return False
        self.due = False  # even if the task is already being woken for it: the cancellation was first
        return True

    def done(self) -> bool:
        return cast("bool", self.awaited.done())

    def cancelled(self) -> bool:
        return cast("bool", self.awaited.cancelled())

    def exception(self) -> BaseException | None:
        return cast("BaseException | None", self.awaited.exception())

    def result(self) -> None:
        # What a task asks for when it is woken with this object: because something is due, not with a result.
        return None

    # The clock.

    def _set(self, interval: float | None, frame: str | bytes) -> None:
        self._frame = as_frame(frame)
        self._interval = interval if interval is not None and 0 < interval < math.inf else math.inf

    def _offer(self, awaited: Any) -> Any:
        """Return what the task is to be given instead of ``awaited``: this object, wherever it can stand in."""
        if awaited is _AS_BEFORE:
            return None if self.awaited is None else self
        if awaited is None:
            self.awaited = None
            return None
        if not self._can_stand_in_for(awaited):
            self.awaited = None
            self.due = False
            return awaited
        awaited._asyncio_future_blocking = False
        self.awaited = awaited
        return self

    def _can_stand_in_for(self, awaited: Any) -> bool:
        """Whether a task would wait for it. About everything else the task shall complain in its own words."""
        if getattr(awaited, "_asyncio_future_blocking", None) is not True:
            return False
        if isinstance(awaited, asyncio.Task) and awaited is asyncio.current_task():
            return False
        return cast("bool", awaited.get_loop() is self._running_loop)

    def _may_interrupt(self, cancellations: int) -> bool:
        """Whether the step may be left half finished: not while it cleans up after a cancellation of its task."""
        if not cancellations or _cancellations() < cancellations:
            return True
        self.due = False
        self.since = self._clock()
        if self.ending:
            self._end_by = self.since + EVENT_PATIENCE
        if self._timer is None:
            self._arm()
        return False

    def _is_overdue(self) -> bool:
        return self._deadline() <= self._clock() + _CLOCK_STEP

    def _deadline(self) -> float:
        interval = self._interval
        if self._first_interval is not None and interval < math.inf and not self.tracker.has_sent:
            interval = self._first_interval
        return min(cast("float", self.since) + interval, self._end_by)

    def _arm(self) -> None:
        deadline = self._deadline()
        if deadline < math.inf and not self.closed:
            # In an empty context: the timer would keep alive whatever the stream's context holds.
            self._timer = self._running_loop.call_at(deadline, self._tick, context=contextvars.Context())

    def _tick(self) -> None:
        self._timer = None
        if not self._is_waiting or (self.awaited is not None and self._wake_up is None):
            return  # the consumer has the turn, so nothing is silent
        if self._is_overdue():
            if self._frame.at(self.tracker.tail) is not None:
                self.due = True
            else:
                self.since = self._clock()
        if self.ending and self.may_end():
            self.due = True
        if self.due:
            self._wake()
        else:
            self._arm()

    def _wake(self) -> None:
        # Without a wake-up, or with a future that is done, the task comes by itself, and sees what is due.
        if self._wake_up is not None and not self.awaited.done():
            self.awaited.remove_done_callback(self._wake_up)
            self._running_loop.call_soon(self._wake_up, self, context=self._context)
            self._wake_up = self._context = None

    def _look_again(self) -> None:
        self.due = False
        if self._is_waiting:
            if self._timer is not None:
                self._timer.cancel()
            self._tick()
