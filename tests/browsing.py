"""A real browser, and a page in it that remembers what should not have happened."""

import shutil
from contextlib import contextmanager

import pytest
from waiting import LIMIT, until

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened():
    """Never skipped: a page that nobody opened is not tested."""
    if CHROMIUM is None:
        pytest.fail("no Chromium: apt-get install -y chromium", pytrace=False)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("no Playwright: .venv/bin/python -m pip install playwright", pytrace=False)
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=quiet, timeout=1000 * LIMIT
        )
        yield chromium
        chromium.close()


class Tab:
    """A page that shows the viewer, and everything that should not have happened in it."""

    def __init__(self, browser, address, *, stopped_clock=False, shows=".fsv-cell", **context):
        self.context = browser.new_context(
            **({"viewport": {"width": 1280, "height": 900}} | context)
        )
        self.context.set_default_timeout(1000 * LIMIT)
        self.page = self.context.new_page()
        self.errors, self.requests, self.dialogs = [], [], []
        self.page.on(
            "console",
            lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("dialog", lambda d: (self.dialogs.append(d.message), d.dismiss()))
        if stopped_clock:  # time passes in the page when a test says so
            self.page.clock.install()
        self.page.goto(address)
        self.page.wait_for_selector(shows)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.context.close()
        assert kind is not None or (self.errors, self.dialogs) == ([], [])

    def asked_for(self):
        """What was requested, the page itself first; what a page carries inside does not count."""
        return [url for url in self.requests if not url.startswith("data:")]

    def until(self, happened, what):
        """Until it holds. (Playwright's own waiting evaluates text, which the page's policy forbids.)"""
        until(lambda: happened() or self.page.wait_for_timeout(10), what)
