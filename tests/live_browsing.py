"""The live page in a browser: a server with the pair behind it, and a tab that knows the page's states."""

import json
import threading
import urllib.request
from contextlib import contextmanager

import browsing
from waiting import until

from floatscope.livepage.serve import make_server

PASSAGES = ["Milo Quist was born in Garlen.", "Tara Voss was born in Ostrel."]
QUESTION = "Where was Tara Voss born?"


@contextmanager
def served(models=("pair/mdm", "pair/arm")):
    """The page's address, once its models are there."""
    server = make_server(models)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        until(
            lambda: all(m["state"] == "ready" for m in got(server.url + "models")["models"]),
            "models that are ready",
            alive=thread.is_alive,
        )
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def got(address):
    with urllib.request.urlopen(address) as answer:
        return json.load(answer)


class Tab(browsing.Tab):
    """What a person does on the page, and what it then shows."""

    def __init__(self, browser, address, *, shows="body:not([data-state=loading])", **context):
        super().__init__(browser, address, shows=shows, **context)
        self.origin = address.split("#")[0]

    def open(self, address, shows="body:not([data-state=loading])"):
        self.page.goto(address)
        self.page.wait_for_selector(shows)

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        assert kind is not None or [u for u in self.asked_for() if not self.ours(u)] == []

    def ours(self, url):
        return url.startswith(self.origin) or url.startswith("blob:" + self.origin[:20])

    def state(self, what):
        return self.look(f"page.{what}")

    def look(self, what):
        """An expression over `page`, the page's own state; typed arrays become lists."""
        plain = "value => ArrayBuffer.isView(value) ? [...value] : value"
        return self.page.evaluate(f"(page => ({plain})({what}))(floatscopeLive)")

    def until(self, happened, what):
        until(lambda: happened() or self.page.wait_for_timeout(40), what)

    def write(self, question=QUESTION, passages=PASSAGES, gold=1, length=6):
        """A question with passages into the fields, and a short decoding."""
        page = self.page
        self.unfold()
        page.get_by_role("radio", name="Question and passages").click()
        page.get_by_label("Question", exact=True).fill(question)
        while page.locator(".fsl-passage").count():
            page.get_by_role("button", name="Remove passage 1").click()
        for i, passage in enumerate(passages, 1):
            page.get_by_role("button", name="Add a passage").click()
            page.get_by_label(f"Passage {i}", exact=True).fill(passage)
        if gold is not None:
            page.get_by_role("button", name=f"Passage {gold + 1} is the gold one").click()
        for setting in page.get_by_label("length", exact=True).all():
            if setting.is_visible():
                setting.fill(str(length))
        for setting in page.get_by_label("steps", exact=True).all():
            if setting.is_visible():
                setting.fill(str(length))

    def unfold(self):
        if self.page.locator(".fsl-compose details").first.get_attribute("open") is None:
            self.page.locator(".fsl-compose summary").first.click()

    def run(self):
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.done()

    def done(self, lane=0):
        """Until a lane's run has ended well."""
        ended = f"Boolean(page.lanes[{lane}]) && !page.busy()"
        self.until(lambda: self.look(ended), "the end of the run")
        assert self.page.locator("#notice").inner_text() == ""

    def branch(self, act):
        """The run that an act leaves the first lane with."""
        before = self.state("lanes.at(-1).id")
        act()
        other = f"page.lanes[1] && page.lanes[1].id !== '{before}' && page.lanes[1].finished"
        self.until(lambda: self.look(other), "a branch")
        return self.state("lanes[1].state")

    def tab_to(self, what, key="Tab", most=150):
        """Whether the tab key, pressed again and again, comes to such an element."""
        for _ in range(most):
            self.page.keyboard.press(key)
            if self.page.evaluate("what => document.activeElement.matches(what)", what):
                return True
        return False

    def touched(self):
        return self.page.locator(".fsv-under").all_inner_texts()

    def step(self, view=0):
        return self.state(f"viewer.views[{view}].step")

    def cell(self, key, view=0):
        return self.page.locator(f".fsv-cell[data-key='{key}']").nth(view)

    def first_answer(self):
        return self.state("lanes[0].scene.json.prompt_length")

    def answer(self, view=0):
        return self.page.locator(".fsv-answer q").nth(view).inner_text()
