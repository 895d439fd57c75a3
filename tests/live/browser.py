"""A real browser for a test: Debian's Chromium, which Playwright drives without a window."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from .servers import START_WITHIN

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ARGUMENTS: Final = (
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    # Nothing but the tests' own pages: no look for news of any kind.
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium() -> Iterator["Browser"]:
    """
    Run a browser, which ends with the block.

    Playwright's event loop counts as running in this thread as long as the block lasts: no asynchronous test may run
    in between, and Django refuses the ORM. So a fixture of it lives for one test, which is a plain function.
    """
    from playwright.sync_api import sync_playwright  # `make test` does without, and collects who imports this

    program = shutil.which("chromium")
    if program is None:
        pytest.fail("There is no chromium on this machine. `make live` installs what the tests marked `peers` need.")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=program, headless=True, args=ARGUMENTS, timeout=START_WITHIN * 1000
        ) as browser,
    ):
        yield browser
