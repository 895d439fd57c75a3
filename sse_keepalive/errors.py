"""What goes wrong in a stream: who is told of it, and what the server may see of it."""

import asyncio
import logging
import sys

from django.core.exceptions import PermissionDenied
from django.core.signals import got_request_exception
from django.http import Http404, HttpRequest

from sse_keepalive.silence import cancellations_of_task

#: Where Django logs what goes wrong in a request.
logger = logging.getLogger("django.request")


def report_error(error: BaseException, request: HttpRequest | None, name: str) -> None:
    """Log what has gone wrong in the stream of that name, and send ``got_request_exception``, as Django would."""
    hint = ""
    if isinstance(error, Http404 | PermissionDenied):
        hint = (
            " The status was already sent when it was raised: check such things before the first yield, in a view "
            "that returns its stream."
        )
    logger.error(
        "Error in the event stream %s.%s",
        name,
        hint,
        exc_info=error,
        extra={"status_code": 500, "request": request},
    )
    got_request_exception.send_robust(sender=None, request=request)


def is_failure(error: BaseException) -> bool:
    """Whether it is the stream that has failed: not if its task is cancelled, it is closed, or the process ends."""
    if isinstance(error, asyncio.CancelledError):
        return cancellations_of_task() == 0  # nobody has asked for it
    return not isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit)


def is_served_by_daphne() -> bool:
    """
    Whether an exception must not reach the server: Daphne's client would wait for ever, and its clean-up stop.

    Daphne is the server only if its reactor runs; in INSTALLED_APPS it is imported under every server.
    """
    reactor = sys.modules.get("twisted.internet.reactor")
    return "daphne.server" in sys.modules and bool(getattr(reactor, "running", False))
