"""What live tests share: servers, each started when the first test asks for it, and an operator of a site."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from .operated_site import Operator, Site
from .servers import COMMANDS, LIFETIME, Server, running

Start = Callable[[str], Server]

#: A server of this age, in seconds, is replaced: it must not be killed for its age in the middle of a test.
OLD: Final = LIFETIME / 2


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return the function that gives a running server by its name."""
    # A parametrised session fixture would not do: in random order it restarts servers all the time.
    servers: dict[str, tuple[Server, contextlib.ExitStack]] = {}

    def started(name: str) -> Server:
        if name in servers:
            server, stack = servers[name]
            code = server.process.poll()
            if code is None and server.age < OLD:
                return server
            del servers[name]
            stack.close()
            assert code is None, f"{name} has ended with {code} since the last test:\n{server.log}"
        stack = contextlib.ExitStack()
        server = stack.enter_context(running(name, tmp_path_factory.mktemp(name) / "server"))
        servers[name] = server, stack
        return server

    yield started
    for _, stack in servers.values():
        stack.close()


@pytest.fixture(params=list(COMMANDS))
def server(request: pytest.FixtureRequest, start: Start) -> Server:
    """Return each of the servers in turn."""
    return start(request.param)


@pytest.fixture
def daphne(start: Start) -> Server:
    """Return a running Daphne."""
    return start("daphne")


# For the modules that have a site with an admin, their `running_site`.


@pytest.fixture
def site(running_site: Site) -> Iterator[Site]:
    """Return the site, on which nothing streams when the next test begins."""
    yield running_site
    running_site.leave_all()


@pytest.fixture(scope="module")
def operator(running_site: Site) -> Iterator[Operator]:
    """Return someone who is logged in to the admin."""
    with Operator(running_site) as operator:
        yield operator
