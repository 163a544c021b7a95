"""The live page in a browser, a real server and the real pair behind it: typed, watched, touched, kept."""

import base64
import json
import random
import re
import threading
import urllib.request
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import axe_playwright_python
import numpy as np
import pytest
from live_browsing import PASSAGES, Tab, got, served
from live_client import serving
from live_edits import COMPARED, SCENE, edited, random_edit, show_alone
from live_tour import FOLDER, WINDOW, picture, tour
from pictures import assert_drawn
from PIL import Image
from unpacking import unpack
from waiting import LIMIT, until

import floatscope as fs
from floatscope.children import ChildThread
from floatscope.glossary import load_glossary
from floatscope.livepage.app import LivePage
from floatscope.livepage.host import ModelHost
from floatscope.livepage.messages import View
from floatscope.livepage.prompts import PLAIN
from floatscope.livepage.runs import Runs
from floatscope.livepage.serve import open_redirect
from floatscope.livepage.worker import work
from floatscope.report.loopback import LoopbackServer

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e" + "W" * 120 + "<b>&amp;"


@pytest.fixture(scope="module")
def address():
    with served() as url:
        yield url


@pytest.fixture(scope="module")
def window(browser, address):
    with Tab(browser, address) as tab:
        yield tab


@pytest.fixture
def tab(window, address):
    """The page opened anew, in one window for all tests; nothing went wrong in it."""
    window.page.goto("about:blank")  # where only the fragment differs, nothing would be loaded
    window.open(address)
    yield window
    assert (window.errors, window.dialogs) == ([], [])


@pytest.fixture(scope="module")
def ran(browser, address):
    """A tab in which a question was asked: what does not change the page's runs can share it."""
    with Tab(browser, address, accept_downloads=True) as tab:
        tab.write()
        tab.run()
        yield tab


@pytest.fixture(scope="module")
def other(browser, ran):
    """Another browser, in which a link to what `ran` shows was opened."""
    link = chosen(ran)
    with Tab(browser, link, shows="body[data-opened]", reduced_motion="reduce") as tab:
        yield tab


def chosen(ran):
    """A step, a head, a colour and a token are chosen: the link to that."""
    page = ran.page
    page.get_by_role("button", name="layer 1 head 6:").click()
    page.get_by_label("Colour").select_option("share")
    ran.cell(5).click()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("body[data-address=written]")
    return ran.origin + ran.state("link()")


def history(address):
    return got(address + "history")["runs"]


# Type and watch


# Every time the page is drawn: which step, and how tall the answer is.
WATCHED = """() => {
  const { viewer } = floatscopeLive, update = viewer.update.bind(viewer);
  window.drawn = [];
  viewer.update = () => {
    update();
    const answer = document.querySelector(".fsv-dock .fsv-cells");
    if (answer) window.drawn.push([viewer.views[0].step, answer.offsetHeight]);
  };
}"""


def test_steps_stream_in_as_they_are_decoded(tab, address):
    assert tab.page.locator(".fsl-empty").is_visible()  # with an example ready to run
    assert tab.page.get_by_label("Question", exact=True).input_value()
    assert tab.page.locator(".fsl-star[aria-pressed=true]").count() == 1
    tab.write()
    tab.page.evaluate(WATCHED)
    tab.run()
    drawn = tab.page.evaluate("window.drawn")
    steps = [step for step, height in drawn]
    assert steps[0] == 0 and steps[-1] == 5 and steps == sorted(steps)  # as they came
    assert len({height for step, height in drawn}) == 1  # and nothing jumped
    (run,) = [r for r in history(address) if r["run"] == tab.state("lanes[0].id")]
    assert run["answer"].strip() == tab.answer() == "Ostrel"
    assert tab.page.locator(".fsv-masked:not(.fsv-revealed)").count() == 0
    spoken = tab.page.locator("#said")
    tab.until(lambda: "Answer: Ostrel" in spoken.inner_text(), "the answer, spoken")
    scene = got(f"{address}scene/{run['run']}")
    for step, layer in ((0, 0), (3, 7), (5, 11)):
        shown = tab.state(f"lanes[0].scene.shareRow({step}, {layer}, -1)")
        np.testing.assert_allclose(shown, unpack(scene["share"])[step, layer], rtol=1e-3)
    assert tab.state("lanes[0].scene.json.answer") == run["answer"]


def test_pause_back_forward_and_stop(tab):
    tab.write(length=200)  # it will not come to its end
    tab.page.get_by_role("button", name="Run", exact=True).click()
    tab.page.wait_for_selector(".fsv-revealed")
    tab.page.get_by_role("button", name="Pause", exact=True).click()
    here = tab.step()
    tab.until(lambda: tab.state("lanes[0].scene.steps") > here + 2, "steps beyond the pause")
    assert tab.step() == here
    tab.page.keyboard.press("ArrowRight")
    assert tab.step() == here + 1
    tab.page.keyboard.press("ArrowLeft")
    assert tab.step() == here
    tab.page.get_by_role("button", name="Follow").click()
    assert tab.step() > here
    tab.page.get_by_role("button", name="Stop").click()
    tab.ended()
    assert tab.state("lanes[0].phase") == "stopped"
    assert tab.state("lanes[0].scene.steps") < 200
    assert "stopped" in tab.page.locator(".fsl-where").inner_text()


# Touch


def test_tokens_heads_and_keys_can_be_touched(tab):
    """Each makes a branch beside the run it left. Forcing and cutting are stops of the tour, below."""
    page = tab.page
    tab.write(length=4)
    tab.run()
    first = tab.first_answer()
    early = tab.look("page.lanes[0].scene.reveals[0].key")
    tab.look("page.viewer.go(page.viewer.views[0], 1)")
    tab.cell(early).click()
    page.get_by_role("radio", name="step shown (1)").check()
    back = page.get_by_role("button", name="Put back to mask from step 1")
    state = tab.branch(back.click)
    assert [t["kind"] for t in state["touches"]] == ["remask"]
    assert tab.state(f"lanes[1].scene.isMasked(2, {early})") is True
    assert tab.state(f"lanes[0].scene.isMasked(2, {early})") is False
    # Any word that is one token; one that is several is said to be.
    page.get_by_label("another", exact=True).fill("Garlenostrelquist")
    page.get_by_role("button", name="Force from step").click()
    wrong = page.locator(".fsl-word-error")
    wrong.wait_for()
    assert "tokens of this model" in wrong.inner_text() and in_view(wrong)
    page.get_by_label("another", exact=True).fill("baker")
    state = tab.branch(lambda: page.keyboard.press("Enter"))
    assert [(t["kind"], t["step"]) for t in state["touches"]] == [("remask", 1), ("force", 3)]
    assert tab.state(f"lanes[1].scene.resultWord({early})") == " baker"
    # From the branch itself, a branch of a branch.
    page.get_by_role("radio", name="first step (0)").check()
    page.get_by_role("button", name="layer 3 head 2:").last.click()
    state = tab.branch(page.get_by_role("button", name="(mean) from step 0").click)
    assert state["touches"][-1]["heads"] == [[3, 2]] and state["touches"][-1]["to"] == "mean"
    assert page.locator(".fsl-ablated").count() == 1
    tab.cell(4, view=1).click()
    page.get_by_label("for", exact=True).select_option("head")
    state = tab.branch(page.get_by_role("button", name="Hide this key from step 0").click)
    hidden = state["touches"][-1]
    assert (hidden["kind"], hidden["positions"]) == ("hide", [4])
    assert (hidden["layers"], hidden["heads"]) == ([3], [2])
    assert page.locator(".fsl-taken").count() == 1
    page.get_by_label("for", exact=True).select_option("all")
    state = tab.branch(page.get_by_role("button", name="Zero its value from step 0").click)
    assert state["touches"][-1].get("layers") is None
    # Each edit adds to the branch that was just made.
    kinds = ["remask", "force", "ablate", "hide", "value"]
    assert [t["kind"] for t in state["touches"]] == kinds
    assert len(tab.touched()) == 4 + 5 and first > 4
    # On a narrow screen one of the two at a time.
    names = page.locator(".fsv-model b")
    assert [names.nth(i).is_visible() for i in (0, 1)] == [True, True]
    page.set_viewport_size({"width": 400, "height": 800})
    assert [names.nth(i).is_visible() for i in (0, 1)] == [False, True]
    page.get_by_role("radio", name="A · pair/mdm").click()
    assert [names.nth(i).is_visible() for i in (0, 1)] == [True, False]
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1280, "height": 900})


def test_the_pattern_of_a_head_and_the_row_of_a_query(ran):
    page = ran.page
    page.get_by_role("button", name="layer 2 head 5:").click()
    page.get_by_role("button", name="Whole pattern").click()
    page.wait_for_selector(".fsl-row h3")
    size = ran.state("lanes[0].scene.keys")
    assert ran.state("pattern.at.matrix.shape") == [size, size]
    row = ran.state("pattern.cursor.query")
    given = ran.state(f"pattern.at.matrix.values.slice({row * size}, {(row + 1) * size})")
    assert sum(given) == pytest.approx(1, abs=1e-3)
    page.locator(".fsl-matrix").focus()
    page.keyboard.press("ArrowUp")
    assert ran.state("pattern.cursor.query") == row - 1
    tip = page.locator(".fsv-tip").inner_text()
    assert tip.startswith("query ") and "weight" in tip
    assert f"{row - 1}" in page.locator(".fsl-row h3").inner_text()
    before = ran.step()
    page.keyboard.press("ArrowRight")
    assert ran.step() == before  # the pattern's own key
    page.get_by_role("button", name="Close the pattern").click()
    assert not page.locator(".fsl-pattern").is_visible()


# Edits act from the first step unless told otherwise


def in_view(what):
    """Whether an element lies in the window, and nothing lies over its middle."""
    return what.evaluate("""e => { const b = e.getBoundingClientRect();
      const top = document.elementFromPoint(b.left + b.width / 2, b.top + b.height / 2);
      return b.top >= 0 && b.bottom <= innerHeight && (e === top || e.contains(top)); }""")


def beside(one, other):
    """Whether one element follows the other with at most a few pixels between them."""
    boxes = [e.bounding_box() for e in (other, one)]
    return abs(boxes[1]["y"] - boxes[0]["y"] - boxes[0]["height"]) < 24


def test_a_walk_by_mouse_and_keyboard_edits_from_the_first_step(browser, address):
    """As a person does it: clicks, keys and the tab key; nothing is focused or scrolled by the test."""
    with Tab(browser, address) as tab:
        page, mouse, keys = tab.page, tab.page.mouse, tab.page.keyboard

        def click(what):
            for _ in range(60):  # the wheel, until it lies in the window
                box = what.bounding_box()
                if box is None:  # the panel is being drawn anew
                    page.evaluate("() => new Promise(requestAnimationFrame)")
                    continue
                if box["y"] >= 8 and box["y"] + box["height"] <= 800:
                    break
                mouse.move(box["x"] + box["width"] / 2, 400)
                mouse.wheel(0, -120 if box["y"] < 8 else 120)
                page.evaluate("() => new Promise(requestAnimationFrame)")
            mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

        tab.until(lambda: page.get_by_label("length", exact=True).count(), "the settings")
        click(page.get_by_label("Question", exact=True))
        assert tab.tab_to("[id$=-length]")
        keys.press("Control+a")
        keys.type("4")
        keys.press("Tab")
        keys.press("Control+a")
        keys.type("4")
        click(page.locator("#run"))
        tab.done()
        assert tab.step() == 3  # one stands at the last step
        click(page.get_by_role("button", name="layer 1 head 4:"))
        ablate = page.get_by_role("button", name="Ablate layer 1 head 4 (zero) from step 0")
        (touch,) = tab.branch(lambda: click(ablate))["touches"]
        assert (touch["kind"], touch["step"], touch["heads"]) == ("ablate", 0, [[1, 4]])
        attention = tab.state("viewer.asked.get(`compare ${page.lanes[0].id} ${page.lanes[1].id}`)")
        assert attention is not None
        # The other choice, with the keyboard: the radio buttons are one stop, the arrow keys choose.
        assert tab.tab_to(".fsl-start input:checked")
        keys.press("ArrowRight")
        assert page.get_by_label("step shown (3)").is_checked()
        late = page.get_by_role("button", name="Ablate layer 1 head 4 (zero) from step 3")
        touches = tab.branch(lambda: click(late))["touches"]
        assert [one["step"] for one in touches] == [0, 3]
        # The history, and the keys of the steps without another click.
        first = tab.look("page.lanes[0].from.run")
        click(page.get_by_role("button", name=f"Show run {first}", exact=True))
        tab.until(lambda: tab.look("page.lanes.length === 1"), "the run alone")
        for key, step in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", 3)):
            keys.press(key)
            assert tab.step() == step
        keys.press("Control+z")
        assert tab.look("page.lanes.length") == 2
        assert tab.look("page.lanes[1].touches.map(touch => touch.step)") == [0, 3]


def test_every_edit_button_says_from_which_step_it_acts(edits):
    tab, page = edits, edits.page
    first = tab.first_answer()
    for key in (first, 4):
        tab.cell(key).click()
        if key == first:
            page.wait_for_selector("button.fsl-candidate")
        for label, step in (("step shown", tab.step()), ("first step", None)):
            page.get_by_role("radio", name=label).check()
            touches = ".fsl-touch .fsl-buttons .fsl-button, .fsl-touch .fsl-scope .fsl-button"
            touches += ", button.fsl-candidate"
            said = page.locator(touches).all_inner_texts()
            said = [text for text in said if not text.startswith("Rank")]
            assert said and all("from step " in text for text in said)
            if step is not None:
                assert all(text.endswith(f"from step {step}") for text in said)
            elif key == 4:
                assert all(text.endswith("from step 0") for text in said)


@pytest.fixture(scope="module")
def edited_tab(browser, address):
    with Tab(browser, address, accept_downloads=True) as tab:
        tab.write(length=4)
        tab.run()
        tab.plain = tab.state("lanes[0].id")
        yield tab


@pytest.fixture
def edits(edited_tab):
    """A run without edits, shown alone at its last step."""
    tab = edited_tab
    if tab.look("page.lanes.map(run => run.id)") != [tab.plain]:
        show_alone(tab, tab.plain)
    tab.page.get_by_role("radio", name="first step").check()
    tab.look("page.viewer.go(page.viewer.views[0], 99)")
    tab.page.evaluate("floatscopeLive.viewer.selected = null, floatscopeLive.viewer.choose(-1, -1)")
    return tab


def test_page_says_of_random_edits_what_the_server_computes(edits):
    """Of streamed and stored runs: differences are those of the traces, and nothing is no change."""
    tab, draw = edits, random.Random(5)
    scene = tab.look(f"({SCENE})(page.lanes[0].scene)")
    alike, compared = [], 0
    while compared < 8:
        if compared % 2:
            show_alone(tab, tab.plain)
        said = edited(tab, *random_edit(draw, scene))
        if said is not None:
            page, server, unchanged = said
            assert page == server
            alike.append(unchanged)
            compared += 1
        tab.look("void page.begin([page.lanes[0]])")
    assert not all(alike)


def test_an_edit_that_changes_nothing_is_no_change(edits):
    """A token is forced at the last step that stands there anyway: a stored and a streamed run."""
    tab = edits
    key = tab.first_answer()
    step = tab.look(f"page.lanes[0].scene.lastReveal[{key}]")
    best = candidates_of(tab, step, key)[0]
    assert best["text"] == tab.state(f"lanes[0].scene.resultWord({key})")
    edit = {"kind": "force", "position": key, "token": best["id"]}
    page, server, unchanged = edited(tab, step, edit)
    assert unchanged and page == server
    assert (
        tab.page.locator(".fsl-changes").last.inner_text().split("\n")[-1].startswith("No change")
    )
    tab.page.get_by_label("Colour").select_option("difference")
    tab.until(lambda: tab.look("Boolean(page.viewer.views[0].scene.difference)"), "the difference")
    row = "page.viewer.views[1].scene.valueRow('difference', page.viewer.views[1].step, {}, -1)"
    assert set(tab.look(row.format(-1))) == set(tab.look(row.format(3))) == {0}
    tab.page.get_by_label("Colour").select_option("lift")


def candidates_of(tab, step, key):
    run = tab.state("lanes[0].id")
    asked = f"floatscopeLive.client.candidates('{run}', {step}, {key})"
    return tab.page.evaluate(asked)["candidates"]


def test_edits_stack_are_removed_and_undone(edits):
    tab, page = edits, edits.page
    lanes = "page.lanes.map(run => run.touches.length)"
    page.get_by_role("button", name="layer 2 head 1:").click()
    tab.branch(page.get_by_role("button", name="(zero) from step 0").click)
    # Several heads at once, and a whole layer.
    page.get_by_role("button", name="Select several heads").click()
    for head in (0, 3):
        page.get_by_role("button", name=f"layer 5 head {head}:").last.click()
    tab.branch(page.get_by_role("button", name="Ablate 3 heads (zero) from step 0").click)
    assert tab.look("page.lanes[1].state.touches[1].heads") == [[2, 1], [5, 0], [5, 3]]
    page.get_by_role("button", name="Select several heads").click()
    page.get_by_label("Layer", exact=True).select_option("7")
    tab.branch(page.get_by_role("button", name="Ablate layer 7 (mean) from step 0").click)
    listed = page.locator(".fsl-edits:visible .fsl-edit-list li span")
    assert listed.all_inner_texts() == [
        "from step 0, layer 2 head 1 ablated",
        "from step 0, layer 2 head 1, layer 5 head 0, layer 5 head 3 ablated",
        "from step 0, layer 7 ablated to its mean over the prompt",
    ]
    assert tab.look(lanes) == [2, 3]
    assert page.locator(".fsl-ablated").count() == 3 + 3 + 8
    # Removed: beside the run that it leaves, and the card says what that changes.
    tab.branch(page.get_by_role("button", name="Remove: from step 0, layer 2 head 1 ablated").click)
    assert tab.look(lanes) == [3, 2] and tab.page.get_by_text("What changed").count()
    for expected in ([2, 3], [1, 2], [0, 1]):
        page.get_by_role("button", name="Undo", exact=True).click()
        assert tab.look(lanes) == expected
    page.get_by_role("button", name="Redo").click()
    assert tab.look(lanes) == [1, 2]
    page.keyboard.press("Control+z")
    # The only edit: what is left is the run itself, which is shown and not decoded again.
    known = len(history(tab.origin))
    page.get_by_role("button", name="Remove: from step 0").click()
    tab.until(lambda: tab.look(lanes) == [0], "the run without edits")
    assert tab.state("lanes[0].id") == tab.plain and len(history(tab.origin)) == known


def test_an_edit_that_is_refused_says_so_beside_its_card(edits):
    tab, page = edits, edits.page
    tab.cell(tab.look("page.lanes[0].scene.reveals[0].key")).click()
    page.get_by_role("radio", name="step shown").check()
    page.get_by_role("button", name="Put back to mask").click()
    notice = page.locator("#notice")
    tab.until(lambda: "no remaining step" in notice.inner_text(), "the refusal")
    assert beside(notice, page.locator(".fsv-panel:visible")) and in_view(notice)
    assert tab.look("page.lanes.map(run => run.id)") == [tab.plain]
    page.get_by_role("button", name="Dismiss").click()


def test_layers_and_heads_are_ranked_and_ranking_can_be_cancelled(edits):
    tab, page = edits, edits.page
    key = tab.look("page.lanes[0].scene.reveals[0].key")
    tab.cell(key).click()
    page.evaluate(HELD)  # no event of the ranking comes through until it is let go
    page.get_by_role("button", name="Rank layers and heads at step 0").click()
    page.get_by_role("button", name="Cancel").click()
    page.evaluate("window.letGo()")
    page.get_by_role("button", name="Rank layers and heads at step 0").click()
    page.wait_for_selector(".fsl-effect")
    run = tab.state("lanes[0].id")
    *_, answer = [
        json.loads(line)
        for line in posted(tab.origin + "rank", {"run": run, "step": 0, "position": key})
    ]
    rows = page.get_by_role("list", name="Strongest heads").locator("li")
    assert rows.count() == 8
    for entry, row in zip(answer["heads"], rows.all_inner_texts(), strict=False):
        assert row.startswith(f"layer {entry['layer']} head {entry['head']}")
    strongest = answer["heads"][0]
    rows.first.get_by_role("button").click()
    chosen = [strongest["layer"], strongest["head"]]
    assert tab.look("[page.viewer.layer, page.viewer.head]") == chosen


HELD = """() => {
  const { client } = floatscopeLive, task = client.task.bind(client);
  let letGo;
  const gate = new Promise((resolve) => { letGo = resolve; });
  window.letGo = () => { client.task = task; letGo(); };
  client.task = async (path, request, onEvent, signal) => {
    await new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(new DOMException("cancelled", "AbortError")));
      gate.then(resolve);
    });
  };
}"""


def posted(address, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read().splitlines()


def test_the_untrained_control_stands_beside_the_run(edits):
    tab, page = edits, edits.page
    page.get_by_role("button", name="Compare with untrained control").click()
    tab.until(lambda: tab.look("page.lanes.length === 2 && page.lanes[1].control"), "the control")
    tab.until(lambda: tab.look(COMPARED), "the comparison")
    assert "untrained control" in page.locator(".fsv-under").inner_text()
    assert page.locator(".fsv-model b").nth(1).inner_text().endswith("(permuted, seed 0)")
    card = page.locator(".fsl-changes").last.inner_text()
    assert card.startswith("What differs") and "differs (mean over layers and heads)" in card
    words = [t.all_text_contents() for t in page.locator(".fsv-stage").all()]
    assert len(words) == 1 and tab.answer(0) == tab.answer(1)
    tab.cell(4, view=1).click()
    assert page.locator(".fsl-take").count() == 0  # it is compared, and not edited
    assert tab.state("link()") and len(link_state(tab)["runs"]) == 1


def test_view_is_saved_as_svg_and_png(edits, tmp_path):
    tab, page = edits, edits.page
    page.get_by_role("button", name="layer 1 head 4:").first.click()
    tab.branch(page.get_by_role("button", name="(zero) from step 0").click)
    tab.until(lambda: tab.look(COMPARED), "the comparison")
    saved = {}
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        saved[kind] = tmp_path / f"view.{kind.lower()}"
        download.value.save_as(saved[kind])
    root = ElementTree.parse(saved["SVG"]).getroot()
    said = " ".join(root.itertext())
    for words in (
        "What changed",
        "Edits · B",
        "from step 0, layer 1 head 4 ablated",
        "★ gold",
    ):
        assert words in said, words
    assert "Run" not in [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    words = {text for text in page.locator(".fsv-cell").all_inner_texts() if text.strip()}
    assert words <= {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    width, height = (float(root.get(name)) for name in ("width", "height"))
    with Image.open(saved["PNG"]) as image:
        assert image.size == pytest.approx((2 * width, 2 * height), abs=2)
    assert_drawn(saved["PNG"])


# What a new user met


def test_token_counter_follows_model_and_length(tab):
    page, count = tab.page, tab.page.locator(".fsl-count")
    tab.until(lambda: "tokens and 16 to decode" in count.inner_text(), "the first count")
    page.get_by_label("length", exact=True).first.fill("40")
    tab.until(lambda: "tokens and 40 to decode" in count.inner_text(), "the length")
    asked = len([url for url in tab.requests if url.endswith("/tokens")])
    page.get_by_label("Model", exact=True).first.select_option("m1")
    tab.until(
        lambda: len([url for url in tab.requests if url.endswith("/tokens")]) > asked, "asked again"
    )
    tab.until(lambda: "tokens and 40 to decode" in count.inner_text(), "the other model's")


def test_text_to_continue_has_no_chat_template_and_settings_of_its_own(tab):
    page = tab.page
    page.get_by_label("Example").select_option(label="A text to continue")
    assert tab.state("prompt.value()")["chat"] is False
    wanted = {"length": 64, "steps": 64, "block_length": 8, "temperature": 0.7}
    asked = tab.state("first.request()")["sampler"]["settings"]
    assert {name: asked[name] for name in wanted} == wanted
    page.get_by_label("Model", exact=True).first.select_option("m1")
    causal = tab.state("first.request()")["sampler"]["settings"]
    assert (causal["length"], causal["temperature"]) == (64, 0.7)
    page.get_by_label("Model", exact=True).first.select_option("m0")
    page.get_by_label("Example").select_option("0")
    back = tab.state("first.request()")["sampler"]["settings"]
    assert (back["length"], back["temperature"], back["block_length"]) == (16, 0.0, None)


def test_first_colours_show_the_layer_whose_strongest_key_moves_most(tab):
    page = tab.page
    tab.write(length=8)
    tab.run()
    moves = "l => new Set([...Array(page.lanes[0].scene.steps).keys()].map("
    moves += "s => page.lanes[0].scene.topKey(s, l, -1))).size"
    counts = tab.look(f"page.lanes[0].scene.json.layers.map({moves})")
    mean = tab.look(f"({moves})(-1)")
    assert max(counts) > mean  # as the embedded model is
    assert tab.state("viewer.layer") == counts.index(max(counts))
    message = page.locator(".fsv-message").inner_text()
    assert f"{max(counts)} different keys in 8 steps" in message
    page.get_by_label("Layer", exact=True).select_option("-1")
    assert "strongest key moves most" not in page.locator(".fsv-message").inner_text()
    tab.run()
    assert tab.state("viewer.layer") == -1  # what was chosen stays


def test_no_passage_lies_under_the_answer_of_two_runs(edits):
    tab, page = edits, edits.page
    page.get_by_role("button", name="layer 1 head 4:").first.click()
    tab.branch(page.get_by_role("button", name="(zero) from step 0").click)
    page.set_viewport_size({"width": 1280, "height": 420})
    for top in (0, 150, 300):
        page.evaluate("top => scrollTo(0, top)", top)
        answers = page.locator(".fsv-dock .fsv-band")
        boxes = [band.bounding_box() for band in page.locator(".fsv-stage > .fsv-band").all()]
        for answer in (one.bounding_box() for one in answers.all()):
            assert all(b["y"] + b["height"] <= answer["y"] + 1 for b in boxes)
    page.set_viewport_size({"width": 1280, "height": 900})


# The accessible name of everything that can be pressed, where it has words of its own to show.
NAMES = """() => [...document.querySelectorAll("button, [role=option], summary, a")]
  .filter((e) => e.offsetParent && e.getAttribute("aria-label"))
  .map((e) => [e.innerText.replace(/\\s+/g, " ").trim(), e.getAttribute("aria-label")])
  .filter(([words, name]) => /[a-z0-9]/i.test(words) && !name.toLowerCase().includes(words.toLowerCase()))"""


def test_accessible_names_contain_the_words_that_are_seen(edits):
    tab, page = edits, edits.page
    tab.cell(tab.first_answer()).click()
    page.wait_for_selector("button.fsl-candidate")
    page.get_by_role("button", name="layer 1 head 4:").first.click()
    tab.unfold()
    assert page.evaluate(NAMES) == []
    page.evaluate(AXE + ";undefined")
    rule = "{ runOnly: ['label-content-name-mismatch', 'button-name', 'label'] }"
    found = page.evaluate(f"axe.run({rule})")
    assert [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]] == []


# Keep


def test_a_link_opens_the_same_view_in_another_browser(address, ran, other):
    view = """(v => [v.layer, v.head, v.mode, v.selected.key,
        v.views.map(one => [one.step, one.scene.json.answer])])(page.viewer)"""
    assert other.look(view) == ran.look(view)
    assert other.look(view)[:4] == [1, 6, "share", 5]
    assert other.state("prompt.value()") == ran.state("prompt.value()")
    assert other.state("lanes[0].id") == ran.state("lanes[0].id")  # it was there, and not run again
    texts = [t.page.locator(".fsv-cell").all_text_contents() for t in (ran, other)]
    assert texts[0] == texts[1]
    shares = "page.viewer.views[0].scene.shareRow(1, 1, 6)"
    np.testing.assert_allclose(ran.look(shares), other.look(shares), rtol=0.05, atol=1e-4)


def test_file_that_opens_the_browser_leads_to_the_page(tab, address, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    open_redirect(address, tmp_path)
    (file,) = opened
    assert file.startswith("file://") and address not in file
    tab.page.goto(file)
    tab.page.wait_for_url(address)
    tab.page.wait_for_selector("body[data-state=ready]")
    tab.requests.remove(file)  # the only request that does not go to the server


CLIPBOARD = """() => Object.defineProperty(navigator, "clipboard",
  { value: { writeText: (text) => { window.copied = text; } } })"""


def test_copied_link_holds_the_view_and_no_key(address, ran):
    page = ran.page
    chosen(ran)
    page.evaluate(CLIPBOARD)
    tool = page.get_by_role("button", name="Copy link")
    tool.click()
    ran.until(lambda: page.evaluate("window.copied"), "the link is copied")
    link, key = page.evaluate("window.copied"), address.split("/")[-2]
    assert len(key) == 32 and key not in link and "127.0.0.1" not in link
    assert link.startswith("#s=") and json.loads(decoded(link)) == link_state(ran)
    assert key not in decoded(link) and "key" in tool.get_attribute("title")


def decoded(link):
    code = link.removeprefix("#s=")
    return base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)).decode()


def link_to(state):
    text = state if isinstance(state, str) else json.dumps(state)
    return "#s=" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def link_state(tab):
    return json.loads(decoded(tab.state("link()")))


def open_link(tab, address, link):
    """Open an address with this link; a browser reports each request that is refused."""
    tab.page.goto("about:blank")
    tab.open(address + link, shows="body[data-opened]")
    tab.errors = [e for e in tab.errors if "status of 400" not in e and "status of 413" not in e]


def without(state, *names):
    return {
        **state,
        "runs": [{k: v for k, v in r.items() if k not in names} for r in state["runs"]],
    }


def test_link_without_optional_fields_opens_its_runs(tab, address, ran):
    """Without a sampler the model's own is used, without touches there are none."""
    whole = link_state(ran)
    open_link(tab, address, link_to(without(whole, "touches")))
    assert tab.state("lanes[0].id") == ran.state("lanes[0].id")  # the run that is kept
    open_link(tab, address, link_to(without(whole, "sampler", "touches", "model", "from")))
    tab.done()
    assert tab.answer() == "Ostrel" and tab.state("lanes[0].scene.steps") == 16
    view = {"layer": 10**6, "head": 10**6, "key": 10**6, "step": 10**6, "pattern": 1, "row": 10**6}
    open_link(tab, address, link_to({**whole, "view": view}))
    assert (tab.state("viewer.layer"), tab.state("viewer.head")) == (11, 7)
    open_link(tab, address, link_to({**whole, "view": {**view, "pattern": 0}}))
    tab.page.wait_for_selector(".fsl-row h3")
    assert tab.state("pattern.cursor.query") == tab.state("lanes[0].scene.keys") - 1
    open_link(tab, address, link_to(without({**whole, "view": {}}, "from")))
    assert tab.answer() == "Ostrel" and not tab.page.locator("#notice").is_visible()


def hostile_links(whole):
    """Links that no page makes, each with what the page says of it."""
    (run,) = whole["runs"]

    def changed(**fields):
        return {**whole, "runs": [{**run, **fields}]}

    touch = {"kind": "ablate", "step": 0, "heads": [[0, 0]]}
    yield from (({**whole, "view": {"grid": name}}, "view.grid") for name in PROTOTYPE)
    yield {**whole, "view": {"colour": "toString"}}, "view.colour"
    yield {**whole, "view": {"__proto__": 1}}, "view.__proto__"
    yield {**whole, "view": {"layer": -2}}, "view.layer"
    yield {**whole, "view": {"head": 0.5}}, "view.head"
    yield {**whole, "view": []}, "view"
    yield {**whole, "v": 2}, "v:"
    yield {**whole, "runs": []}, "runs"
    yield {**whole, "runs": [run] * 9}, "runs"
    yield changed(prompt={}), "either text, or question"
    yield changed(prompt=None), "runs.0.prompt"
    yield changed(sampler="confidence"), "runs.0.sampler"
    yield changed(sampler={"name": "constructor", "settings": []}), "runs.0.sampler.settings"
    yield changed(touches=[{**touch, "kind": "constructor"}]), "runs.0.touches.0"
    yield changed(touches=[{**touch, "step": None}]), "needs a step"
    yield changed(touches=[touch] * 65), "runs.0.touches"
    yield changed(**{"from": {"run": 0, "step": 0}}), "not in the link"
    yield changed(**{"from": {"run": 7, "step": 0}}), "not in the link"
    yield '{"v":1,"runs":[', "Invalid JSON"
    yield "[" * 30_000, "cannot be read"
    yield " " * 200_000, "cut off"
    yield "null", "cannot be read"


PROTOTYPE = ["constructor", "toString", "__proto__", "hasOwnProperty"]


def test_hostile_links_are_refused_in_words_and_the_page_goes_on(tab, address, ran):
    notice = tab.page.locator("#notice")
    for state, words in hostile_links(link_state(ran)):
        tab.page.evaluate("link => floatscopeLive.openLink(link)", link_to(state))
        said = notice.inner_text()
        assert said.startswith("This link cannot be read: ") and words in said, (words, said)
        assert "Copy it again" in said and tab.state("lanes.length") == 0
    open_link(tab, address, link_to({"v": 1}))
    assert "runs: Field required" in notice.inner_text()
    good = link_to(link_state(ran))
    tab.page.get_by_label("Open a link from elsewhere").fill(address + good)
    tab.page.get_by_role("button", name="Open", exact=True).click()
    tab.until(lambda: tab.state("lanes.length") == 1, "the good link")
    tab.done()
    assert tab.answer() == "Ostrel"


def test_view_of_a_link_offers_what_the_viewer_offers(ran):
    options = {"colour": "colours().map(([name]) => name)", "grid": "pickGrid.options"}
    for name, offered in options.items():
        wanted = View.model_fields[name].annotation.__args__[0].__args__
        values = ran.look(f"Array.from(page.viewer.{offered}, (one) => one.value ?? one)")
        assert set(values) == set(wanted)


def test_link_of_a_missing_model_says_what_it_needs_and_runs_with_another(tab, address, ran):
    (run,) = link_state(ran)["runs"]
    touch = {"kind": "ablate", "step": 1, "heads": [[0, 0]], "to": "zero"}
    away = {**run, "fingerprint": "f" * 16, "model": "./a model; rm -rf ~", "touches": [touch]}
    open_link(tab, address, link_to({"v": 1, "runs": [away]}))
    card = tab.page.locator("#missing")
    said = card.inner_text()
    assert "asks for ./a model; rm -rf ~ (ffffffffffffffff), which is not loaded here" in said
    assert "floatscope live --model './a model; rm -rf ~'" in said
    assert "Tara Voss" in said and "confidence" in said and "ablate at step 1" in said
    assert tab.page.get_by_label("Question", exact=True).input_value() == run["prompt"]["question"]
    card.get_by_role("button", name="Run the prompt with pair/arm").click()
    tab.done()
    assert not card.is_visible() and tab.state("lanes[0].name") == "pair/arm"
    assert tab.state("lanes[0].touches") == []
    # Beside a run whose model is here, the other is said to be missing.
    open_link(tab, address, link_to({"v": 1, "runs": [{**away, "model": "\u202e"}, run]}))
    tab.done()
    assert tab.state("lanes.map((one) => one.id)") == [ran.state("lanes[0].id")]
    assert "asks for '\\u202e' (" in card.inner_text() and "--model" not in card.inner_text()
    card.get_by_role("button", name="Dismiss").click()
    assert not card.is_visible()


def test_link_waits_for_a_model_that_is_being_loaded(browser, llada):
    loaded = threading.Event()

    def load():
        assert loaded.wait(LIMIT)
        return llada

    run = {"fingerprint": llada.fingerprint, "prompt": {"text": "Hi"}}
    sampler = {"name": "random", "settings": {"length": 2}}
    link = link_to({"v": 1, "runs": [{**run, "sampler": sampler}]})
    host = ModelHost("m0", "slow", {}, make_worker=lambda: ChildThread(work, (load, PLAIN)))
    server = LoopbackServer(LivePage([host], Runs("slow")), 0)
    with serving(server), Tab(browser, server.url + link) as tab:
        notice = tab.page.locator("#notice")
        tab.until(lambda: "Still loading: slow." in notice.inner_text(), "the page waits")
        loaded.set()
        tab.page.wait_for_selector("body[data-opened]")
        tab.done()
        assert tab.state("lanes[0].finished") and tab.state("first.sampler.name") == "random"


def test_history_shows_runs_again_and_beside_each_other(tab, address, ran):
    first = ran.state("lanes[0].id")
    rows = tab.page.locator(".fsl-runs tbody tr")
    tab.until(lambda: rows.count() >= 1, "the history")
    shown = tab.page.get_by_role("button", name=f"Show run {first}", exact=True)
    shown.click()
    tab.until(lambda: tab.state("lanes.length") == 1, "the run")
    other = next(r["run"] for r in history(address) if r["run"] != first)
    tab.page.get_by_role("button", name=f"Beside run {other}", exact=True).click()
    tab.until(lambda: tab.state("lanes.map(r => r.id).join()") == f"{first},{other}", "both")
    tab.until(lambda: tab.page.locator(".fsl-shown").count() == 2, "both marked")
    assert tab.page.locator(".fsv-answer q").count() == 2


def test_python_trace_and_page_can_be_kept(browser, ran, tmp_path):
    page = ran.page
    page.get_by_role("button", name="Copy as Python").click()
    code = page.locator(".fsl-text code")
    code.wait_for()
    assert "fs.load('pair/mdm')" in code.inner_text() or 'fs.load("pair/mdm")' in code.inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save trace").click()
    zipfile.ZipFile(saved.value.path()).extractall(tmp_path)
    (folder,) = tmp_path.glob("*.zarr")
    assert fs.Trace.load(folder).text.strip() == "Ostrel"
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export page").click()
    offline = tmp_path / "page.html"
    saved.value.save_as(offline)
    opened = browser.new_page()
    asked = []
    opened.on("request", lambda r: asked.append(r.url))
    opened.goto(offline.as_uri())
    opened.wait_for_selector(".fsv-cell")
    assert asked == [offline.as_uri()] and "Ostrel" in opened.locator(".fsv-answer").inner_text()
    opened.close()


# For everyone


def test_the_keyboard_does_it_all(tab):
    """From the top of the page to a branch and round again, without a pointer."""
    keys = tab.page.keyboard
    assert tab.tab_to("#skip") and tab.tab_to("#keys")
    keys.press("Enter")
    assert tab.page.locator("#keys-list").is_visible()
    keys.press("/")
    assert tab.page.evaluate("document.activeElement.id") == "prompt-question"
    assert tab.tab_to("[data-kind=text]", key="Shift+Tab")
    keys.press("Enter")
    keys.press("/")
    keys.press("Control+a")
    keys.type("Is it a / or b?")
    for field in ("length", "steps"):
        assert tab.tab_to(f"[id$=-{field}]")
        keys.press("Control+a")
        keys.type("5")
    keys.press("Control+Enter")
    tab.done(lane=0)
    assert tab.state("lanes[0].state.prompt.text") == "Is it a / or b?"
    assert tab.tab_to(".fsv-cell")
    keys.press("Home")
    assert tab.step() == 0
    keys.press("ArrowRight")
    assert tab.step() == 1
    for _ in range(tab.first_answer()):
        keys.press("ArrowDown")
    keys.press("Enter")
    tab.page.wait_for_selector("button.fsl-candidate")
    assert tab.tab_to("button.fsl-candidate")
    outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    tab.branch(lambda: keys.press("Enter"))
    assert tab.tab_to(".fsv-head")
    keys.press("ArrowDown")
    keys.press("Enter")
    assert (tab.state("viewer.layer"), tab.state("viewer.head")) == (1, 0)
    assert tab.tab_to(".fsl-runs .fsl-button") and tab.tab_to("#skip")  # nothing holds the focus


def test_a_narrow_dark_screen_and_paper(other, tmp_path):
    page = other.page
    wide, ground = (
        "document.documentElement.scrollWidth",
        "getComputedStyle(document.body).backgroundColor",
    )
    page.set_viewport_size({"width": 400, "height": 800})
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(wide) <= 400
    other.unfold()
    page.get_by_label("Compare with a second model or setting").check()
    page.get_by_text("More settings").first.click()
    page.locator("#keys").click()
    assert page.evaluate(wide) <= 400
    assert page.evaluate(ground) != "rgb(255, 255, 255)"
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Dark").click()
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert not page.locator("#run").is_visible()
    assert page.locator(".fsv-cell").first.is_visible()
    page.pdf(path=tmp_path / "page.pdf")
    assert b"/Type /Page\n" in (tmp_path / "page.pdf").read_bytes()
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_term_is_explained_where_it_is_read(ran):
    """The legend says lift once the colour is lift; the tooltip says what that is."""
    page = ran.page
    page.get_by_label("Colour").select_option("lift")
    term = page.locator(".fsv-legend-label dfn.term", has_text="lift").first
    term.focus()
    tip = page.locator(".term-tip:not([hidden])")
    assert tip.inner_text() == load_glossary()["lift"]["definition"]
    assert term.get_attribute("aria-describedby") == tip.get_attribute("id")
    page.keyboard.press("Escape")
    assert not page.locator(".term-tip").is_visible()
    inside = ".fsv-cell dfn, q dfn, code dfn, button dfn, li dfn, .fsl-long dfn"
    assert page.locator(inside).count() == 0


AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def test_no_serious_finding_of_axe(other):
    page = other.page
    page.get_by_role("button", name="layer 2 head 5:").click()
    other.cell(other.first_answer()).click()
    page.get_by_role("button", name="Whole pattern").click()
    page.wait_for_selector(".fsl-row h3")
    other.unfold()
    page.evaluate(AXE + ";undefined")
    for theme, rules in (("light", "{}"), ("dark", "{ runOnly: ['color-contrast'] }")):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert serious(page.evaluate(f"axe.run({rules})")) == []


def serious(found):
    return [
        (v["id"], n["html"][:120], n.get("failureSummary", "")[:200])
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
        for n in v["nodes"][:3]
    ]


def test_hostile_text_is_text_in_every_field(tab):
    page = tab.page
    page.set_viewport_size({"width": 400, "height": 800})
    tab.write(question=HOSTILE, passages=[HOSTILE, PASSAGES[0]], gold=0, length=3)
    tab.run()
    rows = page.locator(".fsl-runs tbody")
    tab.until(lambda: "<img src=x" in rows.inner_text(), "its row")
    tab.unfold()
    page.get_by_role("radio", name="Plain text").click()
    page.get_by_label("Prompt", exact=True).fill(HOSTILE)
    tab.run()
    tab.page.get_by_label("Open a link from elsewhere").fill(HOSTILE + "#s=" + HOSTILE)
    page.get_by_role("button", name="Open", exact=True).click()
    page.wait_for_selector("#notice:not([hidden])")
    assert "cannot be read" in page.locator("#notice").inner_text()
    assert page.locator("img, [onerror]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1280, "height": 900})


# The tour of the documentation


def forced(tab):
    """The second candidate stands there, the rest was decided anew, and the page says what differs."""
    first, word = tab.first_answer(), tab.answer(1).split()[0]
    assert [tab.answer(), tab.answer(1)] == ["crimson mouse", f"{word} mouse"]
    assert tab.state(f"lanes[1].scene.wordAt(1, {first})").strip() == word != "crimson"
    assert f"crimson mouse → {word} mouse" in tab.page.locator(".fsl-changes").last.inner_text()
    assert tab.page.locator(".fsl-differs").count() == 2 and word in tab.touched()[0]
    return tab.state("lanes[1].state.touches")[0]["kind"] == "force"


def cut(tab):
    """The gold passage is out of sight; colours are the difference of the two runs' shares."""
    (last,) = tab.state("lanes[1].state.touches")
    gold = tab.state("lanes[0].scene.json.gold")
    assert (last["kind"], last["queries"], last["keys"]) == ("cut", ["predicting"], [gold])
    assert "other run" in tab.page.locator(".fsv-legend-label").inner_text()
    tab.until(
        lambda: tab.look("Boolean(page.viewer.views[0].scene.difference)"), "the server's rows"
    )
    at = "page.viewer.views.map(v => v.scene.{}(v.step, 2, -1)[3])"
    one, other = tab.look(at.format("shareRow"))
    by = tab.look(at.replace("{}(", "valueRow('difference', "))
    assert by == pytest.approx([one - other, other - one], abs=1e-5)
    return tab.answer(1) == "black horse"


def two_models(tab):
    names = tab.page.locator(".fsv-model b").all_inner_texts()
    assert names == ["A · MDM · pair/mdm", "B · ARM · pair/arm"]
    assert tab.page.locator(".fsl-changes").last.inner_text().startswith("What differs")
    return tab.answer(0) == tab.answer(1) == "crimson mouse"


STOPS = {"force": forced, "cut": cut, "models": two_models}


def test_the_tour_can_be_walked_and_its_pictures_are_there(browser, address, tmp_path):
    page = (FOLDER.parent / "tutorials" / "live_tour.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(\.\./live/(\w+)\.webp\)", page)
    with Tab(browser, address, **WINDOW) as tab:
        walked = []
        for name in tour(tab):
            (tmp_path / f"{name}.png").write_bytes(picture(tab, name))
            assert_drawn(tmp_path / f"{name}.png")
            walked.append(name)
            assert STOPS[name](tab) if name in STOPS else True
    assert "crimson mouse" in page and "black horse" in page
    assert walked == shown
    assert sorted(file.stem for file in FOLDER.glob("*.webp")) == sorted(shown)


# When something goes wrong


def test_a_reload_in_the_middle_runs_it_again(tab):
    tab.write(length=12)
    tab.page.get_by_role("button", name="Run", exact=True).click()
    tab.page.wait_for_selector(".fsv-revealed")
    tab.page.wait_for_selector("body[data-address=written]")
    tab.page.reload()
    tab.page.wait_for_selector("body[data-opened]")
    assert tab.state("lanes[0].finished") and tab.answer() == "Ostrel"
    assert tab.state("lanes[0].scene.steps") == 12


def test_a_second_tab_waits_for_its_turn_and_says_so(browser, address, tab):
    with Tab(browser, address) as two:
        tab.write(length=200)
        two.write(length=3)
        for one in (tab, two):
            one.page.get_by_role("button", name="Run", exact=True).click()
            one.until(lambda one=one: one.state("lanes[0].phase") != "asked", "an answer")
        assert "waits for its turn" in two.page.locator(".fsl-status").inner_text()
        tab.page.get_by_role("button", name="Stop").click()
        two.done()
        assert two.answer()


def test_errors_are_said_in_words_with_a_remedy(tab, address):
    page, notice = tab.page, tab.page.locator("#notice")
    page.get_by_role("radio", name="Plain text").click()
    page.get_by_label("Prompt", exact=True).fill(" ")
    page.get_by_role("button", name="Run", exact=True).click()
    assert "empty" in notice.inner_text() and in_view(notice)
    assert beside(notice, page.get_by_label("Prompt", exact=True))
    page.get_by_label("Prompt", exact=True).fill("many words " * 1000)
    page.get_by_role("button", name="Run", exact=True).click()
    tab.until(lambda: "1024" in notice.inner_text(), "the context's size")
    assert in_view(notice) and beside(notice, page.locator("#runbar"))
    page.get_by_role("button", name="Dismiss").click()
    assert not notice.is_visible()
    page.get_by_label("Prompt", exact=True).fill("Once")
    tab.context.set_offline(True)
    page.get_by_role("button", name="Run", exact=True).click()
    tab.until(lambda: "Start floatscope live again" in notice.inner_text(), "the server is gone")
    tab.context.set_offline(False)
    tab.errors = [e for e in tab.errors if "ERR_INTERNET_DISCONNECTED" not in e and "400" not in e]
    until(lambda: got(address + "models")["models"][0]["queue"] == 0, "no run is left")
