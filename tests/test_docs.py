"""What the documentation shows is so."""

import ast
import asyncio
import re
import textwrap
import types
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import AsyncRequestFactory

import sse_keepalive
from sse_keepalive.conf import Settings, conf
from sse_keepalive.http import EventStreamResponse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page, also those within a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def test_the_readme_lists_the_settings_with_their_types_and_defaults() -> None:
    headings = dict(re.findall(r"^### `SSE_KEEPALIVE_(\w+): (.*)`$", README, re.MULTILINE))
    properties = {name.upper() for name, value in vars(Settings).items() if isinstance(value, property)}
    assert headings.keys() == properties
    names = {"float": float, "timedelta": timedelta, "str": str, "None": None}
    for name, heading in headings.items():
        types_, default = heading.rsplit(" = ", 1)
        assert all(part in names for part in types_.split(" | ")), heading
        in_force = getattr(conf, name.lower())
        assert ast.literal_eval(default) == ("COMMENT" if name == "FRAME" else in_force)
    assert conf.frame == ": keep-alive\n\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


async def test_the_views_of_the_page_on_views_stream(rf: object) -> None:
    namespace = types.ModuleType("views")
    for block in blocks(ROOT / "docs" / "views.md", "python"):
        exec(block, vars(namespace))

    async def auser() -> str:
        return "somebody"

    request = types.SimpleNamespace(auser=auser, method="GET", path="/")
    response = await namespace.response(request)
    assert isinstance(response, EventStreamResponse)
    assert [chunk async for chunk in response] == [b"", b"data: hello somebody\n\n"]
    for name in ("generator", "iterator", "report"):
        assert isinstance(await getattr(namespace, name)(request), EventStreamResponse), name


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists() or (page.parent / f"{target}.md").exists(), (page.name, target)


def test_the_rooms_import_only_downward() -> None:
    rooms = re.findall(r"^``(\w+)``", sse_keepalive.__doc__ or "", re.MULTILINE)
    package = ROOT / "sse_keepalive"
    assert {path.stem for path in package.glob("*.py")} - {"__init__", "apps"} == set(rooms)
    for height, room in enumerate(rooms):
        imported = re.findall(r"^from sse_keepalive\.(\w+) import", (package / f"{room}.py").read_text(), re.MULTILINE)
        assert set(imported) <= set(rooms[:height]), room


def page_on_channels(*wanted: str) -> types.ModuleType:
    """Run the blocks of the page on Channels that begin so."""
    namespace = types.ModuleType("page")
    page = blocks(ROOT / "docs" / "channels.md", "python")
    for start in wanted:
        (block,) = (block for block in page if block.startswith(start))
        exec(block, vars(namespace))
    return namespace


@pytest.mark.django_db(transaction=True)
async def test_the_view_of_the_page_on_channels_streams_what_is_placed(async_rf: AsyncRequestFactory) -> None:
    page = page_on_channels("# views.py")
    layer: Any = get_channel_layer()
    request = async_rf.get("/orders/events/")
    request.auser = sync_to_async(lambda: User(username="cook"))
    response = await page.orders(request)
    async with aclosing(aiter(response)) as chunks:
        assert await anext(chunks) == b""
        coming = asyncio.ensure_future(anext(chunks))
        while not layer.groups:
            await asyncio.sleep(0)
        placed = await sync_to_async(page.place)(async_rf.post("/orders/", {"dish": "soup"}))
        assert placed.status_code == 204
        assert await coming == b'data: {"dish": "soup"}\n\n'
    assert not layer.groups


async def test_the_consumer_of_the_page_on_channels_streams_what_is_sent() -> None:
    page = page_on_channels("# consumers.py")
    layer: Any = get_channel_layer()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "user": User(username="cook")}
    communicator = ApplicationCommunicator(page.OrderConsumer.as_asgi(), scope)
    await communicator.send_input({"type": "http.request"})
    bodies = [await communicator.receive_output() for _ in range(3)]
    assert bodies[2]["body"] == b'event: hello\ndata: {"hello": "cook"}\n\n'
    await layer.group_send("orders", {"type": "order.placed", "order": {"dish": "soup"}})
    assert (await communicator.receive_output())["body"] == b'data: {"dish": "soup"}\n\n'
    await communicator.send_input({"type": "http.disconnect"})
    await communicator.wait()
