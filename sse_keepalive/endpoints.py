"""Which endpoint a request is for, what code says of it, and what a stopped one answers."""

from dataclasses import replace
from typing import Final

from django.http import HttpRequest, HttpResponse

from sse_keepalive.options import UNSET, Options, Unset
from sse_keepalive.switches import AS_IN_CODE, LONGEST_NAME, MOST_NAMES, Switch, switches

#: Seconds after which a client that is no event-stream client may ask again.
RETRY_AFTER: Final = 60

_said: Final[dict[str, Options]] = {}


def endpoint_of(request: HttpRequest | None, options: Options) -> str | None:
    """Return the name under which an operator finds a stream; ``None`` for one without a name."""
    if not isinstance(options.endpoint, Unset):
        return options.endpoint
    match = getattr(request, "resolver_match", None)
    return match.view_name[:LONGEST_NAME] if match is not None else None


def remember(name: str, options: Options) -> None:
    """Take note of what code says of an endpoint, to be shown to operators."""
    if name in _said or len(_said) < MOST_NAMES:
        _said[name] = replace(options, on_error=UNSET)  # which may hold anything


def said_in_code(name: str) -> Options | None:
    """Return what code has said at the endpoint's last request to this process; ``None`` if there was none."""
    return _said.get(name)


def switch_of(request: HttpRequest | None, options: Options) -> Switch:
    """Return what an operator has decided about the endpoint."""
    name = endpoint_of(request, options)
    return AS_IN_CODE if name is None else switches.get(name)


def refusal(request: HttpRequest | None, switch: Switch) -> HttpResponse | None:
    """
    Return what answers a request to an endpoint that is stopped; ``None`` if it is open.

    204 is the one status at which an ``EventSource`` stops to ask again without an error.
    https://html.spec.whatwg.org/multipage/server-sent-events.html#server-sent-events-intro
    """
    if switch.is_open:
        return None
    response = HttpResponse(status=204 if request is not None and _wants_events(request) else 503)
    response.headers["Cache-Control"] = "no-store"
    response._has_been_logged = True  # type: ignore[attr-defined]  # it is no error, of which Django would send mail
    if response.status_code == 204:
        del response.headers["Content-Type"]
    else:
        response.headers["Retry-After"] = str(RETRY_AFTER)
    return response


def _wants_events(request: HttpRequest) -> bool:
    # Not request.accepts(), which takes */* for a yes.
    return any(str(accepted).partition(";")[0] == "text/event-stream" for accepted in request.accepted_types)
