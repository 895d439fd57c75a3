"""What the documentation shows is so."""

import ast
import re
import sys
import textwrap
import types
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.testing import ApplicationCommunicator
from django.contrib.auth.models import AnonymousUser, User
from django.db import connections
from django.test import AsyncClient, AsyncRequestFactory
from pytest_django import Settings as SettingsFixture

import sse_keepalive
from sse_keepalive.conf import Settings, conf
from sse_keepalive.http import EventStreamResponse
from sse_keepalive.layers import group_messages

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


@pytest.fixture
def mysite(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], types.ModuleType]:
    """Return what makes a module of the site on the page on Channels, of the one block that begins so."""

    def module(name: str, start: str) -> types.ModuleType:
        made = types.ModuleType(f"mysite.{name}")
        (block,) = (block for block in blocks(ROOT / "docs" / "channels.md", "python") if block.startswith(start))
        exec(block, vars(made))
        monkeypatch.setitem(sys.modules, made.__name__, made)
        monkeypatch.setattr(sys.modules["mysite"], name, made, raising=False)
        return made

    monkeypatch.setitem(sys.modules, "mysite", types.ModuleType("mysite"))
    return module


@pytest.mark.django_db(transaction=True)
async def test_the_view_of_the_page_on_channels_does_what_the_test_there_says(
    mysite: Callable[[str, str], types.ModuleType],
    async_client: AsyncClient,
    admin_user: User,
    settings: SettingsFixture,
) -> None:
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ]
    views = mysite("views", "# views.py\n")
    settings.ROOT_URLCONF = mysite("urls", "# urls.py").__name__
    await mysite("test_views", "# test_views.py").test_orders(async_client, admin_user)
    layer: Any = get_channel_layer()
    assert layer.groups == {}
    async with group_messages("orders") as messages:
        placed = await sync_to_async(views.place)(AsyncRequestFactory().post("/", {"dish": "soup"}))
        assert placed.status_code == 204
        assert (await anext(messages))["order"] == {"dish": "soup"}
    await sync_to_async(connections.close_all)()  # in the thread where the views have opened one


async def test_the_consumer_of_the_page_on_channels_does_what_the_test_there_says(
    mysite: Callable[[str, str], types.ModuleType],
) -> None:
    consumers = mysite("consumers", "# consumers.py")
    await mysite("test_consumers", "# test_consumers.py").test_order_consumer()
    anybody = {"type": "http", "method": "GET", "path": "/", "headers": [], "user": AnonymousUser()}
    communicator = ApplicationCommunicator(consumers.OrderConsumer.as_asgi(), anybody)
    await communicator.send_input({"type": "http.request"})
    assert (await communicator.receive_output())["status"] == 403
    await communicator.wait()
