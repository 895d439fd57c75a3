"""``group_messages`` (H2) with the layer in memory, and with layers that fail where a real one seldom does."""

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from channels.exceptions import ChannelFull
from channels.layers import InMemoryChannelLayer, channel_layers, get_channel_layer
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.test import override_settings

from sse_keepalive import layers, relays
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.keepalive import KeepAliveStream
from sse_keepalive.layers import MessagesLost, group_messages
from tests.asgi import TIME_LIMIT, answering, has_body
from tests.clock import run
from tests.relaying import relayed
from tests.whatwg import decode

IN_MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

Message = dict[str, Any]
Main = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def in_memory() -> Iterator[None]:
    """Give each test a layer of its own, and see that no relay is left over."""
    with override_settings(CHANNEL_LAYERS=IN_MEMORY):
        yield
        assert relayed() == []


def layer() -> Any:
    return get_channel_layer()


def use(other: Any) -> Any:
    """Use this layer for the rest of the test."""
    channel_layers.set("default", other)
    return other


def run_here(main: Main, *, fails: bool = False, is_clean: bool = True) -> None:
    """
    Run it in virtual time, and see that neither a task nor a member of a group is left.

    :param fails: that it may take a while, for nobody waits for a layer that has failed.
    """

    async def limited() -> None:
        used = layer()
        async with asyncio.timeout(10_000):
            await main()
        if fails and (others := asyncio.all_tasks() - {asyncio.current_task()}):
            await asyncio.wait(others, timeout=relays.LEAVE_WITHIN + 3 * relays.PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert relayed() == []
        if is_clean:
            assert (used.groups, used.channels) == ({}, {})

    run(limited)


def now() -> float:
    return asyncio.get_running_loop().time()


def numbered(number: int) -> Message:
    return {"type": "chat.message", "number": number}


async def send(*numbers: int, group: str = "room") -> None:
    for number in numbers:
        await layer().group_send(group, numbered(number))
        await asyncio.sleep(0)


async def take(messages: group_messages, count: int) -> list[int]:
    async with asyncio.timeout(TIME_LIMIT):
        return [(await anext(messages))["number"] for _ in range(count)]


def the_channel(group: str = "room") -> str:
    (channel,) = layer().groups[group]
    return str(channel)


class Layer(InMemoryChannelLayer):  # type: ignore[misc]  # Channels has no types
    """A layer that fails, or does not answer, where it is told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Names of methods, and what each does before it does its work.
        self.before: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self.calls: list[str] = []

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.before:
            await self.before[name]()

    async def new_channel(self, prefix: str = "specific.") -> Any:
        await self._called("new_channel")
        return await super().new_channel(prefix)

    async def receive(self, channel: str) -> Any:
        await self._called("receive")
        return await super().receive(channel)

    async def send(self, channel: str, message: Message) -> None:
        await self._called("send")
        await super().send(channel, message)

    async def group_add(self, group: str, channel: str) -> None:
        await self._called("group_add")
        await super().group_add(group, channel)

    async def group_discard(self, group: str, channel: str) -> None:
        await self._called("group_discard")
        await super().group_discard(group, channel)


def raising(error: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:
    async def raises() -> None:
        raise error

    return raises


async def hanging() -> None:
    await asyncio.Event().wait()


# What comes, and to whom.


def test_h2_it_has_joined_when_the_block_begins_and_messages_come_in_their_order() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            await send(*range(50))
            assert await take(messages, 50) == list(range(50))
            reader = asyncio.create_task(take(messages, 2))
            await asyncio.sleep(1)
            await send(50, 51)
            assert await reader == [50, 51]

    run_here(main)


def test_h2_async_for_takes_the_whole_message() -> None:
    async def main() -> None:
        sent = {"type": "chat.message", "text": "hello", "nested": {"list": [1, None]}}
        async with group_messages("room") as messages:
            await layer().group_send("room", sent)
            async for message in messages:
                assert message == sent
                break

    run_here(main)


@pytest.mark.parametrize("more", [{}, {"what no pickle can be made of": lambda: None}], ids=["plain", "strange"])
def test_h2_each_stream_gets_copies_of_its_own(more: dict[str, Any]) -> None:
    async def main() -> None:
        streams = [group_messages("room") for _ in range(3)]
        async with streams[0], streams[1], streams[2]:
            await layer().group_send("room", {"type": "chat.message", "list": [1], **more})
            for stream in streams:
                message = await anext(stream)
                assert message == {"type": "chat.message", "list": [1], **more}
                message["list"].append(2)
                message["mine"] = True

    run_here(main)


def test_h2_several_groups_in_one_stream() -> None:
    async def main() -> None:
        async with group_messages("room", "news", "room") as messages:
            await send(1)
            await send(2, group="news")
            await send(3, group="else")
            await send(4)
            assert sorted(await take(messages, 3)) == [1, 2, 4]
            assert set(layer().groups) == {"room", "news"}
            await send(5, 6, 7, group="news")
            assert await take(messages, 3) == [5, 6, 7]

    run_here(main)


def test_h2_streams_of_one_group_share_one_channel_and_the_last_one_leaves_the_group() -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as first:
            one = await first.enter_async_context(group_messages("room"))
            async with group_messages("room") as other:
                assert len(layer().groups["room"]) == 1
                await send(1)
                assert await take(one, 1) == await take(other, 1) == [1]
                await first.aclose()
                await send(2)
                assert await take(other, 1) == [2]
                assert len(layer().groups["room"]) == 1
        assert layer().groups == {}
        assert relayed() == []

    run_here(main)


def test_h2_a_stream_that_is_slow_holds_up_nobody() -> None:
    async def main() -> None:
        async with group_messages("room") as slow, group_messages("room") as fast:
            for number in range(layers.BACKLOG):
                await send(number)
                assert await take(fast, 1) == [number]
            assert await take(slow, layers.BACKLOG) == list(range(layers.BACKLOG))

    run_here(main)


@pytest.mark.parametrize("how", ["timeout", "cancel", "keep-alives"])
def test_h2_nothing_is_lost_to_what_ends_the_wait_for_the_next_message(how: str) -> None:
    async def one_by_one(messages: group_messages) -> AsyncIterator[str]:
        async for message in messages:
            yield f"data: {message['number']}\n\n"

    async def next_of(messages: group_messages) -> int | None:
        if how == "timeout":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.003):
                    return int((await anext(messages))["number"])
            return None
        task = asyncio.ensure_future(anext(messages))
        asyncio.get_running_loop().call_later(0.003, task.cancel)
        await asyncio.wait([task])
        return None if task.cancelled() else int(task.result()["number"])

    async def main() -> None:
        async def sender() -> None:
            for number in range(300):
                await send(number)
                # The pauses fall on every phase of the timeouts, their very moments as well.
                await asyncio.sleep((number % 7) / 1000)

        async with group_messages("room") as messages:
            sending = asyncio.create_task(sender())
            seen: list[int] = []
            interruptions = 0
            if how == "keep-alives":
                stream: Any = KeepAliveStream(one_by_one(messages), 0.003)
                async with contextlib.aclosing(stream):
                    while len(seen) < 300:
                        chunk = await anext(stream)
                        if chunk.startswith("data:"):
                            seen.append(int(chunk[6:]))
                        else:
                            interruptions += 1
            while len(seen) < 300:
                number = await next_of(messages)
                if number is None:
                    interruptions += 1
                else:
                    seen.append(number)
            assert seen == list(range(300))
            assert interruptions > 50
            await sending

    run_here(main)


@pytest.mark.parametrize("turns", range(10))
def test_h2_a_message_that_comes_in_the_very_moment_of_a_cancellation_is_not_lost(turns: int) -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            reader = asyncio.create_task(take(messages, 1))
            await asyncio.sleep(1)
            sending = asyncio.create_task(send(1, 2))
            for _ in range(turns):  # one of these counts is the very moment
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader, sending])
            seen = [] if reader.cancelled() else reader.result()
            assert seen + await take(messages, 2 - len(seen)) == [1, 2]

    run_here(main)


def test_h2_the_layers_receive_is_never_cancelled_with_a_message_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Decoding(Layer):
        """Takes its time between taking a message and returning it, as one that decrypts in a thread does."""

        lost = 0
        received = 0

        async def receive(self, channel: str) -> Any:
            message = await super().receive(channel)
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                self.lost += 1
                raise
            self.received += 1
            return message

    async def main() -> None:
        used = use(Decoding())
        for pause in (0, 0.001, 0.004, 0.005, 0.006, 0.02):  # how long before the block ends the last one is sent
            async with group_messages("room") as messages:
                seen: list[int] = []
                sending = asyncio.create_task(sender())
                while len(seen) < 40:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.002):
                            seen += await take(messages, 1)
                assert seen == list(range(40))
                await sending
                await send(40)
                await asyncio.sleep(pause)
        assert used.lost == 0
        assert (used.groups, used.channels) == ({}, {})

    async def sender() -> None:
        for number in range(40):
            await send(number)
            await asyncio.sleep((number % 5) / 500)

    monkeypatch.setattr(relays, "REJOIN_EVERY", 0.007)
    run_here(main)


# How a stream begins and ends.


def test_h2_without_groups_it_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="at least one group"):
        group_messages()


def test_h2_an_unknown_layer_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="'other'"):
        group_messages("room", layer="other")
    with override_settings(CHANNEL_LAYERS={}), pytest.raises(ImproperlyConfigured, match="CHANNEL_LAYERS"):
        group_messages("room")


def test_h2_what_is_no_name_of_a_group_is_refused_when_the_block_begins() -> None:
    async def main() -> None:
        for groups in (["no name!"], ["room", "no name!"], ["room", "x" * 200], [7]):
            messages = group_messages(*groups)
            with pytest.raises(TypeError, match="Group name"):
                async with messages:
                    raise AssertionError("It is not to be entered.")
            assert layer().groups == {}

    run_here(main, fails=True)


def test_h2_iterated_outside_of_the_block_it_says_so() -> None:
    async def main() -> None:
        messages = group_messages("room")
        with pytest.raises(RuntimeError, match="async with"):
            await anext(messages)
        async with messages:
            await send(1)
        with pytest.raises(RuntimeError, match="async with"):
            await anext(messages)

    run_here(main)


def test_h2_entered_twice_at_once_it_says_so_and_goes_on() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            with pytest.raises(RuntimeError, match="already"):
                await messages.__aenter__()
            await send(1)
            assert await take(messages, 1) == [1]

    run_here(main)


def test_h2_a_second_block_begins_anew() -> None:
    async def main() -> None:
        used = use(Layer())
        messages = group_messages("room")
        async with messages:
            await send(1, 2)
            await asyncio.sleep(1)
        async with messages:
            await send(3)
            assert await take(messages, 1) == [3]  # none that came before
            used.before["receive"] = raising(OSError())
            await send(4)
            with pytest.raises(MessagesLost):
                await take(messages, 2)
        del used.before["receive"]
        async with messages:
            await send(5)
            assert await take(messages, 1) == [5]  # nor a failure from before

    run_here(main, fails=True)


def test_h2_only_one_task_may_wait_for_the_next_message() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            first = asyncio.create_task(take(messages, 1))
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="Another task"):
                await anext(messages)
            await send(1)
            assert await first == [1]

    run_here(main)


def test_h2_a_task_that_still_waits_when_the_block_ends_does_not_wait_for_ever() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            reader = asyncio.create_task(take_one(messages))
            await asyncio.sleep(1)
        await asyncio.wait([reader], timeout=5)
        is_done = reader.done()
        reader.cancel()
        await asyncio.wait([reader])
        assert is_done
        assert isinstance(reader.exception(), RuntimeError)

    async def take_one(messages: group_messages) -> Message:
        return await anext(messages)

    run_here(main)


def test_h2_an_error_in_the_block_leaves_the_groups() -> None:
    async def stream() -> None:
        async with group_messages("room", "news") as messages:
            await send(1)
            await take(messages, 1)
            raise KeyError

    async def main() -> None:
        with pytest.raises(KeyError):
            await stream()
        assert layer().groups == {}

    run_here(main)


@pytest.mark.parametrize("cancellations", [1, 2])
@pytest.mark.parametrize("method", ["group_add", "new_channel"])
def test_h2_cancelled_while_it_joins_it_leaves_nothing(method: str, cancellations: int) -> None:
    async def main() -> None:
        used = use(Layer())
        go_on = asyncio.Event()
        outcomes: list[bool] = []

        async def blocked() -> None:
            try:
                await go_on.wait()
            finally:
                outcomes.append(go_on.is_set())

        used.before[method] = blocked
        task = asyncio.create_task(join())
        for _ in range(cancellations):
            await asyncio.sleep(1)
            task.cancel()
        asyncio.get_running_loop().call_later(1, go_on.set)
        await asyncio.wait([task])
        assert task.cancelled()
        assert now() <= 3
        await asyncio.sleep(2)
        assert outcomes == [True]  # what the layer was asked for it could finish
        assert (used.groups, used.channels) == ({}, {})
        async with group_messages("room") as messages:  # and nothing is in the way of the next
            await send(1)
            assert await take(messages, 1) == [1]

    async def join() -> None:
        async with group_messages("room"):
            raise AssertionError("It is not to be entered.")

    run_here(main)


def test_h2_another_stream_joins_while_the_last_one_is_leaving() -> None:
    async def main() -> None:
        used = use(Layer())
        leaving = asyncio.Event()
        go_on = asyncio.Event()

        async def blocked() -> None:
            leaving.set()
            await go_on.wait()

        async def first() -> None:
            async with group_messages("room"):
                used.before["group_discard"] = blocked

        task = asyncio.create_task(first())
        await leaving.wait()
        async with group_messages("room") as messages:
            used.before.clear()
            go_on.set()
            await task
            await send(1)
            assert await take(messages, 1) == [1]
        assert (used.groups, used.channels) == ({}, {})

    run_here(main)


def test_h2_cancelled_while_it_leaves_the_group_is_left_all_the_same() -> None:
    async def main() -> None:
        used = use(Layer())

        async def slow() -> None:
            await asyncio.sleep(2)

        async def stream() -> None:
            async with group_messages("room", "news"):
                used.before["group_discard"] = slow

        task = asyncio.create_task(stream())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert (task.cancelled(), now()) == (True, 1)
        await asyncio.sleep(2)
        assert (used.groups, used.channels) == ({}, {})

    run_here(main)


@pytest.mark.parametrize("joins_first", [True, False])
def test_h2_a_stream_cancelled_while_it_joins_takes_no_other_along(joins_first: bool) -> None:
    async def main() -> None:
        used = use(Layer())
        go_on = asyncio.Event()

        async def blocked() -> None:
            await go_on.wait()

        async def stream() -> None:
            async with group_messages("room") as messages:
                seen.extend(await take(messages, 1))

        seen: list[int] = []
        used.before["group_add"] = blocked
        tasks = [asyncio.create_task(stream()) for _ in range(2)]
        await asyncio.sleep(1)
        cancelled, other = tasks if joins_first else reversed(tasks)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        go_on.set()
        await asyncio.sleep(1)
        await send(1)
        await other
        assert seen == [1]

    run_here(main)


# Layers that fail.


def test_h2_a_layer_that_fails_ends_every_stream_behind_the_messages_that_have_come() -> None:
    async def main() -> None:
        error = ConnectionError("gone")
        used = use(Layer())
        async with group_messages("room") as one, group_messages("room", "news") as other:
            reader = asyncio.create_task(take(other, 3))
            await send(1)
            await asyncio.sleep(1)
            used.before["receive"] = raising(error)
            await send(2)
            with pytest.raises(MessagesLost, match="gone") as lost:
                await reader
            assert lost.value.__cause__ is error
            assert await take(one, 2) == [1, 2]
            for _ in range(2):
                with pytest.raises(MessagesLost, match="gone") as lost:
                    await anext(one)
                assert lost.value.__cause__ is error
            used.before.clear()
            async with group_messages("room") as messages:  # which does not join those who have lost something
                await send(3)
                assert await take(messages, 1) == [3]
        assert (used.groups, used.channels) == ({}, {})

    run_here(main, fails=True)


def test_h2_a_stream_does_not_wait_until_it_has_left_a_layer_that_has_failed() -> None:
    async def main() -> None:
        used = use(Layer())
        async with group_messages("room") as messages:
            used.before.update(receive=raising(ConnectionError()), group_discard=hanging)
            await send(1)
            with pytest.raises(MessagesLost):
                await take(messages, 2)
        assert now() == 0

    run_here(main, fails=True, is_clean=False)


@pytest.mark.parametrize("method", ["group_add", "new_channel"])
def test_h2_a_layer_that_fails_at_first_raises_its_very_error(method: str) -> None:
    async def main() -> None:
        error = ConnectionError("refused")
        used = use(Layer())
        used.before[method] = raising(error)

        async def stream() -> None:
            async with group_messages("room"):
                raise AssertionError("It is not to be entered.")

        tasks = [asyncio.create_task(stream()) for _ in range(2)]
        await asyncio.wait(tasks)
        assert [task.exception() for task in tasks] == [error, error]
        assert now() == relays.PATIENCE  # in which it is called again
        used.before.clear()
        async with group_messages("room") as messages:
            await send(1)
            assert await take(messages, 1) == [1]

    run_here(main, fails=True)


def test_h2_a_layer_that_does_not_answer_at_first_is_given_up() -> None:
    async def main() -> None:
        used = use(Layer())
        used.before["group_add"] = hanging
        with pytest.raises(TimeoutError):
            async with group_messages("room"):
                raise AssertionError("It is not to be entered.")
        assert now() == relays.PATIENCE  # and not a moment more

    run_here(main, fails=True)


@pytest.mark.parametrize(
    ("fails", "cause", "when"),
    [
        (hanging, TimeoutError, relays.REJOIN_EVERY + relays.PATIENCE),
        (raising(ConnectionError()), ConnectionError, relays.REJOIN_EVERY + relays.PATIENCE),
        (raising(TypeError()), TypeError, relays.REJOIN_EVERY),  # which no patience heals
    ],
)
def test_h2_a_layer_that_cannot_be_joined_again_has_failed(fails: Any, cause: type[Exception], when: float) -> None:
    async def main() -> None:
        used = use(Layer())
        async with group_messages("room") as messages:
            used.before["group_add"] = fails
            with pytest.raises(MessagesLost) as lost:
                await anext(messages)
            assert isinstance(lost.value.__cause__, cause)
        assert now() == when  # nobody waits until it is left

    run_here(main, fails=True)


@pytest.mark.parametrize("method", ["new_channel", "group_add", "group_discard", "send"])
def test_h2_what_fails_a_few_times_and_then_works_is_no_failure(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        used = use(Layer())
        failures: list[str] = []

        async def broken() -> None:
            if len(failures) < 3:
                failures.append(method)
                raise ConnectionError

        if method in ("new_channel", "group_add"):
            used.before[method] = broken
        async with group_messages("room") as messages:
            await send(1)
            assert await take(messages, 1) == [1]
            failures_at_first = len(failures)
            used.before[method] = broken
            failures.clear()
            await asyncio.sleep(relays.REJOIN_EVERY + 1)
            used.before.pop("group_add", None)
            await InMemoryChannelLayer.send(used, the_channel(), numbered(2))
            assert await take(messages, 1) == [2]
        assert failures_at_first == (3 if method in ("new_channel", "group_add") else 0)
        assert len(failures) == (0 if method == "new_channel" else 3)
        assert now() < relays.REJOIN_EVERY + relays.PATIENCE

    run_here(main)
    assert caplog.records == []


def test_h2_nothing_is_lost_while_a_slow_layer_is_joined_again() -> None:
    async def main() -> None:
        used = use(Layer())  # which holds 100 messages of a channel, and loses more

        async def slow() -> None:
            await asyncio.sleep(5)

        async with group_messages("room") as messages:
            used.before["group_add"] = slow
            await asyncio.sleep(relays.REJOIN_EVERY + 1)
            reader = asyncio.create_task(take(messages, 300))
            await send(*range(300))
            assert await reader == list(range(300))

    run_here(main)


def test_h2_it_joins_again_a_group_that_the_layer_has_forgotten() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            for number in range(5):
                layer().groups.clear()
                await asyncio.sleep(relays.REJOIN_EVERY + 1)
                await send(number)
            assert await take(messages, 5) == list(range(5))

    run_here(main)


def test_h2_it_joins_again_however_busy_the_group_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        used = use(Layer())
        async with group_messages("room") as messages:
            for number in range(100):
                await send(number)
                await asyncio.sleep(0.25)
                assert await take(messages, 1) == [number]
            assert used.calls.count("group_add") >= 12

    monkeypatch.setattr(relays, "REJOIN_EVERY", 2)
    run_here(main)


def test_h2_a_timeout_that_the_layer_raises_is_a_failure_like_others() -> None:
    async def main() -> None:
        used = use(Layer())
        async with group_messages("room") as messages:
            used.before["receive"] = raising(TimeoutError("of the layer"))
            await send(1)
            assert await take(messages, 1) == [1]
            with pytest.raises(MessagesLost, match="of the layer"):
                await anext(messages)
            assert now() < 1

    run_here(main, fails=True)


@pytest.mark.parametrize("late", [0, 1, 500])
def test_h2_a_stream_that_is_too_far_behind_is_told_and_no_other(late: int) -> None:
    async def main() -> None:
        async with group_messages("room") as slow, group_messages("room") as fast:
            for number in range(layers.BACKLOG + late):
                await send(number)
                assert await take(fast, 1) == [number]
            assert await take(slow, layers.BACKLOG) == list(range(layers.BACKLOG))
            await send(-1)
            assert await take(fast, 1) == [-1]
            if late:
                with pytest.raises(MessagesLost, match=str(layers.BACKLOG)):
                    await anext(slow)
            else:
                assert await take(slow, 1) == [-1]

    run_here(main)


def test_h2_a_channel_that_is_full_when_it_is_given_up_is_emptied(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        used = use(Layer(capacity=3))
        refused = []

        async def fill() -> None:
            # As many as fit while the group is being left.
            try:
                for number in range(10):
                    await InMemoryChannelLayer.send(used, the_channel(), numbered(number))
            except ChannelFull:
                refused.append(True)

        used.before["group_discard"] = fill
        async with group_messages("room"):
            pass
        assert refused
        assert used.calls.count("send") >= 2  # the farewell, which did not fit at first
        assert now() == relays.RETRY_AFTER  # until it fits
        assert (used.groups, used.channels) == ({}, {})

    run_here(main)
    assert caplog.records == []


@pytest.mark.parametrize("method", ["group_discard", "send", "receive"])
@pytest.mark.parametrize("fails", [hanging, raising(ConnectionError())])
def test_h2_a_layer_that_fails_while_the_group_is_left_is_logged_and_holds_up_nothing(
    method: str, fails: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        used = use(Layer())
        async with group_messages("room"):
            await asyncio.sleep(1)  # until it receives
            used.before[method] = fails
        assert now() <= 1 + relays.PATIENCE

    run_here(main, fails=True, is_clean=False)
    if method != "receive":  # of the one that is cancelled at once nothing is expected
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert caplog.records[0].name == "sse_keepalive.relays"


# Loops, threads, contexts, settings.


def test_h2_one_loop_after_another() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            await send(1, 2)
            assert await take(messages, 2) == [1, 2]

    for _ in range(3):
        run_here(main)


async def left_open() -> None:
    async with group_messages("room") as messages:
        await anext(messages)


def test_h2_a_loop_that_ends_under_an_open_stream_leaves_its_group() -> None:
    async def main() -> None:
        tasks.append(asyncio.create_task(left_open()))
        await asyncio.sleep(1)
        assert relayed() == ["room"]

    tasks: list[asyncio.Task[None]] = []
    used = layer()
    run(main)  # its runner cancels what is left
    assert tasks[0].cancelled()
    assert relayed() == []
    assert used.groups == {}  # its channel keeps a farewell that nobody has received, until that expires


def test_h2_each_of_two_loops_in_two_threads_has_a_relay_of_its_own() -> None:
    # The layer in memory is not made for threads: each loop gets one of its own, under one alias.
    results: list[Any] = []
    entered = threading.Barrier(2, timeout=TIME_LIMIT)

    async def main(start: int) -> None:
        async with group_messages("room", layer=f"layer{start}") as messages:
            await asyncio.to_thread(entered.wait)
            assert relayed() == ["room", "room"]
            for number in range(start, start + 100):
                await get_channel_layer(f"layer{start}").group_send("room", numbered(number))
                await asyncio.sleep(0)
            results.append(await take(messages, 100))
            await asyncio.to_thread(entered.wait)

    def thread(start: int) -> None:
        try:
            asyncio.run(main(start))
        except BaseException as error:
            results.append(error)

    with override_settings(CHANNEL_LAYERS={f"layer{start}": IN_MEMORY["default"] for start in (0, 1000)}):
        threads = [threading.Thread(target=thread, args=[start], daemon=True) for start in (0, 1000)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(TIME_LIMIT)
    assert sorted(results) == [list(range(100)), list(range(1000, 1100))]
    assert relayed() == []


def test_h2_two_loops_in_two_threads_use_one_layer_at_the_same_time() -> None:
    results: list[Any] = []
    entered = threading.Barrier(2, timeout=TIME_LIMIT)

    async def main(group: str) -> None:
        async with group_messages(group) as messages:
            await asyncio.to_thread(entered.wait)
            await send(*range(100), group=group)
            results.append(await take(messages, 100))
            await asyncio.to_thread(entered.wait)

    def thread(group: str) -> None:
        try:
            asyncio.run(main(group))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=thread, args=[group], daemon=True) for group in ("room", "news")]
    layer()
    for one in threads:
        one.start()
    for one in threads:
        one.join(TIME_LIMIT)
    assert results == [list(range(100))] * 2
    assert relayed() == []


def test_h2_the_relay_keeps_nothing_of_the_context_of_the_stream_that_came_first() -> None:
    class Held:
        pass

    variable: ContextVar[Held] = ContextVar("variable")
    left = asyncio.Event()

    async def first() -> weakref.ref[Held]:
        held = Held()
        variable.set(held)
        async with group_messages("room") as messages:
            await take(messages, 1)
        left.set()
        return weakref.ref(held)

    async def main() -> None:
        task = asyncio.create_task(first())
        await asyncio.sleep(1)
        async with group_messages("room") as messages:
            await send(1)
            await left.wait()
            died = await task
            del task
            await take(messages, 1)
            await asyncio.sleep(2 * relays.REJOIN_EVERY)
            assert died() is None

    gc.collect()
    gc.disable()
    try:
        run_here(main)
    finally:
        gc.enable()


def test_h2_with_other_settings_it_is_another_layer() -> None:
    async def main() -> None:
        async with group_messages("room") as messages:
            old = layer()
            with override_settings(CHANNEL_LAYERS=IN_MEMORY):
                assert layer() is not old
                async with group_messages("room") as others:
                    await send(1)
                    assert await take(others, 1) == [1]
                    await old.group_send("room", numbered(2))
                    assert await take(messages, 1) == [2]
                assert layer().groups == {}
            # Only the block's own layer is told when it ends.
        assert old.groups == {}

    run_here(main)


# In a view.


async def until_left(used: Any) -> None:
    async with asyncio.timeout(TIME_LIMIT):
        while used.groups or used.channels or relayed(asyncio.get_running_loop()):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_returned", [True, False])
async def test_h3_of_300_messages_300_arrive_at_each_client_while_keep_alives_fire(is_returned: bool) -> None:
    async def stream(request: HttpRequest) -> AsyncIterator[ServerSentEvent]:
        async with group_messages("room") as messages:
            async for message in messages:
                yield ServerSentEvent(str(message["number"]))

    async def view(request: HttpRequest) -> AsyncIterator[ServerSentEvent]:
        return stream(request)

    decorated = sse_keepalive(interval=0.002)(view if is_returned else stream)
    used = layer()
    async with answering(decorated) as one, answering(decorated) as other:
        clients = (one, other)
        for client in clients:
            await client.until(lambda exchange: any(map(has_body, exchange.messages)))  # a keep-alive: it has joined
        async with asyncio.timeout(TIME_LIMIT):
            while not used.groups:
                await asyncio.sleep(0.001)
        assert len(used.groups["room"]) == 1
        for number in range(300):
            await used.group_send("room", numbered(number))
            await asyncio.sleep((number % 4) / 1000)
        for client in clients:
            await client.until(lambda exchange: b"data: 299\n\n" in exchange.body)
            events = decode(client.body).events
            assert [event.data for event in events] == [str(number) for number in range(300)]
            assert client.body.count(b": keep-alive") > 30
        one.leave()
        await one.finish()
        assert len(used.groups["room"]) == 1
        other.leave()
        await other.finish()
        await until_left(used)


async def test_h2_a_layer_that_fails_cuts_the_connection_of_a_view_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @sse_keepalive(interval=None)
    async def view(request: HttpRequest) -> AsyncIterator[ServerSentEvent]:
        async with group_messages("room") as messages:
            async for message in messages:
                yield ServerSentEvent(str(message["number"]))

    used = use(Layer())
    async with answering(view) as exchange:
        async with asyncio.timeout(TIME_LIMIT):
            while not used.channels:  # as long as the relay does not receive
                await asyncio.sleep(0.001)
        used.before["receive"] = raising(ConnectionError("gone"))
        await send(1)
        with pytest.raises(MessagesLost, match="gone"):
            await exchange.finish()
        assert decode(exchange.body).events[0].data == "1"
        assert not exchange.is_complete
    used.before.clear()
    await until_left(used)
    errors = [record for record in caplog.records if record.name == "django.request"]
    assert [record.exc_info[0] for record in errors if record.exc_info] == [MessagesLost]


def test_h2_a_layer_in_memory_that_was_flushed_ends_its_streams_and_holds_up_nothing() -> None:
    async def main() -> None:
        async with group_messages("room") as old, group_messages("news"):
            await asyncio.sleep(1)
            await layer().flush()
            with pytest.raises(MessagesLost, match="flushed"):
                await anext(old)
            assert now() == relays.REJOIN_EVERY
            async with group_messages("room") as new:
                await send(1)
                assert await take(new, 1) == [1]
        assert now() == relays.REJOIN_EVERY

    run_here(main)


def test_h2_a_loop_that_ends_while_the_layer_does_not_answer_waits_a_moment_only() -> None:
    async def main() -> None:
        tasks.append(asyncio.create_task(left_open()))
        await asyncio.sleep(1)
        used.before["group_discard"] = hanging
        loops.append(asyncio.get_running_loop())

    tasks: list[asyncio.Task[None]] = []
    loops: list[asyncio.AbstractEventLoop] = []
    used = use(Layer())
    run(main)  # its runner cancels what is left
    assert loops[0].time() <= 1 + 2 * relays.CUT_SHORT + relays.FAREWELL_EVERY
