"""A real browser, and a page in it that remembers what should not have happened."""

import shutil
from contextlib import contextmanager
from weakref import WeakKeyDictionary

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


_windows = WeakKeyDictionary()  # by browser: one that is open and in which nothing is left


class Tab:
    """A page that shows the viewer, and everything that should not have happened in it."""

    def __init__(self, browser, address, *, stopped_clock=False, shows=".fsv-cell", **context):
        # A window takes its time to open: one that nothing else was asked of is left for the next.
        self.lasting = not context and not stopped_clock
        self.page = _windows.pop(browser, None) if self.lasting else None
        if self.page is None:
            wanted = {"viewport": {"width": 1280, "height": 900}} | context
            self.page = browser.new_context(**wanted).new_page()
        self.context, self.browser = self.page.context, browser
        self.context.set_default_timeout(1000 * LIMIT)
        self.errors, self.requests, self.dialogs = [], [], []
        self.listeners = {
            "console": lambda m: (
                self.errors.append(m.text) if m.type in ("error", "warning") else None
            ),
            "pageerror": lambda e: self.errors.append(str(e)),
            "request": lambda r: self.requests.append(r.url),
            "dialog": lambda d: (self.dialogs.append(d.message), d.dismiss()),
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        if stopped_clock:  # time passes in the page when a test says so
            self.page.clock.install()
        self.page.goto(address)
        self.page.wait_for_selector(shows)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if not self.lasting or kind is not None or self.browser in _windows:
            self.context.close()
        else:
            for event, listener in self.listeners.items():
                self.page.remove_listener(event, listener)
            self.context.clear_cookies()
            self.page.goto("about:blank")
            self.page.set_viewport_size({"width": 1280, "height": 900})
            _windows[self.browser] = self.page
        assert kind is not None or (self.errors, self.dialogs) == ([], [])

    def asked_for(self):
        """What was requested, the page itself first; what a page carries inside does not count."""
        return [url for url in self.requests if not url.startswith("data:")]

    def until(self, happened, what):
        """Until it holds. (Playwright's own waiting evaluates text, which the page's policy forbids.)"""
        until(lambda: happened() or self.page.wait_for_timeout(10), what)
