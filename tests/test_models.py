"""The table of endpoints: what it takes, and how a state is set without touching what else was decided."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.test import override_settings

from sse_keepalive.frames import FRAMES
from sse_keepalive.models import STATES, Endpoint
from sse_keepalive.switches import AS_IN_CODE, Switch, switches

pytestmark = pytest.mark.django_db

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def endpoint(name: str = "named", **values: Any) -> Endpoint:
    """Return an endpoint that was changed long ago."""
    made = Endpoint.objects.create(name=name, **values)
    Endpoint.objects.filter(pk=made.pk).update(updated_at=LONG_AGO)
    return made


# S2: what can be decided.


def test_s2_an_endpoint_that_nobody_has_decided_about_is_as_in_code() -> None:
    made = Endpoint.objects.create(name="named")
    made.full_clean()
    assert Switch(made.keep_alive, made.interval, made.frame, made.is_open) == AS_IN_CODE
    assert str(made) == "named"


@pytest.mark.parametrize("interval", [None, 1, 1.5, 15, 86_400])
def test_s2_an_interval_is_a_second_at_least_and_a_day_at_most(interval: float | None) -> None:
    made = Endpoint(name="named", interval=interval)
    made.full_clean()
    made.save()
    made.refresh_from_db()
    assert made.interval == interval


WAYS_TO_SAVE: dict[str, Callable[[Endpoint], Any]] = {
    "save": lambda made: made.save(),
    "bulk_create": lambda made: Endpoint.objects.bulk_create([made]),
    "update": lambda made: Endpoint.objects.update(interval=made.interval),
}


@pytest.mark.parametrize("interval", [0, 0.5, 0.999, -1, -math.inf, 86_401, math.inf], ids=str)
@pytest.mark.parametrize("way", WAYS_TO_SAVE)
def test_s2_the_database_refuses_any_other_interval(interval: float, way: str) -> None:
    endpoint("other")
    made = Endpoint(name="named", interval=interval)
    with pytest.raises(ValidationError):
        made.full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        WAYS_TO_SAVE[way](made)


def test_s2_no_interval_is_nan() -> None:
    """SQLite takes it for NULL, which is as in code; forms take no such number, and other databases no such row."""
    made = Endpoint(name="named", interval=math.nan)
    if connection.vendor == "sqlite":
        made.save()
        made.refresh_from_db()
        assert made.interval is None
    else:
        with pytest.raises(IntegrityError), transaction.atomic():
            made.save()


@pytest.mark.parametrize("frame", ["", *FRAMES])
def test_s2_a_frame_is_one_of_those_that_code_defines(frame: str) -> None:
    Endpoint(name="named", frame=frame).full_clean()


@pytest.mark.parametrize("frame", ["comment", ": ping\n\n", "PING", "data: x\n\n"])
def test_s2_nobody_can_type_a_frame(frame: str) -> None:
    with pytest.raises(ValidationError, match="not a valid choice"):
        Endpoint(name="named", frame=frame).full_clean()


def test_s2_a_frame_that_code_defines_anew_can_be_chosen_and_owes_no_migration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FRAMES, "PING", ": ping\n\n")
    Endpoint(name="named", frame="PING").full_clean()
    call_command("makemigrations", "sse_keepalive", check=True, dry_run=True, stdout=StringIO())


def test_s1_the_migrations_are_complete() -> None:
    output = StringIO()
    call_command("makemigrations", "sse_keepalive", check=True, dry_run=True, stdout=output)
    assert "No changes detected" in output.getvalue()


def test_s1_a_site_may_have_another_kind_of_primary_keys() -> None:
    with override_settings(DEFAULT_AUTO_FIELD="django.db.models.AutoField"):
        call_command("makemigrations", "sse_keepalive", check=True, dry_run=True, stdout=StringIO())


def test_s1_a_name_is_there_once() -> None:
    Endpoint.objects.create(name="named")
    with pytest.raises(IntegrityError):
        Endpoint.objects.create(name="named")


def test_s1_endpoints_come_by_name() -> None:
    for name in ("b", "c", "a"):
        endpoint(name)
    assert [made.name for made in Endpoint.objects.all()] == ["a", "b", "c"]


# S7: one decision at a time.


@pytest.mark.parametrize(
    ("state", "field", "value"),
    [("on", "keep_alive", True), ("off", "keep_alive", False), ("open", "is_open", True), ("stop", "is_open", False)],
)
def test_s7_a_state_is_set_and_nothing_else(state: str, field: str, value: bool) -> None:
    decided: dict[str, Any] = {"keep_alive": True, "is_open": True, "interval": 20, "frame": "LINE", field: not value}
    made = endpoint(**decided)
    unasked = endpoint("unasked", **decided)
    assert Endpoint.objects.filter(name="named").set_state(state) == [made]
    expected = {**decided, field: value}
    assert Endpoint.objects.filter(pk=made.pk).values(*expected).get() == expected
    assert Endpoint.objects.filter(pk=unasked.pk).values(*decided).get() == decided
    made.refresh_from_db()
    assert made.updated_at > LONG_AGO


@pytest.mark.parametrize("state", STATES)
def test_s7_what_is_in_that_state_already_does_not_change(state: str) -> None:
    field, value = STATES[state]
    changing = endpoint("changing", **{field: not value})
    staying = endpoint("staying", **{field: value})
    assert Endpoint.objects.set_state(state) == [changing]
    assert Endpoint.objects.all().set_state(state) == []
    staying.refresh_from_db()
    assert staying.updated_at == LONG_AGO


def test_s7_the_endpoints_may_be_chosen_by_what_is_changed() -> None:
    """Where they are looked for once more they would not be found any more."""
    made = [endpoint("a"), endpoint("b")]
    assert Endpoint.objects.filter(keep_alive=True).order_by("-name").set_state("off") == made[::-1]
    assert not Endpoint.objects.filter(keep_alive=True).exists()


def test_s7_a_state_that_there_is_not_is_an_error() -> None:
    endpoint()
    with pytest.raises(KeyError):
        Endpoint.objects.all().set_state("toggle")


def test_s7_a_state_is_part_of_the_transaction_around_it() -> None:
    endpoint()
    with transaction.atomic():
        assert len(Endpoint.objects.all().set_state("stop")) == 1
        transaction.set_rollback(True)
    assert Endpoint.objects.get().is_open


def test_s7_who_keeps_a_log_is_told_of_each_change_in_the_same_transaction() -> None:
    endpoint("on")
    endpoint("off", keep_alive=False)
    told: list[str] = []
    Endpoint.objects.all().set_state("off", log=lambda made: told.append(made.name))
    assert told == ["on"]

    def fail(made: Endpoint) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        Endpoint.objects.all().set_state("stop", log=fail)
    assert not Endpoint.objects.filter(is_open=False).exists()


@pytest.mark.django_db(transaction=True)
def test_s7_this_process_obeys_at_once() -> None:
    endpoint()
    Endpoint.objects.filter(name="named").set_state("stop")
    assert switches.get("named") == Switch(is_open=False)
    Endpoint.objects.using("default").filter(name="named").set_state("open")
    assert switches.get("named") == AS_IN_CODE
