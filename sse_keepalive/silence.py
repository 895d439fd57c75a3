"""
How long a stream has been silent, and what its task waits for meanwhile: the stand-in that the core is built on.
"""

import asyncio
import contextvars
import math
import sys
import types
from collections.abc import Awaitable, Callable, Generator, Sized
from typing import Any, Final, cast

from sse_keepalive.frames import ServerSentEvent, Tracker, as_frame

#: How long, in seconds, a stream that was told to end may go on to finish the event that it is in.
EVENT_PATIENCE: Final = 2.0

#: A timer may come early by so much, in seconds: uvloop's clock counts in milliseconds.
CLOCK_STEP: Final = 0.001

#: What a wait returns when a frame or the end is due before the chunk has come.
IDLE: Final[Any] = object()

#: Stands for what a step waits for when that is known from before.
AS_BEFORE: Final[Any] = object()


def cancellations_of_task(loop: asyncio.AbstractEventLoop | None = None) -> int:
    """Return how many cancellations the running task has been asked for and has not taken back."""
    task = asyncio.current_task(loop)
    return 0 if task is None else task.cancelling()


def in_seconds(interval: float | None, *, from_zero: bool = False) -> float:
    """Return the interval, or infinity where it means off: for anything but ``0 < interval < inf``."""
    if interval is None or not (interval > 0 or (from_zero and interval == 0)):
        return math.inf
    return float(interval)


def _loop_of(future: Any) -> Any:
    return future.get_loop() if hasattr(future, "get_loop") else None


class Silence(asyncio.Future[None]):
    """
    How long a stream has been silent; and what its task waits for meanwhile, the stand-in of the module's docstring.

    At most one timer is armed, and chunks do not touch it: when it fires it looks for how long the silence has really
    lasted, and is armed for the rest. If it fires while the consumer has the turn, nothing is due.

    It is a real subclass of Future because anyio looks for one when it decides whether a task still has to be
    cancelled. As a future it needs a loop, so it becomes one at the first pull (:meth:`begin`).
    """

    __slots__ = (
        "_cancellations",
        "_clock",
        "_context",
        "_end_by",
        "_failure",
        "_first_interval",
        "_frame",
        "_interval",
        "_is_waiting",
        "_on_its_way",
        "_pushed",
        "_running_loop",
        "_timer",
        "_wake_up",
        "_was_cancelled",
        "awaited",
        "closed",
        "due",
        "ending",
        "has_orders",
        "ready",
        "since",
        "tracker",
    )

    def __init__(self, interval: float | None, first_interval: float | None, frame: str | bytes) -> None:
        self.tracker = Tracker(text=isinstance(frame, str))
        #: When the silence began, by the loop's clock; None from a chunk until the next step suspends.
        self.since: float | None = None
        #: Whether a frame, a pushed event, or the end is to go out before the step goes on.
        self.due = False
        #: The future that the half-finished step waits for; None if it only gave the loop a turn.
        self.awaited: Any = None
        #: Whether the stream was told to end.
        self.ending = False
        #: Whether it was told anything that has to be looked at before the next step: to end, or to send an event.
        self.has_orders = False
        #: Whether the upstream was closed.
        self.closed = False
        #: What is awaited before the upstream begins.
        self.ready: Callable[[], Awaitable[Any]] | None = None
        self._end_by = math.inf
        self._failure: BaseException | None = None
        #: Events from elsewhere, each with what tells whether it went out; and the latter of the one that was taken.
        #: A list, because an empty deque takes ten times the room, and there are many streams.
        self._pushed: list[tuple[ServerSentEvent, asyncio.Future[bool]]] = []
        self._on_its_way: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._wake_up: Any = None
        self._context: contextvars.Context | None = None
        self._set(interval, first_interval, frame)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._running_loop = loop
        self._clock = loop.time
        super().__init__(loop=loop)

    # What the task of the stream calls.

    @types.coroutine
    def wait(self, step: Any, awaited: Any) -> Generator[Any, Any, Any]:
        """
        Drive a step that has suspended to its end and return its chunk, or ``IDLE`` as soon as something is due.

        What is due is looked at only when the task has waited, be it for a pass of the loop: a cancellation that the
        step has asked for is the step's.

        :param awaited: what the step has yielded to be waited for; ``AS_BEFORE`` after ``IDLE``.
        """
        if self.since is None:
            self.since = self._clock()
        self._is_waiting = True
        self._was_cancelled = False
        self._cancellations = 0
        error: BaseException | None = None
        # A step that only gave the loop a turn has had it before the frame went out.
        goes_on = awaited is AS_BEFORE and self.awaited is None
        try:
            while True:
                if not goes_on:
                    if (  # what nearly every step stops at; a look at anything else is worth a call
                        type(awaited) is asyncio.Future
                        and awaited._asyncio_future_blocking
                        and awaited.get_loop() is self._running_loop
                    ):
                        awaited._asyncio_future_blocking = False
                        self.awaited = awaited
                        offer = self
                    else:
                        offer = self._offer(awaited)
                    if self._timer is None:
                        self._arm()
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
                            self._count_cancellations()
                    if error is None and (offer is not self or self._wake_up is None):
                        if (self.due or self.has_orders) and self._interrupts():
                            return IDLE
                        if offer is self:
                            awaited = AS_BEFORE
                            continue  # woken for what a cancellation has put off
                    self._wake_up = self._context = None
                goes_on = False
                try:
                    # Outside of the except block, or the upstream would see an exception that is not its own.
                    awaited = step.send(None) if error is None else step.throw(error)
                except StopIteration as finished:
                    self.due = False
                    self.awaited = None
                    return finished.value
                except GeneratorExit:
                    self.closed = True  # the step's own, not one of ours
                    raise
                finally:
                    error = None
        finally:
            self._is_waiting = False
            awaited = step = None  # a traceback keeps this frame, and must not keep the upstream

    @types.coroutine
    def turn(self) -> Generator[None, None, bool]:
        """Give the loop a turn between two steps, and return whether a frame is due: these steps never suspend."""
        try:
            yield
        except GeneratorExit:
            self.closed = True  # as in wait()
            raise
        if self.since is None:
            self.since = self._clock()
        return self._has_frame_due() and self._frame.at(self.tracker.tail) is not None

    async def abandon(self, step: Any) -> None:
        """Cancel what a half-finished step waits for, and drive the step to its end, with nothing due any more."""
        self.due = self.ending = self.has_orders = False
        awaited: Any = AS_BEFORE
        try:
            if self.awaited is None or not self.awaited.cancel():
                awaited = step.throw(asyncio.CancelledError())
            waiting = self.wait(step, awaited)
        except StopIteration:
            return
        finally:
            step = None  # as above
        await waiting

    def take_due(self) -> str | bytes:
        """
        Return the event from elsewhere, else the frame, that is due. The silence is measured anew from there.

        An event is as a frame: it ends in the place where it began. Once it has gone out, call :meth:`was_sent`.
        """
        if self.has_event_due():
            event, self._on_its_way = self._pushed.pop(0)
            due: Any = event if isinstance(self.tracker.tail, str) else event.encode()
            if not self.tracker.has_sent:
                self._stop_timer()  # the interval may be shorter than the first one
        else:
            due = self._frame.at(self.tracker.tail)
        self.tracker.sent_frame()
        self.due = False
        self.since = None
        return cast("str | bytes", due)

    def was_sent(self) -> None:
        """Tell whoever has pushed what was taken last."""
        sent, self._on_its_way = self._on_its_way, None
        if sent is not None and not sent.done():
            sent.set_result(True)

    def follow(self, chunk: Any) -> Any:
        """Take note of a chunk that is empty, short, or the first."""
        if not isinstance(chunk, Sized) or len(chunk) > 0:
            self.since = None
            if not self.tracker.has_sent:
                self._stop_timer()  # the interval may be shorter than the first one
        return self.tracker.follow(chunk)

    def is_over(self) -> bool:
        """Whether the stream was told to end, and has finished its event, or has had its time for that."""
        return self.ending and (self.tracker.is_between_events() or self._clock() + CLOCK_STEP >= self._end_by)

    def has_event_due(self) -> bool:
        """Whether an event from elsewhere can go out here."""
        while self._pushed and self._pushed[0][1].done():
            self._pushed.pop(0)  # whoever has pushed it waits no longer
        self.has_orders = self.ending or bool(self._pushed)
        return bool(self._pushed) and self.tracker.is_between_events()

    def stop(self) -> None:
        """Leave nothing behind."""
        self._stop_timer()
        self.awaited = self._wake_up = self._context = None
        self.refuse_events()

    def refuse_events(self) -> None:
        """Let nobody wait for what does not go out any more."""
        self.has_orders = self.ending
        unsent = [sent for _, sent in self._pushed]
        self._pushed.clear()
        if self._on_its_way is not None:
            unsent.append(self._on_its_way)
            self._on_its_way = None
        for sent in unsent:
            if not sent.done():
                sent.set_result(False)

    def raise_failure(self) -> None:
        """Raise what the stream was told to end with, if anything."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None and not isinstance(sys.exception(), KeyboardInterrupt | SystemExit):
                raise failure
        finally:
            failure = None  # its traceback keeps this frame

    # What others call, in the loop's thread.

    def end(self, failure: BaseException | None = None) -> bool:
        takes = failure is None or self._failure is None
        self._failure = self._failure or failure
        if not self.ending and not self.closed:
            self.ending = self.has_orders = True
            self._end_by = asyncio.get_running_loop().time() + EVENT_PATIENCE
            self._look_again()
        return takes

    def push(self, event: ServerSentEvent) -> asyncio.Future[bool]:
        sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        # What the step itself pushes while it cleans up it would wait for in vain.
        if self.closed or (self._is_waiting and self._wake_up is None and self._cleans_up()):
            sent.set_result(False)
            return sent
        self._pushed.append((event, sent))
        self.has_orders = True
        if self._is_waiting and (self.awaited is None or self._wake_up is not None):
            self._wake_if_due()  # else the task comes by itself
        return sent

    def use(self, interval: float | None, first_interval: float | None, frame: str | bytes) -> None:
        self._set(interval, first_interval, frame)
        self._look_again()

    # What the task calls on what it waits for, as on any future: it reaches the future that the step waits for.

    def add_done_callback(self, wake_up: Any, *, context: contextvars.Context | None = None) -> None:
        self._wake_up = wake_up
        self._context = context
        self.awaited.add_done_callback(wake_up, context=context)
        if (self.due or self.has_orders) and not self._cleans_up():  # since before the task began to wait
            self._wake_if_due()
        if self._timer is None and not self.due:
            self._arm()  # it fired, or was stopped, while the consumer of a stream around this one had the turn

    def remove_done_callback(self, wake_up: Any, /) -> int:
        self._wake_up = self._context = None
        return cast("int", self.awaited.remove_done_callback(wake_up))

    def cancel(self, msg: Any = None) -> bool:
        if not self.awaited.cancel(msg=msg):
            return False
        self.due = False  # even if the task is already being woken for it: the cancellation was first
        self._was_cancelled = True
        return True

    def done(self) -> bool:
        return cast("bool", self.awaited.done())

    def cancelled(self) -> bool:
        return cast("bool", self.awaited.cancelled())

    def exception(self) -> BaseException | None:
        return cast("BaseException | None", self.awaited.exception())

    def result(self) -> None:
        # What a task asks for that is woken because something is due; all that counts is whether it raises.
        if self.awaited.done():
            self.awaited.result()

    # The clock.

    def _set(self, interval: float | None, first_interval: float | None, frame: str | bytes) -> None:
        self._frame = as_frame(frame)
        self._first_interval = in_seconds(first_interval, from_zero=True)
        self._interval = in_seconds(interval)

    def _offer(self, awaited: Any) -> Any:
        """
        Return what the task is to be given instead of ``awaited``: this object, wherever it can stand in.

        It can for what a task would wait for. About anything else the task shall complain in its own words.
        """
        if (
            getattr(awaited, "_asyncio_future_blocking", None) is True
            and _loop_of(awaited) is self._running_loop
            and not (isinstance(awaited, asyncio.Task) and awaited is asyncio.current_task())
        ):
            awaited._asyncio_future_blocking = False
            self.awaited = awaited
            return self
        if awaited is AS_BEFORE:
            return None if self.awaited is None else self
        self.awaited = None
        if awaited is not None:
            self.due = False
        return awaited

    def _interrupts(self) -> bool:
        """Whether the step is left half finished for what is due: not while it cleans up after a cancellation."""
        if self._cleans_up():
            self.due = False
            self.since = self._clock()
            self._end_by = self.since + EVENT_PATIENCE if self.ending else math.inf
            return False
        if self.is_over() or self.has_event_due():
            return True
        # Not if it was woken for an event that has been taken back since.
        self.due = self.due and self._has_frame_due()
        return self.due

    def _cleans_up(self) -> bool:
        """
        Whether the step was cancelled and is not over that yet.

        It is once its task counts fewer cancellations: so asyncio.timeout() and others take theirs back.
        """
        return self._was_cancelled or (self._cancellations != 0 and cancellations_of_task() >= self._cancellations)

    def _count_cancellations(self) -> None:
        count = cancellations_of_task()
        # A cancellation of the future alone comes from a stream around this one that is being closed: no end to that.
        self._cancellations = -1 if self._was_cancelled and not count else count
        self._was_cancelled = False

    def _has_frame_due(self) -> bool:
        return self._frame_due_at() <= self._clock() + CLOCK_STEP

    def _frame_due_at(self) -> float:
        interval = self._interval
        if interval < math.inf and self._first_interval < math.inf and not self.tracker.has_sent:
            interval = self._first_interval
        return cast("float", self.since) + interval

    def _arm(self) -> None:
        deadline = min(self._frame_due_at(), self._end_by)
        if deadline < math.inf and not self.closed:
            # In an empty context: the timer would keep alive whatever the stream's context holds.
            self._timer = self._running_loop.call_at(deadline, self._tick, context=contextvars.Context())

    def _tick(self) -> None:
        self._timer = None
        if self.closed or not self._is_waiting or (self.awaited is not None and self._wake_up is None):
            return  # the consumer has the turn, so nothing is silent; or the stream is being closed
        if self._has_frame_due():
            if self._frame.at(self.tracker.tail) is not None:
                self.due = True
            else:
                self.since = self._clock()
        self._wake_if_due()
        if not self.due:
            self._arm()

    def _wake_if_due(self) -> None:
        self.due = self.due or (self.has_orders and (self.is_over() or self.has_event_due()))
        # Without a wake-up, or with a future that is done, the task comes by itself, and sees what is due.
        if self.due and self._wake_up is not None and not self.awaited.done():
            # Nothing is removed if a stream inside of this one wakes the task already.
            if self.awaited.remove_done_callback(self._wake_up) != 0:
                self._running_loop.call_soon(self._wake_up, self, context=self._context)
            self._wake_up = self._context = None

    def _look_again(self) -> None:
        self.due = False
        self._stop_timer()
        self._tick()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
