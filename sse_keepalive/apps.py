"""What Django does when the app is installed."""

from typing import Any

from django.apps import AppConfig
from django.core.checks import register
from django.db.models.signals import post_delete, post_migrate, post_save
from django.utils.translation import gettext_lazy as _

from sse_keepalive import checks
from sse_keepalive.switches import runs_tests, switches


class SSEKeepAliveConfig(AppConfig):
    """The app, which adds its system checks to the site's, and listens for changes of the switches."""

    name = "sse_keepalive"
    verbose_name = _("SSE keep-alive")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        for check in (
            checks.check_interval,
            checks.check_first_interval,
            checks.check_frame,
            checks.check_refresh,
            checks.check_server,
            checks.check_redis,
        ):
            register(check)
        for signal in (post_save, post_delete):
            signal.connect(read_again, sender=self.get_model("Endpoint"))
        post_migrate.connect(forget, sender=self)


def read_again(using: str, **kwargs: Any) -> None:
    """Let a change take effect in this process as soon as it is committed."""
    switches.reload_on_commit(using)


def forget(**kwargs: Any) -> None:
    """Forget what a test has decided: its tables were emptied."""
    if runs_tests():
        switches.forget()
