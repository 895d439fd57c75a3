"""What Django does when the app is installed."""

from django.apps import AppConfig
from django.core.checks import register
from django.utils.translation import gettext_lazy as _

from sse_keepalive import checks


class SSEKeepAliveConfig(AppConfig):
    """The app, which adds its system checks to the site's."""

    name = "sse_keepalive"
    verbose_name = _("SSE keep-alive")

    def ready(self) -> None:
        for check in (checks.check_interval, checks.check_first_interval, checks.check_frame, checks.check_server):
            register(check)
