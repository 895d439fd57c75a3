"""``manage.py sse_endpoints``: the switches, for those without the admin."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils.dateparse import parse_datetime

from sse_keepalive.models import Endpoint
from sse_keepalive.switches import AS_IN_CODE, Switch, switches

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    """Return what the command prints."""
    output = StringIO()
    call_command("sse_endpoints", *arguments, stdout=output)
    return output.getvalue()


def decided(name: str) -> tuple[Any, ...]:
    fields: tuple[Any, ...] = Endpoint.objects.values_list(*Switch._fields).get(name=name)
    return fields


@pytest.fixture
def endpoints() -> list[Endpoint]:
    return [
        Endpoint.objects.create(name="news"),
        Endpoint.objects.create(name="chat", keep_alive=False, interval=20.5, frame="LINE", is_open=False),
    ]


def test_s7_without_endpoints_the_command_says_so() -> None:
    assert run() == "No endpoint has been asked for yet.\n"
    assert json.loads(run("--json")) == []


@pytest.mark.usefixtures("endpoints")
def test_s7_the_command_lists_the_endpoints() -> None:
    assert run().splitlines() == [
        "endpoint  keep-alives  interval    frame       state",
        "chat      off          20.5 s      LINE        stopped",
        "news      on           as in code  as in code  open",
    ]


def test_s7_the_command_lists_them_for_programs_too(endpoints: list[Endpoint]) -> None:
    chat, news = json.loads(run("--json"))
    assert parse_datetime(chat.pop("updated_at")) == endpoints[1].updated_at
    assert chat == {"name": "chat", "keep_alive": False, "interval": 20.5, "frame": "LINE", "is_open": False}
    news.pop("updated_at")
    assert news == {"name": "news", "keep_alive": True, "interval": None, "frame": None, "is_open": True}


@pytest.mark.parametrize(
    ("option", "before", "after"),
    [
        ("--on", (False, 20.0, "LINE", False), (True, 20.0, "LINE", False)),
        ("--off", (True, 20.0, "LINE", True), (False, 20.0, "LINE", True)),
        ("--open", (False, 20.0, "LINE", False), (False, 20.0, "LINE", True)),
        ("--stop", (True, 20.0, "LINE", True), (True, 20.0, "LINE", False)),
    ],
)
def test_s7_an_option_sets_one_state(option: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    for name in ("chat", "news"):
        Endpoint.objects.create(name=name, **dict(zip(Switch._fields, before, strict=True)))
    for _ in range(2):
        assert "chat" in run(option, "chat")
        assert decided("chat") == after
        assert decided("news") == before


@pytest.mark.usefixtures("endpoints")
def test_s7_several_options_take_effect_together_and_before_the_list() -> None:
    output = run("--off", "news", "--on", "chat", "--stop", "news", "--open", "chat", "--json")
    assert decided("news") == (False, None, "", False)
    assert decided("chat") == (True, 20.5, "LINE", True)
    assert [(row["name"], row["keep_alive"]) for row in json.loads(output)] == [("chat", True), ("news", False)]
    run("--stop", "news", "--stop", "chat")
    assert not Endpoint.objects.filter(is_open=True).exists()


@pytest.mark.usefixtures("endpoints")
@pytest.mark.parametrize("options", [("--on", "--off"), ("--open", "--stop")])
def test_s7_options_that_contradict_each_other_set_nothing(options: tuple[str, str]) -> None:
    before = decided("news")
    with pytest.raises(CommandError, match="contradict each other for news"):
        run(options[0], "news", options[1], "news")
    assert decided("news") == before


@pytest.mark.usefixtures("endpoints")
def test_s7_a_name_that_there_is_not_sets_nothing() -> None:
    with pytest.raises(CommandError, match=r"no endpoint 'New', 'none'\. An endpoint appears at its first"):
        run("--off", "news", "--stop", "none", "--on", "New")
    assert decided("news") == AS_IN_CODE


@pytest.mark.django_db(transaction=True)
def test_s7_without_a_table_the_command_says_what_to_do() -> None:
    with connection.schema_editor() as editor:
        editor.delete_model(Endpoint)
    try:
        with pytest.raises(CommandError, match=r"no such table.*manage\.py migrate"):
            run()
        with pytest.raises(CommandError, match=r"manage\.py migrate"):
            run("--off", "news")
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(Endpoint)


@pytest.mark.django_db(transaction=True)
def test_s4_the_commands_own_process_obeys_at_once() -> None:
    Endpoint.objects.create(name="news")
    run("--off", "news", "--stop", "news")
    assert switches.get("news") == Switch(keep_alive=False, is_open=False)
