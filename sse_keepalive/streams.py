"""The streams that are open in this process, each told at once when its switch has changed."""

import asyncio
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from sse_keepalive.switches import Switch, switches

#: So many streams obey in one pass of the loop: few enough that all others wait for milliseconds.
AT_ONCE: Final = 100


class OpenStream:
    """
    A stream of the running loop, from now on until it is closed or dropped.

    :param name: that of its endpoint.
    :param obey: is called with the switch that is in force, at once and at each change, in the loop's thread.
    """

    __slots__ = ("__weakref__", "_loop", "name", "obey")

    def __init__(self, name: str, obey: Callable[[Switch], None]) -> None:
        self.name = name
        self.obey = obey
        self._loop = _streams_of(asyncio.get_running_loop())
        self._loop.add(self)

    def close(self) -> None:
        """Forget it."""
        self._loop.remove(self)


class LoopStreams:
    """
    The open streams of one event loop, by endpoint.

    However many they are, there is one timer for all: it sees to it that the switches are read again and again while
    anything streams, and costs the streams nothing as long as no switch changes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._by_endpoint: dict[str, weakref.WeakSet[OpenStream]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: OpenStream) -> None:
        self._by_endpoint.setdefault(stream.name, weakref.WeakSet()).add(stream)
        switches.note(stream.name)
        # In this order: a change that comes in between is told to a stream that is here already.
        stream.obey(switches.get(stream.name))
        if self._timer is None:
            self._watch()

    def remove(self, stream: OpenStream) -> None:
        self._by_endpoint.get(stream.name, set[OpenStream]()).discard(stream)
        self._drop_empty(stream.name)

    def switch(self, names: Iterable[str]) -> None:
        """Let the streams of these endpoints obey, some in each pass of the loop, which has others to serve."""
        self._switch_some(iter([weakref.ref(stream) for name in names for stream in self._by_endpoint.get(name, ())]))

    def _switch_some(self, streams: Iterator[weakref.ref[OpenStream]]) -> None:
        some = list(islice(streams, AT_ONCE))
        for reference in some:
            stream = reference()
            if stream is not None and stream in self._by_endpoint.get(stream.name, ()):
                stream.obey(switches.get(stream.name))
        if len(some) == AT_ONCE:
            self.loop.call_soon(self._switch_some, streams, context=contextvars.Context())

    def _watch(self) -> None:
        self._timer = None
        self._drop_empty(*self._by_endpoint)
        due_in = switches.refresh() if self._by_endpoint else None
        if due_in is not None:
            # In an empty context: the timer would keep alive whatever the context of the first stream holds.
            self._timer = self.loop.call_later(due_in, self._watch, context=contextvars.Context())

    def _drop_empty(self, *names: str) -> None:
        for name in names:
            if not self._by_endpoint.get(name, True):
                del self._by_endpoint[name]
        if not self._by_endpoint:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            with _lock:
                if _loops.get(self.loop) is self:
                    del _loops[self.loop]


_loops: Final[dict[asyncio.AbstractEventLoop, LoopStreams]] = {}
_lock = threading.Lock()


def _streams_of(loop: asyncio.AbstractEventLoop) -> LoopStreams:
    with _lock:
        if loop not in _loops:
            for other in [other for other in _loops if other.is_closed()]:
                del _loops[other]
            _loops[loop] = LoopStreams(loop)
        return _loops[loop]


def _switch(names: Iterable[str]) -> None:
    """Tell the loops, in whatever thread this is, that these switches have changed."""
    with _lock:
        everywhere = list(_loops.values())
    for streams in everywhere:
        try:
            streams.loop.call_soon_threadsafe(streams.switch, names, context=contextvars.Context())
        except RuntimeError:  # the loop is closed
            continue


switches.listeners.append(_switch)


def _forget_all() -> None:
    """Be without streams, as in the child of a fork."""
    global _lock
    _lock = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
