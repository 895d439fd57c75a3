"""What an operator has decided about each endpoint, as a table."""

from collections.abc import Callable
from typing import Final

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, router, transaction
from django.db.models import Q
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from sse_keepalive.frames import FRAMES
from sse_keepalive.switches import LONGEST_INTERVAL, LONGEST_NAME, SHORTEST_INTERVAL, switches

#: What one decision sets: a field and its value.
STATES: Final = {
    "on": ("keep_alive", True),
    "off": ("keep_alive", False),
    "open": ("is_open", True),
    "stop": ("is_open", False),
}


def frame_choices() -> list[tuple[str, str]]:
    """Return the frames that code defines. A function, so that a new one owes no migration."""
    return [(name, name) for name in FRAMES]


class EndpointQuerySet(models.QuerySet["Endpoint"]):
    """Endpoints, whose state can be set without touching what else was decided about them."""

    def set_state(self, name: str, *, log: Callable[["Endpoint"], object] | None = None) -> list["Endpoint"]:
        """
        Set a state of :data:`STATES`, whatever else was decided, and return those endpoints that this has changed.

        This process obeys at once, every other as soon as it reads the table again.

        :param log: called with each of these, in the same transaction.
        """
        field, value = STATES[name]
        using = self._db or router.db_for_write(self.model)  # type: ignore[attr-defined]
        endpoints = list(self.using(using))
        changed = []
        # It begins with a write: SQLite waits for others before a transaction has read anything, but not afterwards.
        with transaction.atomic(using=using):
            for endpoint in endpoints:
                others = Endpoint.objects.using(using).filter(pk=endpoint.pk).exclude(**{field: value})
                if others.update(**{field: value}, updated_at=now()):
                    changed.append(endpoint)
            for endpoint in changed:
                if log is not None:
                    log(endpoint)
            switches.reload_on_commit(using)
        return changed


class Endpoint(models.Model):
    """A view, or several, whose event streams an operator can switch."""

    name = models.CharField(
        _("endpoint"),
        max_length=LONGEST_NAME,
        unique=True,
        help_text=_(
            "The name in the code: endpoint=, or else that of the URL pattern. It appears at its first request."
        ),
    )
    keep_alive = models.BooleanField(
        _("keep-alives"),
        default=True,
        help_text=_(
            "Turned off, open streams fall silent within seconds, whatever code or settings say. Turned on, they have "
            "keep-alives again where there is an interval for them."
        ),
    )
    interval = models.FloatField(
        _("interval"),
        null=True,
        blank=True,
        validators=[MinValueValidator(SHORTEST_INTERVAL), MaxValueValidator(LONGEST_INTERVAL)],
        help_text=_(
            "Seconds of silence before a keep-alive. Empty: as the code or the settings say. Open streams follow "
            "within seconds, also those that have sent no keep-alives so far."
        ),
    )
    frame = models.CharField(
        _("frame"),
        max_length=50,
        blank=True,
        choices=frame_choices,
        help_text=_(
            "What a keep-alive is: COMMENT is a comment and a blank line, LINE has no blank line, EVENT is an event "
            "that JavaScript can see. Empty: as the code or the settings say. Open streams send it from their next "
            "keep-alive on."
        ),
    )
    is_open = models.BooleanField(
        _("open"),
        default=True,
        help_text=_(
            "Stopped, open streams end within seconds, each behind a whole event, and new ones are refused until it "
            "is opened again."
        ),
    )
    updated_at = models.DateTimeField(_("last changed"), auto_now=True)

    objects = EndpointQuerySet.as_manager()

    class Meta:
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                # The upper bound is also what keeps infinity and NaN out.
                condition=Q(interval__isnull=True) | Q(interval__range=(SHORTEST_INTERVAL, LONGEST_INTERVAL)),
                name="sse_keepalive_endpoint_interval",
            ),
        )

    def __str__(self) -> str:
        return self.name
