"""The admin: what operators see of each endpoint, and what a click or a form of theirs changes."""

import re
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils.html import escape
from pytest_django import Settings

from sse_keepalive import endpoints as endpoints_module
from sse_keepalive.admin import EndpointAdmin
from sse_keepalive.endpoints import remember
from sse_keepalive.frames import FRAMES
from sse_keepalive.models import Endpoint
from sse_keepalive.options import Options
from sse_keepalive.switches import Switch, switches

pytestmark = pytest.mark.django_db

LIST = "/admin/sse_keepalive/endpoint/"
LONG_AGO = datetime(2020, 7, 1, tzinfo=UTC)

#: Which state a field has, for each name of one.
STATES = {
    "on": ("keep_alive", True),
    "off": ("keep_alive", False),
    "open": ("is_open", True),
    "stop": ("is_open", False),
}
ACTIONS = {"on": "turn_on", "off": "turn_off", "open": "open", "stop": "stop"}


@pytest.fixture(autouse=True)
def site(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a site with the admin, to which code has said nothing so far."""
    urls = ModuleType("urls of a test")
    urls.urlpatterns = [path("admin/", admin.site.urls)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(endpoints_module, "_said", {})


def endpoint(name: str = "news", **values: Any) -> Endpoint:
    """Return an endpoint that was changed long ago."""
    made = Endpoint.objects.create(name=name, **values)
    Endpoint.objects.filter(pk=made.pk).update(updated_at=LONG_AGO)
    return made


def user_with(*actions: str, name: str = "operator") -> User:
    """Return a member of the staff who may do that with endpoints."""
    user = User.objects.create_user(name, password="", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{action}_endpoint" for action in actions]))
    return user


def client_of(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def client() -> Client:
    """Return the browser of an operator who may see and change endpoints, and nothing else."""
    return client_of(user_with("view", "change"))


def decided(made: Endpoint) -> Switch:
    return Switch(*Endpoint.objects.values_list(*Switch._fields).get(pk=made.pk))


def click(client: Client, made: Endpoint, state: str, query: str = "", **options: Any) -> Any:
    return client.post(f"{LIST}{made.pk}/set/{query}", {"state": state}, **options)


def texts_of(client: Client, name: str, query: str = "") -> dict[str, str]:
    """Return what the row of an endpoint says in each of its columns, without the tags."""
    page = client.get(LIST + query).content.decode()
    (row,) = (row for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if f">{escape(name)}</a>" in row)
    cells = re.findall(r'<t[dh] class="field-(\w+)[^>]*>(.*?)</t[dh]>', row, re.DOTALL)
    return {column: " ".join(re.sub(r"<[^>]*>", " ", cell).split()) for column, cell in cells}


def buttons_of(page: str) -> list[tuple[str, str]]:
    """Return the address and the state of every button in a list."""
    return re.findall(r'<button[^>]* formaction="([^"]*)" formmethod="post" name="state" value="(\w+)"', page)


def messages_of(response: Any) -> list[tuple[str, str]]:
    return [(message.level_tag, str(message)) for message in get_messages(response.wsgi_request)]


def entries() -> list[tuple[str, str, str]]:
    """Return who has done what to which endpoint, the first first."""
    return [
        (entry.user.get_username(), entry.object_repr, entry.get_change_message())
        for entry in LogEntry.objects.order_by("pk").select_related("user")
    ]


# S7: clicks.


@pytest.mark.parametrize("state", STATES)
def test_s7_one_click_sets_one_state_and_leaves_an_entry(client: Client, state: str) -> None:
    field, value = STATES[state]
    values: dict[str, Any] = {"keep_alive": True, "is_open": True, "interval": 20.0, "frame": "LINE", field: not value}
    made, unasked = endpoint(**values), endpoint("unasked", **values)
    response = click(client, made, state)
    assert (response.status_code, response["Location"]) == (302, f"{LIST}?")
    assert decided(made) == Switch(**{**values, field: value})
    assert decided(unasked) == Switch(**values)
    [(who, which, what)] = entries()
    assert (who, which) == ("operator", "news")
    [(level, text)] = messages_of(response)
    assert level == "success"
    assert "news" in text
    assert what in text


@pytest.mark.parametrize("state", STATES)
def test_s7_a_click_that_changes_nothing_leaves_no_entry(client: Client, state: str) -> None:
    """It sets a state: who is late, or clicks twice, undoes nothing."""
    field, value = STATES[state]
    made = endpoint("news", **{field: value})
    before = decided(made)
    for _ in range(2):
        assert click(client, made, state).status_code == 302
    assert decided(made) == before
    assert entries() == []
    made.refresh_from_db()
    assert made.updated_at == LONG_AGO


def test_s7_the_buttons_of_the_list_do_what_they_say(client: Client) -> None:
    made = endpoint()
    endpoint("stopped", is_open=False, keep_alive=False)

    def own_buttons() -> dict[str, str]:
        page = client.get(LIST).content.decode()
        return {state: address for address, state in buttons_of(page) if f"/{made.pk}/" in address}

    for state, then in (
        ("off", ["on", "stop"]),
        ("stop", ["on", "open"]),
        ("on", ["off", "open"]),
        ("open", ["off", "stop"]),
    ):
        address = own_buttons()[state].replace("&amp;", "&")
        assert client.post(address, {"state": state}, follow=True).status_code == 200
        assert list(own_buttons()) == then
    assert [what for _, _, what in entries()] == [
        "Keep-alives turned off.",
        "Stopped.",
        "Keep-alives turned on.",
        "Opened.",
    ]


def test_s7_a_button_works_within_the_form_of_the_list(client: Client) -> None:
    """Its action, its checkboxes and its search are sent along, and are not looked at."""
    made, other = endpoint(), endpoint("other")
    data = {"state": "stop", "action": "turn_off", "_selected_action": [other.pk], "select_across": "1", "index": "0"}
    client.post(f"{LIST}{made.pk}/set/", data)
    assert decided(made) == Switch(is_open=False)
    assert decided(other) == Switch()


def test_s7_filters_are_kept_after_a_click(client: Client) -> None:
    for number in range(3):
        endpoint(f"news {number}")
    query = "?is_open__exact=1&q=news+%261&o=-1.2"
    endpoint("news &1")
    page = client.get(LIST + query).content.decode()
    for address, state in buttons_of(page):
        response = client.post(address.replace("&amp;", "&"), {"state": state})
        back = urlsplit(response["Location"])
        assert back.path == LIST
        assert parse_qs(back.query) == parse_qs(query[1:])
    assert len(buttons_of(page)) == 2


def test_s7_the_page_of_the_list_is_kept_after_a_click(client: Client) -> None:
    Endpoint.objects.bulk_create([Endpoint(name=f"news {number:03}") for number in range(150)])
    page = client.get(f"{LIST}?p=2").content.decode()
    address, state = buttons_of(page)[0]
    response = client.post(address.replace("&amp;", "&"), {"state": state})
    assert parse_qs(urlsplit(response["Location"]).query) == {"p": ["2"]}


@pytest.mark.parametrize("query", ["//evil.example/", "x\r\nSet-Cookie: a=b", "&next=https://evil.example"])
def test_s7_a_click_never_leads_elsewhere(client: Client, query: str) -> None:
    response = client.post(
        f"{LIST}{endpoint().pk}/set/", {"state": "off"}, QUERY_STRING=f"_changelist_filters={query}"
    )
    assert response["Location"].startswith(f"{LIST}?")
    assert "\n" not in response["Location"]


# S7: who may.


def test_s7_who_may_only_look_sees_no_buttons_and_can_press_none() -> None:
    made = endpoint()
    client = client_of(user_with("view"))
    page = client.get(LIST).content.decode()
    assert texts_of(client, "news")["keep_alive_state"] == "on"
    assert buttons_of(page) == []
    assert 'name="action"' not in page
    assert click(client, made, "off").status_code == 403
    assert decided(made) == Switch()
    assert entries() == []


@pytest.mark.parametrize("state", ["off", "nonsense"])
@pytest.mark.parametrize("exists", [True, False])
def test_s7_who_may_not_even_look_is_told_nothing(state: str, exists: bool) -> None:
    made = endpoint()
    client = client_of(user_with("add"))
    pk = made.pk if exists else made.pk + 1
    assert client.get(LIST).status_code == 403
    assert client.post(f"{LIST}{pk}/set/", {"state": state}).status_code == 403


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_s7_who_is_no_member_of_the_staff_is_sent_to_the_login(is_logged_in: bool) -> None:
    made = endpoint()
    client = Client()
    if is_logged_in:
        client.force_login(User.objects.create_user("customer", password=""))
    response = click(client, made, "off")
    assert response.status_code == 302
    assert response["Location"].startswith("/admin/login/")
    assert decided(made) == Switch()


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_s7_only_a_post_changes_something(client: Client, method: str) -> None:
    """A link, a crawler or a browser that looks ahead does not."""
    made = endpoint()
    response = getattr(client, method)(f"{LIST}{made.pk}/set/?state=off")
    assert response.status_code == 405
    assert decided(made) == Switch()


def test_s7_a_click_needs_the_token_of_the_page() -> None:
    made = endpoint()
    user = user_with("view", "change")
    client = client_of(user, enforce_csrf_checks=True)
    assert click(client, made, "off").status_code == 403
    assert decided(made) == Switch()
    page = client.get(LIST).content.decode()
    form = page[page.index('id="changelist-form"') :]
    (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form.partition("</form>")[0])
    client.post(f"{LIST}{made.pk}/set/", {"state": "off", "csrfmiddlewaretoken": token})
    assert decided(made) == Switch(keep_alive=False)


@pytest.mark.parametrize("data", [{}, {"state": ""}, {"state": "toggle"}, {"state": "keep_alive"}])
def test_s7_a_state_that_there_is_not_is_a_bad_request(client: Client, data: dict[str, str]) -> None:
    made = endpoint()
    assert client.post(f"{LIST}{made.pk}/set/", data).status_code == 400
    assert decided(made) == Switch()
    assert entries() == []


@pytest.mark.parametrize("key", ["0", "none", "1_2F2"])
def test_s7_an_endpoint_that_is_gone_leads_back_with_a_message(client: Client, key: str) -> None:
    endpoint()
    response = client.post(f"{LIST}{key}/set/?_changelist_filters=q%3Dx", {"state": "off"})
    assert (response.status_code, response["Location"]) == (302, f"{LIST}?q=x")
    assert messages_of(response) == [("error", "This endpoint is not there any more.")]


# S7: bulk actions.


@pytest.mark.parametrize("state", STATES)
def test_s7_an_action_sets_the_state_of_those_that_were_chosen(client: Client, state: str) -> None:
    field, value = STATES[state]
    changing = [endpoint(name, **{field: not value}) for name in ("a", "b")]
    staying, unasked = endpoint("c", **{field: value}), endpoint("d", **{field: not value})
    chosen = [made.pk for made in (*changing, staying)]
    response = client.post(LIST, {"action": ACTIONS[state], "_selected_action": chosen})
    assert response.status_code == 302
    assert [getattr(decided(made), field) for made in (*changing, staying)] == [value] * 3
    assert getattr(decided(unasked), field) is not value
    assert [(who, which) for who, which, _ in entries()] == [("operator", "a"), ("operator", "b")]
    [(level, text)] = messages_of(response)
    assert level == "success"
    assert text == f"2 endpoints: {entries()[0][2]}"
    response = client.post(LIST, {"action": ACTIONS[state], "_selected_action": [unasked.pk]})
    assert messages_of(response)[-1][1].startswith("1 endpoint: ")


def test_s7_an_action_reaches_all_that_a_filter_shows_on_whatever_page(client: Client) -> None:
    Endpoint.objects.bulk_create([Endpoint(name=f"news {number:03}") for number in range(150)])
    other = endpoint("other")
    shown = Endpoint.objects.filter(name__startswith="news")
    data = {"action": "stop", "_selected_action": [shown[0].pk], "select_across": "1"}
    client.post(f"{LIST}?q=news&keep_alive__exact=1", data)
    assert set(shown.values_list("is_open", flat=True)) == {False}
    assert decided(other) == Switch()
    assert len(entries()) == 150
    # Also by a filter on the very state that the action changes.
    client.post(
        f"{LIST}?is_open__exact=0", {"action": "open", "_selected_action": [shown[0].pk], "select_across": "1"}
    )
    assert set(shown.values_list("is_open", flat=True)) == {True}
    assert len(entries()) == 300


def test_s7_an_action_is_for_those_who_may_change_endpoints() -> None:
    made = endpoint()
    client = client_of(user_with("view", "delete"))
    page = client.get(LIST).content.decode()
    assert "delete_selected" in page
    for state, action in ACTIONS.items():
        assert f'value="{action}"' not in page
        client.post(LIST, {"action": action, "_selected_action": [made.pk]})
        assert decided(made) == Switch(), state
    assert entries() == []


# S7: the form.


def form_of(client: Client, address: str) -> dict[str, str]:
    """Return the fields of the form as a browser has them, for it to be sent some other time."""
    response = client.get(address)
    assert response.status_code == 200
    fields: dict[str, str] = {}
    form = response.context["adminform"].form
    for bound in form:
        value = bound.value()
        fields[bound.html_name] = "" if value is None else str(value)
        if bound.field.show_hidden_initial:
            fields[bound.html_initial_name] = fields[bound.html_name]
    return fields


def test_s7_the_form_changes_intervals_and_frames(client: Client) -> None:
    made = endpoint()
    address = f"{LIST}{made.pk}/change/"
    form = form_of(client, address)
    assert {name for name in form if not name.startswith("initial-")} == {"interval", "frame"}
    assert client.post(address, {**form, "interval": "20.5", "frame": "LINE"}).status_code == 302
    assert decided(made) == Switch(interval=20.5, frame="LINE")
    [(who, which, what)] = entries()
    assert (who, which) == ("operator", "news")
    assert "nterval" in what
    assert "rame" in what
    client.post(address, {**form_of(client, address), "interval": "", "frame": ""})
    assert decided(made) == Switch()
    made.refresh_from_db()
    assert made.updated_at > LONG_AGO


@pytest.mark.parametrize("interval", ["0", "0.5", "-1", "nan", "inf", "1e9", "x"])
def test_s2_the_form_takes_no_interval_that_makes_no_sense(client: Client, interval: str) -> None:
    made = endpoint()
    address = f"{LIST}{made.pk}/change/"
    response = client.post(address, {**form_of(client, address), "interval": interval})
    assert response.status_code == 200
    assert list(response.context["adminform"].form.errors) == ["interval"]
    assert decided(made) == Switch()


def test_s2_the_form_offers_the_frames_that_code_defines_and_takes_no_other(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRAMES, "PING", ": ping\n\n")
    made = endpoint()
    address = f"{LIST}{made.pk}/change/"
    page = client.get(address).content.decode()
    assert re.findall(r'<option value="(\w*)"', page) == ["", "COMMENT", "LINE", "EVENT", "PING"]
    assert client.post(address, {**form_of(client, address), "frame": ": ping\n\n"}).status_code == 200
    assert decided(made) == Switch()
    client.post(address, {**form_of(client, address), "frame": "PING"})
    assert decided(made) == Switch(frame="PING")


@pytest.mark.parametrize(
    ("colleague", "own", "then"),
    [
        ({"interval": 20.0}, {"frame": "LINE"}, Switch(interval=20.0, frame="LINE")),
        ({"frame": "EVENT"}, {"interval": "30"}, Switch(interval=30.0, frame="EVENT")),
        ({"is_open": False}, {"interval": "30"}, Switch(interval=30.0, is_open=False)),
        ({"keep_alive": False}, {"frame": "LINE"}, Switch(keep_alive=False, frame="LINE")),
        (
            {"interval": 20.0, "frame": "EVENT", "is_open": False},
            {},
            Switch(interval=20.0, frame="EVENT", is_open=False),
        ),
        ({"interval": 20.0}, {"interval": "30"}, Switch(interval=30.0)),
    ],
)
def test_s7_a_form_that_was_opened_before_undoes_nothing_of_a_colleagues(
    client: Client, colleague: dict[str, Any], own: dict[str, str], then: Switch
) -> None:
    made = endpoint()
    address = f"{LIST}{made.pk}/change/"
    form = form_of(client, address)
    Endpoint.objects.filter(pk=made.pk).update(**colleague)
    assert client.post(address, {**form, **own}).status_code == 302
    assert decided(made) == then


def test_s7_a_form_cannot_set_what_has_buttons_nor_another_name(client: Client) -> None:
    made = endpoint()
    address = f"{LIST}{made.pk}/change/"
    page = client.get(address).content.decode()
    assert buttons_of(page) == []
    client.post(address, {**form_of(client, address), "name": "x", "keep_alive": "", "is_open": "", "interval": "20"})
    assert decided(made) == Switch(interval=20.0)
    assert Endpoint.objects.get().name == "news"


def test_s7_who_may_add_endpoints_can_prepare_one_that_has_not_been_asked_for() -> None:
    client = client_of(user_with("view", "add", "change"))
    form = form_of(client, f"{LIST}add/")
    assert {name for name in form if not name.startswith("initial-")} == {"name", "interval", "frame"}
    assert client.post(f"{LIST}add/", {**form, "name": "news", "interval": "20"}).status_code == 302
    assert decided(Endpoint.objects.get(name="news")) == Switch(interval=20.0)
    assert [(who, which) for who, which, _ in entries()] == [("operator", "news")]
    assert client.post(f"{LIST}add/", {**form, "name": "news"}).status_code == 200


def test_s7_who_may_only_look_sees_the_form_without_fields() -> None:
    made = endpoint(interval=20)
    client = client_of(user_with("view"))
    address = f"{LIST}{made.pk}/change/"
    page = client.get(address).content.decode()
    assert "20 s, set here" in page
    assert client.post(address, {"interval": "30"}).status_code == 403
    assert decided(made) == Switch(interval=20.0)


# S7: what is shown.


@pytest.mark.parametrize(
    ("values", "said", "in_settings", "interval", "frame"),
    [
        ({}, Options(), {}, "15 s, from settings", "COMMENT, from settings"),
        ({}, Options(), {"INTERVAL": 2.5, "FRAME": "LINE"}, "2.5 s, from settings", "LINE, from settings"),
        ({}, Options(), {"INTERVAL": None}, "none, from settings", "COMMENT, from settings"),
        ({}, Options(interval=20, frame=": ping\n\n"), {}, "20 s, from code", r"': ping\n\n', from code"),
        ({}, Options(interval=0, frame=b": keep-alive\n"), {}, "none, from code", "LINE, from code"),
        (
            {"interval": 30.0, "frame": "EVENT"},
            Options(interval=20, frame="LINE"),
            {},
            "30 s, set here",
            "EVENT, set here",
        ),
        ({"frame": "GONE"}, Options(frame="LINE"), {}, "15 s, from settings", "LINE, from code"),
        ({"keep_alive": False, "interval": 30.0}, Options(), {}, "none: turned off", "-"),
        ({"is_open": False}, Options(), {}, "none: stopped", "-"),
        ({"is_open": False, "keep_alive": False}, Options(), {}, "none: stopped", "-"),
        (
            {},
            None,
            {},
            "15 s, from settings (or code)",
            "COMMENT, from settings (or code)",
        ),
        ({"interval": 30.0, "frame": "LINE"}, None, {}, "30 s, set here", "LINE, set here"),
    ],
)
def test_s2_the_list_says_what_is_in_force_and_who_says_so(
    client: Client,
    settings: Settings,
    values: dict[str, Any],
    said: Options | None,
    in_settings: dict[str, Any],
    interval: str,
    frame: str,
) -> None:
    for name, value in in_settings.items():
        setattr(settings, f"SSE_KEEPALIVE_{name}", value)
    made = endpoint(**values)
    if said is not None:
        remember("news", said)
    texts = texts_of(client, "news")
    assert (texts["interval_in_force"], texts["frame_in_force"]) == (escape(interval), escape(frame))
    form = client.get(f"{LIST}{made.pk}/change/").content.decode()
    assert escape(interval) in form
    assert escape(frame) in form


@pytest.mark.parametrize(
    ("values", "keep_alive", "is_open"),
    [
        ({}, "on Turn off", "open Stop"),
        ({"keep_alive": False}, "off Turn on", "open Stop"),
        ({"is_open": False}, "on Turn off", "stopped Open"),
    ],
)
def test_s7_the_list_says_in_which_state_each_endpoint_is(
    client: Client, values: dict[str, Any], keep_alive: str, is_open: str
) -> None:
    endpoint(**values)
    texts = texts_of(client, "news")
    assert (texts["keep_alive_state"], texts["open_state"]) == (keep_alive, is_open)


def test_s7_the_list_says_when_each_was_changed_last_and_by_whom(client: Client, admin_client: Client) -> None:
    made, other = endpoint(), endpoint("other")
    assert "2020" in texts_of(client, "news")["last_change"]
    assert " by " not in texts_of(client, "news")["last_change"]
    click(admin_client, made, "off")
    assert texts_of(client, "news")["last_change"].endswith(" by admin")
    assert " by " not in texts_of(client, "other")["last_change"]
    click(client, made, "on")
    assert texts_of(client, "news")["last_change"].endswith(" by operator")
    address = f"{LIST}{other.pk}/change/"
    admin_client.post(address, {**form_of(admin_client, address), "interval": "20"})
    assert texts_of(client, "other")["last_change"].endswith(" by admin")
    # What was changed in another way since is nobody's in particular.
    Endpoint.objects.filter(name="news").set_state("stop")
    assert " by " not in texts_of(client, "news")["last_change"]


def test_s7_a_form_that_is_saved_without_a_change_is_no_change(client: Client) -> None:
    made = endpoint(interval=20)
    address = f"{LIST}{made.pk}/change/"
    assert client.post(address, form_of(client, address)).status_code == 302
    made.refresh_from_db()
    assert made.updated_at == LONG_AGO
    assert entries() == []


def test_s7_a_name_is_shown_as_it_is(client: Client) -> None:
    name = '<script>alert("x")</script>&\'/_2F'
    made = endpoint(name)
    page = client.get(LIST).content.decode()
    assert "<script>alert" not in page
    assert escape(name) in page
    click(client, made, "off")
    page = client.get(LIST).content.decode()
    assert "<script>alert" not in page
    assert decided(made) == Switch(keep_alive=False)


def test_s7_the_list_can_be_searched_filtered_and_sorted(client: Client) -> None:
    endpoint("a", keep_alive=False, frame="LINE")
    endpoint("b", is_open=False, interval=20)
    for query, found in (
        ("?q=a", ["a"]),
        ("?keep_alive__exact=0", ["a"]),
        ("?is_open__exact=0", ["b"]),
        ("?frame__exact=LINE", ["a"]),
        *((f"?o={column}", None) for column in range(1, 7)),
    ):
        response = client.get(LIST + query)
        assert response.status_code == 200
        if found is not None:
            assert [made.name for made in response.context["cl"].result_list] == found


@pytest.mark.parametrize("may_change", [True, False])
def test_s7_the_list_costs_as_many_queries_for_many_rows_as_for_one(may_change: bool, admin_client: Client) -> None:
    client = client_of(user_with("view", *(["change"] if may_change else [])))

    def queries_with(rows: int) -> int:
        for number in range(Endpoint.objects.count(), rows):
            click(admin_client, endpoint(f"news {number}"), "off")
        client.get(LIST)  # what is cached from the first time on
        with CaptureQueriesContext(connection) as captured:
            assert client.get(LIST).content.count(b" by admin") == rows
        return len(captured)

    assert queries_with(1) == queries_with(30) < 15


def test_s7_the_list_brings_its_style(client: Client) -> None:
    page = client.get(LIST).content.decode()
    assert "sse_keepalive/admin.css" in page


# And the streams.


@pytest.mark.django_db(transaction=True)
def test_s4_this_process_obeys_a_click_an_action_and_a_form_at_once(client: Client) -> None:
    made = endpoint()
    click(client, made, "stop")
    assert switches.get("news") == Switch(is_open=False)
    client.post(LIST, {"action": "turn_off", "_selected_action": [made.pk]})
    assert switches.get("news") == Switch(keep_alive=False, is_open=False)
    address = f"{LIST}{made.pk}/change/"
    client.post(address, {**form_of(client, address), "interval": "20"})
    assert switches.get("news") == Switch(keep_alive=False, interval=20.0, is_open=False)


def test_s7_the_address_of_a_button_has_a_name() -> None:
    assert reverse("admin:sse_keepalive_endpoint_set", args=[1]) == f"{LIST}1/set/"


def test_s7_another_site_of_the_admin_has_buttons_of_its_own(settings: Settings) -> None:
    other = admin.AdminSite("other")
    other.register(Endpoint, EndpointAdmin)
    urls = ModuleType("urls of a test")
    urls.urlpatterns = [path("other/", other.urls), path("admin/", admin.site.urls)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    made = endpoint()
    client = client_of(user_with("view", "change"))
    page = client.get("/other/sse_keepalive/endpoint/").content.decode()
    for address, state in buttons_of(page):
        assert address.startswith("/other/")
        response = client.post(address, {"state": state})
        assert response["Location"].startswith("/other/")
    assert decided(made) == Switch(keep_alive=False, is_open=False)
