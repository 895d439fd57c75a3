"""The switches, for operators: a list with a button for each decision, and a form for intervals and frames."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from sse_keepalive.endpoints import said_in_code
from sse_keepalive.frames import FRAMES
from sse_keepalive.models import STATES, Endpoint, EndpointQuerySet
from sse_keepalive.options import Options, Source
from sse_keepalive.switches import Switch

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Endpoint]
else:
    ModelAdmin = admin.ModelAdmin  # which takes no parameter when it runs


class Texts(NamedTuple):
    """How a state is called: on its button, in the list of actions, and in the history of the endpoint."""

    button: Any
    action: Any
    done: Any


TEXTS: Final = {
    "on": Texts(_("Turn on"), _("Turn keep-alives on"), _("Keep-alives turned on.")),
    "off": Texts(_("Turn off"), _("Turn keep-alives off"), _("Keep-alives turned off.")),
    "open": Texts(_("Open"), _("Open endpoints"), _("Opened.")),
    "stop": Texts(_("Stop"), _("Stop endpoints and end their streams"), _("Stopped.")),
}

SOURCES: Final = {
    Source.OPERATOR: _("set here"),
    Source.CODE: _("from code"),
    Source.SETTINGS: _("from settings"),
}


class EndpointList(ChangeList):
    """The list, whose rows know who is looking at them and who has changed them last."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        may_change = self.model_admin.has_change_permission(request)
        entries = _last_entries(self.result_list)
        for endpoint in self.result_list:
            endpoint.button_query = self.model_admin.get_preserved_filters(request) if may_change else None
            endpoint.last_entry = entries.get(str(endpoint.pk))


@admin.register(Endpoint)
class EndpointAdmin(ModelAdmin):
    """Each endpoint, what is in force for it, and why."""

    list_display = ("name", "keep_alive_state", "open_state", "interval_in_force", "frame_in_force", "last_change")
    list_filter = ("keep_alive", "is_open", "frame")
    search_fields = ("name",)
    actions = ("turn_on", "turn_off", "open", "stop")

    class Media:
        css = {"all": ["sse_keepalive/admin.css"]}  # noqa: RUF012 - as Django has it

    # What is shown.

    @admin.display(description=_("keep-alives"), ordering="keep_alive")
    def keep_alive_state(self, endpoint: Endpoint) -> str:
        if endpoint.keep_alive:
            return self._state(endpoint, gettext("on"), "off")
        return self._state(endpoint, gettext("off"), "on")

    @admin.display(description=_("state"), ordering="is_open")
    def open_state(self, endpoint: Endpoint) -> str:
        if endpoint.is_open:
            return self._state(endpoint, gettext("open"), "stop")
        return self._state(endpoint, gettext("stopped"), "open")

    def _state(self, endpoint: Endpoint, now: str, button: str) -> str:
        """Show a state, and the button that ends it to those who may press it."""
        kind = "changed" if button in ("on", "open") else "usual"
        state = format_html('<span class="sse-state sse-{}">{}</span>', kind, now)
        query = getattr(endpoint, "button_query", None)
        if query is None:
            return state
        # Within the form of the list, whose token it needs; what else is in that form is not looked at.
        url = reverse(f"{self.admin_site.name}:sse_keepalive_endpoint_set", args=[endpoint.pk])
        return format_html(
            '{} <button type="submit" class="button sse-set" formaction="{}?{}" formmethod="post" name="state" '
            'value="{}" aria-label="{} {}" title="{}">{}</button>',
            *(state, url, query, button, TEXTS[button].button, endpoint.name),
            *(_help_text(STATES[button][0]), TEXTS[button].button),
        )

    @admin.display(description=_("interval"), ordering="interval")
    def interval_in_force(self, endpoint: Endpoint) -> str:
        """Return how long a stream may be silent, and who says so."""
        if not endpoint.is_open:
            return gettext("none: stopped")
        seconds, source = _options(endpoint).interval_in_force(_switch(endpoint))
        if not endpoint.keep_alive:
            return gettext("none: turned off")
        interval = gettext("%(seconds)g s") % {"seconds": seconds} if seconds else gettext("none")
        return self._with_source(endpoint, interval, source)

    @admin.display(description=_("frame"), ordering="frame")
    def frame_in_force(self, endpoint: Endpoint) -> str:
        """Return what a keep-alive is, and who says so."""
        if not (endpoint.is_open and endpoint.keep_alive):
            return self.get_empty_value_display()
        frame, source = _options(endpoint).frame_in_force(_switch(endpoint))
        text = frame if isinstance(frame, str) else frame.decode(errors="replace")
        name = next((name for name, ready_made in FRAMES.items() if text in (name, ready_made)), repr(text))
        return self._with_source(endpoint, name, source)

    def _with_source(self, endpoint: Endpoint, value: str, source: Source) -> str:
        text = gettext("%(value)s, %(source)s") % {"value": value, "source": SOURCES[source]}
        if source is Source.SETTINGS and said_in_code(endpoint.name) is None:
            # Another process has served it, and this one cannot know with what arguments.
            text += " " + gettext("(or code)")
        return text

    @admin.display(description=_("in force"))
    def in_force(self, endpoint: Endpoint) -> str:
        """Return the same for the form."""
        parts = (self.interval_in_force(endpoint), self.frame_in_force(endpoint))
        return "; ".join(part for part in parts if part != self.get_empty_value_display())

    @admin.display(description=_("last changed"), ordering="updated_at")
    def last_change(self, endpoint: Endpoint) -> str:
        """Return when it was, and by whom where that happened in the admin."""
        at = endpoint.updated_at
        when = date_format(localtime(at) if is_aware(at) else at, "SHORT_DATETIME_FORMAT")
        if hasattr(endpoint, "last_entry"):
            entry = endpoint.last_entry
        else:
            entry = _last_entries([endpoint]).get(str(endpoint.pk))
        # An entry is made behind its change. If the endpoint is newer, it was changed in another way since.
        if entry is None or entry.action_time < endpoint.updated_at:
            return when
        return gettext("%(when)s by %(user)s") % {"when": when, "user": entry.user.get_username()}

    # What is changed.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return EndpointList

    def get_readonly_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> tuple[str, ...]:
        # States have buttons in the list. In a form, they would be set back to what they were when it was opened.
        return () if obj is None else ("name", "keep_alive_state", "open_state", "in_force", "last_change")

    def get_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("name", "interval", "frame")
        return ("name", "keep_alive_state", "open_state", "interval", "frame", "in_force", "last_change")

    def get_form(self, request: HttpRequest, obj: Endpoint | None = None, change: bool = False, **kwargs: Any) -> Any:
        # Of what is only shown, the admin does not know from which field it is.
        texts = {"keep_alive_state": _help_text("keep_alive"), "open_state": _help_text("is_open")}
        hint = gettext("There is a button for it in the list.") if self.has_change_permission(request, obj) else ""
        kwargs["help_texts"] = {name: f"{text} {hint}" for name, text in texts.items()}
        return super().get_form(request, obj, change, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest | None, **kwargs: Any) -> Any:
        # A field is changed if it differs from what the operator saw, not from what a colleague has set meanwhile.
        return super().formfield_for_dbfield(db_field, request, show_hidden_initial=True, **kwargs)  # type: ignore[arg-type]

    def save_model(self, request: HttpRequest, obj: Endpoint, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
        elif form.changed_data:
            obj.save(update_fields=[*form.changed_data, "updated_at"])

    def log_change(self, request: HttpRequest, obj: Endpoint, message: Any) -> Any:
        # Who has saved a form without a change in it has not changed the endpoint last.
        return super().log_change(request, obj, message) if message else None

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.set_view)
        return [path("<path:object_id>/set/", view, name="sse_keepalive_endpoint_set"), *super().get_urls()]

    @method_decorator(require_POST)
    def set_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Set a state, which is what a button of the list does."""
        endpoint = self.get_object(request, unquote(object_id))
        if not self.has_change_permission(request, endpoint):
            raise PermissionDenied
        name = request.POST.get("state", "")
        if name not in TEXTS:
            raise BadRequest(f"A state is one of {', '.join(TEXTS)}.")
        if endpoint is None:
            self.message_user(request, _("This endpoint is not there any more."), messages.ERROR)
        else:
            self._set(request, Endpoint.objects.filter(pk=endpoint.pk), name)
            # In quotation marks, or Django would write a name with a capital letter.
            text = gettext("“%(endpoint)s”: %(done)s") % {"endpoint": endpoint, "done": TEXTS[name].done}
            self.message_user(request, text, messages.SUCCESS)
        url = reverse(f"{self.admin_site.name}:sse_keepalive_endpoint_changelist")
        return HttpResponseRedirect(f"{url}?{request.GET.get('_changelist_filters', '')}")

    def _set(self, request: HttpRequest, endpoints: EndpointQuerySet, name: str) -> int:
        def log(endpoint: Endpoint) -> None:
            self.log_change(request, endpoint, str(TEXTS[name].done))

        return len(endpoints.set_state(name, log=log))

    def _act(self, request: HttpRequest, endpoints: EndpointQuerySet, name: str) -> None:
        count = self._set(request, endpoints, name)
        text = ngettext("%(count)d endpoint: %(done)s", "%(count)d endpoints: %(done)s", count)
        self.message_user(request, text % {"count": count, "done": TEXTS[name].done}, messages.SUCCESS)

    @admin.action(description=TEXTS["on"].action, permissions=["change"])
    def turn_on(self, request: HttpRequest, endpoints: EndpointQuerySet) -> None:
        self._act(request, endpoints, "on")

    @admin.action(description=TEXTS["off"].action, permissions=["change"])
    def turn_off(self, request: HttpRequest, endpoints: EndpointQuerySet) -> None:
        self._act(request, endpoints, "off")

    @admin.action(description=TEXTS["open"].action, permissions=["change"])
    def open(self, request: HttpRequest, endpoints: EndpointQuerySet) -> None:
        self._act(request, endpoints, "open")

    @admin.action(description=TEXTS["stop"].action, permissions=["change"])
    def stop(self, request: HttpRequest, endpoints: EndpointQuerySet) -> None:
        self._act(request, endpoints, "stop")


def _last_entries(endpoints: Iterable[Endpoint]) -> dict[str, LogEntry]:
    """Return what was logged last about each endpoint, by its key as the log has it."""
    keys = [str(endpoint.pk) for endpoint in endpoints]
    entries = LogEntry.objects.filter(content_type=get_content_type_for_model(Endpoint), object_id__in=keys)
    newest = entries.order_by().values("object_id").annotate(newest=Max("pk")).values("newest")
    return {str(entry.object_id): entry for entry in LogEntry.objects.filter(pk__in=newest).select_related("user")}


def _help_text(field: str) -> str:
    return str(Endpoint._meta.get_field(field).help_text)  # type: ignore[union-attr]


def _options(endpoint: Endpoint) -> Options:
    return said_in_code(endpoint.name) or Options()


def _switch(endpoint: Endpoint) -> Switch:
    return Switch(*(getattr(endpoint, field) for field in Switch._fields))
