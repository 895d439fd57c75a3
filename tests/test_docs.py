"""What the documentation shows is so."""

import ast
import re
import types
from datetime import timedelta
from pathlib import Path

import pytest

import sse_keepalive
from sse_keepalive.conf import Settings, conf
from sse_keepalive.http import EventStreamResponse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


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
