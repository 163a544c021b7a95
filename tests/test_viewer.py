"""The viewer in a browser: from a file, served, and in a notebook's frame; by mouse and by keyboard."""

import http.client
import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import browsing
import numpy as np
import planted
import pytest
from waiting import LIMIT

import floatscope as fs
from floatscope.report import embed
from floatscope.report.catalogue import StoredScenes
from floatscope.report.embed import assets, fragment, notebook, viewer_page
from floatscope.report.serve import make_server
from floatscope.scenes.pack import scene_of
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><svg onload=alert(3)>",
)


class Tab(browsing.Tab):
    """What the viewer in it shows."""

    def state(self, what):
        return self.page.evaluate(f"document.querySelector('.fsv').floatscope.{what}")

    def wait(self, what):
        self.until(lambda: self.state(what), what)

    def step(self, view=0):
        return self.state(f"views[{view}].step")

    def status(self, view=0):
        return self.page.locator(".fsv-status").nth(view).inner_text()

    def set_slider(self, value, view=0):
        act = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }"
        self.page.locator(".fsv-slider").nth(view).evaluate(act, value)

    def colours(self):
        act = "all => all.map(e => e.style.getPropertyValue('--fsv-fill'))"
        return self.page.locator(".fsv-cell").evaluate_all(act)


@pytest.fixture(scope="module")
def traces():
    """Two questions of the synthetic world, each traced in both models of the pair."""
    prompts = [prompt_of(e) for e in World().examples(LEVELS["three"], 2, seed=3)]
    mdm = fs.load("pair/mdm").trace(prompts, fs.Confidence(length=8, steps=8))
    arm = fs.load("pair/arm").trace(prompts, fs.Autoregressive(length=5, stop_at_eos=False))
    return [*mdm, *arm]


@pytest.fixture(scope="module")
def address(traces, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(viewer_page([scene_of(t) for t in traces], "The pair"), encoding="utf-8")
    return path.as_uri()


def hostile_traces():
    """Text that would like to be markup, in the question, a passage, a token and the model's name."""
    size, steps, rng = 16, 3, np.random.default_rng(0)
    tokens = [f" w{i}" for i in range(size)]
    tokens[1], tokens[6], tokens[15] = HOSTILE
    canvas = np.tile(np.arange(10, 10 + size), (steps + 1, 1))
    for t in range(steps):
        canvas[: t + 1, size - 1 - t] = planted.MASK
    for causal in (False, True):
        trace = planted.trace_of(
            planted.random_attention(rng, steps, 2, 2, size, causal=causal),
            causal=causal,
            regions=["question"] * 5 + ["passage <b>1</b>"] * 8 + ["answer"] * 3,
            prompt_length=13,
            canvas=canvas,
            tokens=tokens,
            events=[(t, size - 1 - t, 10 + size - 1 - t) for t in range(steps)],
            gold="passage <b>1</b>",
            model=HOSTILE[1],
        )
        trace.data.attrs |= {"text": HOSTILE[0], "sampler": HOSTILE[2], "family": HOSTILE[1]}
        yield trace


# From a file


def test_it_opens_from_a_file_without_a_request_or_an_error(browser, address):
    with Tab(browser, address) as tab:
        assert tab.asked_for() == [address]
        assert tab.page.locator(".fsv-transport").count() == 2  # both models, side by side
        assert tab.page.locator(".fsv-gold").count() == 2
        assert tab.page.evaluate("document.fonts.size") == 0


def test_the_numbers_of_the_page_are_the_numbers_of_the_trace(browser, address, traces):
    """What the browser decodes, against the trace itself."""
    with Tab(browser, address) as tab:
        for view, trace in ((0, traces[0]), (1, traces[2])):
            mass = trace.mass.transpose("step", "layer", "head", "key")
            scene = f"views[{view}].scene"
            row = tab.state(f"{scene}.shareRow(3, 4, -1)")
            np.testing.assert_allclose(row, mass[3, 4].mean("head"), rtol=2e-4)
            row = tab.state(f"{scene}.shareRow(2, 5, 6)")
            np.testing.assert_allclose(row[:30], mass[2, 5, 6][:30], rtol=0.025)
            lift = tab.state(f"{scene}.valueRow('lift', 1, -1, -1)")[:30]
            expected = trace.lift.mean(["layer", "head"]).transpose("step", "key")[1][:30]
            np.testing.assert_allclose(lift, expected, rtol=5e-4)


def test_the_slider_moves_both_models_by_their_progress(browser, address):
    with Tab(browser, address) as tab:
        before = tab.colours()
        tab.set_slider(7)
        assert (tab.step(0), tab.step(1)) == (7, 4)
        assert tab.status().startswith("step 7 of 0–7")
        assert tab.colours() != before
        tab.set_slider(2, view=1)
        assert (tab.step(0), tab.step(1)) == (4, 2)


def test_masks_are_hollow_and_what_is_revealed_is_outlined(browser, address, traces):
    with Tab(browser, address) as tab:
        tab.page.get_by_role("radio", name="MDM").click()
        masked, revealed = tab.page.locator(".fsv-masked"), tab.page.locator(".fsv-revealed")
        for step in range(8):
            tab.set_slider(step)
            assert masked.count() == int(traces[0].data["masked"][step].sum())
            assert revealed.count() == int((traces[0].change[step] == 1).sum())
        tab.set_slider(7)
        answer = traces[0].text.split()[0]
        dock = tab.page.locator(".fsv-dock .fsv-cells").inner_text()
        assert answer[:3] in dock.replace("\n", "")


def test_play_runs_to_the_end_and_pauses(browser, address):
    with Tab(browser, address, stopped_clock=True) as tab:
        tab.page.clock.pause_at("2040-01-01")
        play = tab.page.get_by_role("button", name="Play (space)").first
        play.click()
        tab.until(lambda: tab.step() >= 2 or tab.page.clock.run_for(100), "the second step")
        tab.page.get_by_role("button", name="Pause (space)").first.click()
        stopped = tab.step()
        tab.page.clock.run_for(60_000)
        assert tab.step() == stopped
        tab.set_slider(6)
        play.click()
        tab.page.clock.run_for(60_000)
        assert tab.state("playing") is None and tab.step() == 7


def test_layer_head_and_colour_can_be_chosen(browser, address):
    with Tab(browser, address) as tab:
        seen = [tab.colours()]
        assert tab.page.get_by_label("Head", exact=True).is_disabled()
        for label, value in (("Layer", "4"), ("Head", "6"), ("Colour", "share")):
            tab.page.get_by_label(label, exact=True).select_option(value)
            assert tab.colours() not in seen
            seen.append(tab.colours())
        assert (tab.state("layer"), tab.state("head")) == (4, 6)
        tab.page.get_by_label("Colour").select_option("change")
        tab.set_slider(3)
        assert tab.page.locator(".fsv-legend").inner_text().count("points") == 1
        tab.page.get_by_role("button", name="layer 2 head 3:").first.click()
        assert (tab.state("layer"), tab.state("head")) == (2, 3)
        for shown in ("gold", "token", "peak"):
            tab.page.get_by_label("Grid shows").select_option(shown)
        assert "strongest key" in tab.page.locator(".fsv-grid-card").first.inner_text()


def test_a_clicked_token_says_what_it_is_and_who_looks(browser, address, traces):
    with Tab(browser, address) as tab:
        tab.set_slider(5)
        tab.page.locator(".fsv-cell[data-key='20']").first.click()
        panel = tab.page.locator(".fsv-panel").first.inner_text()
        share = float(traces[0].mass.mean(["head", "layer"])[5, 20])
        shown = tab.state("views[0].panel.querySelector('.fsv-facts').innerText")
        number = float(shown.split("share")[1].split("%")[0])
        assert number == pytest.approx(100 * share, rel=6e-3)
        for part in ("lift", "part of the prompt", "Heads that look at it", "masked queries"):
            assert part in panel
        assert tab.page.locator(".fsv-selected").count() == 2  # its counterpart too
        tab.page.locator(".fsv-panel .fsv-link").first.click()
        assert tab.state("head") >= 0
        first = int(traces[0].info["prompt_length"])
        tab.page.locator(f".fsv-dock .fsv-cell[data-key='{first}']").first.click()
        panel = tab.page.locator(".fsv-panel").first.inner_text()
        assert "revealed at step" in panel and "What it looked at" in panel


def test_examples_and_models_switch(browser, address):
    with Tab(browser, address) as tab:
        texts = tab.page.locator(".fsv-cells").all_inner_texts()
        tab.page.get_by_label("Example").select_option("1")
        tab.wait("shown === 1")
        assert tab.page.locator(".fsv-cells").all_inner_texts() != texts
        for name, count in (("ARM", 1), ("MDM", 1), ("both", 2)):
            tab.page.get_by_role("radio", name=name).click()
            tab.wait(f"views.length === {count}")
            assert tab.page.get_by_role("radio", name=name).get_attribute("aria-checked") == "true"


def test_the_keyboard_does_it_all(browser, address):
    with Tab(browser, address) as tab:
        keys = tab.page.keyboard
        keys.press("ArrowRight")
        keys.press("ArrowRight")
        assert tab.step() == 2
        keys.press("ArrowLeft")
        assert tab.step() == 1
        keys.press("End")
        assert tab.step() == 7
        keys.press("Home")
        keys.press(" ")
        assert tab.state("playing") is not None
        keys.press(" ")
        assert tab.state("playing") is None and tab.step() == 0
        met = set()
        for _ in range(20):
            keys.press("Tab")
            met.add(tab.page.evaluate("document.activeElement.classList[0]"))
        assert {"fsv-cell", "fsv-button", "fsv-slider"} <= met
        tab.page.locator(".fsv-cell").first.focus()
        keys.press("ArrowDown")
        tip = tab.page.locator(".fsv-tip")
        assert "share" in tip.inner_text() and "lift" in tip.inner_text()
        keys.press("Enter")
        assert tab.state("selected.key") == 1
        keys.press("ArrowRight")
        assert tab.step() == 1
        tab.page.locator(".fsv-head").first.focus()
        assert "strongest key" in tip.inner_text()
        keys.press("ArrowDown")
        keys.press("Shift+ArrowRight")
        assert tip.inner_text().startswith("layer 1, head 1") and tab.step() == 1
        tab.page.locator(".fsv-path").first.focus()
        assert tip.inner_text().startswith("step 1:") and "lift" in tip.inner_text()
        tab.page.locator(".fsv-layer[tabindex='0']").first.focus()
        keys.press("ArrowDown")
        assert tip.inner_text().startswith("layer 1: share")
        keys.press("ArrowRight")  # the panel is made anew, and focus stays in it
        assert tab.step() == 2 and tab.page.evaluate(
            "document.activeElement.classList.contains('fsv-layer')"
        )
        tab.page.get_by_role("radio", name="ARM").focus()
        keys.press("Enter")
        assert tab.page.evaluate("document.activeElement.textContent") == "ARM"


def test_light_dark_narrow_and_print(browser, address, tmp_path):
    """Nothing is wider than the window, the theme follows the system and the switch, and prints light."""
    narrow = {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}
    with Tab(browser, address, **narrow) as tab:
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 400
        assert tab.state("isDark()") is True
        dark = tab.colours()
        tab.page.get_by_role("button", name="Light or dark").click()
        tab.wait("isDark() === false")
        tab.until(lambda: tab.colours() != dark, "the light colours")
        tab.page.pdf(path=tmp_path / "page.pdf")
        assert b"/Type /Page\n" in (tmp_path / "page.pdf").read_bytes()


def test_every_scale_can_be_read_in_grey(browser, address):
    """Lightness goes one way along every scale, and letters on it keep a contrast of 4.5."""
    luminance = """(rgb) => { const [r, g, b] = rgb.map(v => v / 255).map(
        v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b; }"""
    with Tab(browser, address) as tab:
        for theme in ("light", "dark"):
            tab.page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            for mode in ("share", "lift", "change"):
                tab.page.get_by_label("Colour").select_option(mode)
                ramp = tab.page.evaluate(
                    f"document.querySelector('.fsv').floatscope.scale.ramp.map({luminance})"
                )
                rising = np.diff(ramp[::8]) * (1 if theme == "dark" else -1)
                assert (rising > 0).all(), (theme, mode, rising)
                ink = [max(1.05 / (v + 0.05), (v + 0.05) / 0.05) for v in ramp]
                assert min(ink) >= 4.5


def odd_traces(llada, llama):
    """What a user may well trace, and a viewer must not stumble over."""
    few, three = fs.Confidence(length=4, steps=4), [5, 6, 7]
    yield "one position", llada.trace([5], fs.Confidence(length=1, steps=1))
    yield "mass alone", llada.trace(three, few, keep=["mass"])
    yield (
        "some steps, layers, heads",
        llada.trace(three, few, steps=[1, 3], layers=[2], heads=[0, 3]),
    )
    yield (
        "groups by region",
        llada.trace(fs.Prompt.rag("why", ["a b", "c d"], gold=1), few, groups="regions"),
    )
    yield "taken back", llada.trace(three, fs.samplers.Remask(length=6, steps=6))
    yield "half precision", llada.trace(three, few, dtype="float16")
    yield "causal", llama.trace(three, fs.Autoregressive(length=4, stop_at_eos=False))
    yield "two of a kind", llada.trace(three, few)
    yield "two of a kind", llada.trace(three, fs.samplers.Random(length=4, steps=2))


def test_odd_traces_open_too(browser, llada, llama, tmp_path):
    scenes = [scene_of(t, example=n, title=n) for n, t in odd_traces(llada, llama)]
    tight = scene_of(next(hostile_traces()), example="tight", title="tight", budget=5200)
    scenes.append(tight | {"single_heads": None})
    path = tmp_path / "odd.html"
    path.write_text(viewer_page(scenes, "Odd"), encoding="utf-8")
    with Tab(browser, path.as_uri()) as tab:
        for example in range(9):
            tab.page.get_by_label("Example").select_option(str(example))
            tab.wait(f"shown === {example}")
            tab.page.locator(".fsv-cell").first.click()
            for mode in ("share", "lift", "change"):
                tab.page.get_by_label("Colour").select_option(mode)
            tab.page.locator(".fsv-head").last.click()
            tab.page.locator(".fsv").press("End")
            assert "NaN" not in tab.page.locator(".fsv").inner_text()
            assert "undefined" not in tab.page.locator(".fsv").inner_text()
        assert "left out" in tab.page.locator(".fsv-panel").first.inner_text()
        assert "sampled 2 of 3 steps" in tab.page.locator(".fsv-message").inner_text()


# Hostile text, everywhere


def assert_harmless(page_or_frame):
    page_or_frame.wait_for_selector(".fsv-cell")
    slider = "all => all.forEach(e => { e.value = 2; e.dispatchEvent(new Event('input')); })"
    page_or_frame.locator(".fsv-slider").evaluate_all(slider)
    for key in (1, 6, 15):
        page_or_frame.locator(f".fsv-cell[data-key='{key}']").first.click()
    page_or_frame.locator(".fsv-head").first.hover()
    inside = page_or_frame.locator(".fsv")
    text = inside.inner_text()
    for words in HOSTILE:
        assert words in text
    assert inside.locator("script, img, [onload], [onerror]").count() == 0
    assert inside.locator("svg b, .fsv-band-name b").count() == 0


def test_text_is_text_in_a_page(browser, tmp_path):
    path = tmp_path / "hostile.html"
    scenes = [scene_of(t, title=HOSTILE[0]) for t in hostile_traces()]
    path.write_text(viewer_page(scenes, HOSTILE[2]), encoding="utf-8")
    with Tab(browser, path.as_uri()) as tab:
        assert_harmless(tab.page)
        assert tab.page.locator("h1").inner_text() == HOSTILE[2]
        assert tab.page.title() == HOSTILE[2]
        assert tab.asked_for() == [path.as_uri()]


def test_text_is_text_in_a_notebook_and_views_do_not_meet(browser, tmp_path):
    """Two frames and two fragments on one page: each has its own state."""
    traces = list(hostile_traces())
    path = tmp_path / "notebook.html"
    plain = [fragment([scene_of(t)], with_assets=False) for t in traces]
    frames = [traces[0]._repr_html_(), notebook(traces)]
    path.write_text(
        "<!doctype html><meta charset='utf-8'><link rel='icon' href='data:,'>"
        + "".join([assets(), *plain, *frames]),
        encoding="utf-8",
    )
    with Tab(browser, path.as_uri()) as tab:
        frames = [f for f in tab.page.frames if f != tab.page.main_frame]
        assert len(frames) == 2
        for frame in frames:
            assert_harmless(frame)
        sliders = tab.page.locator(".fsv-slider")
        assert sliders.count() == 2
        sliders.first.evaluate("e => { e.value = 2; e.dispatchEvent(new Event('input')); }")
        steps = "all => all.map(e => e.floatscope.views[0].step)"
        assert tab.page.locator(".fsv").evaluate_all(steps) == [2, 0]
        ids = tab.page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
        assert len(ids) == len(set(ids))


# Served


@pytest.fixture
def server(traces, tmp_path):
    for i, trace in enumerate([*traces[::2], *hostile_traces()]):
        trace.save(tmp_path / f"shards/{i}.zarr")
    made = make_server(tmp_path)
    made.page.source.budget = 200_000  # so that single heads are fetched on demand
    with serving(made):
        yield made


@contextmanager
def serving(made):
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_stored_scene_is_served_as_it_is_and_nothing_is_fetched(browser, traces):
    """As a run stores one: of single heads it has some steps, and the viewer says which it shows."""
    scene = scene_of(traces[0], budget=180_000)
    kept = scene["single_heads"]["kept"]
    assert 0 < len(kept) < len(scene["steps"])
    lacking = next(step for step in range(len(scene["steps"])) if step not in kept)
    source = StoredScenes("A run", ["r0"], lambda _: scene, lambda _: scene)
    made = make_server(source)
    with serving(made), Tab(browser, made.url) as tab:
        tab.page.get_by_label("Layer", exact=True).select_option("4")
        tab.page.get_by_label("Head", exact=True).select_option("6")
        tab.set_slider(lacking)
        message = tab.page.locator(".fsv-message")
        tab.until(lambda: "the nearest one kept" in message.inner_text(), "which step is shown")
        paths = [url.split("/", 4)[4] for url in tab.requests if url.startswith("http")]
        assert paths == ["", "index", "scene/r0"]


def test_the_served_view_reads_scenes_and_heads_when_asked(browser, server, traces):
    with Tab(browser, server.url) as tab:
        paths = [url.split("/", 4)[4] for url in tab.requests if url.startswith("http")]
        assert paths == ["", "index", "scene/t0", "scene/t1"]
        tab.page.get_by_label("Layer", exact=True).select_option("4")
        tab.page.get_by_label("Head", exact=True).select_option("6")
        with tab.page.expect_response(lambda r: "/scene/t0/heads/3" in r.url):
            tab.set_slider(3)
        tab.wait("views[0].scene.fetched.has(3)")
        row = tab.state("views[0].scene.shareRow(3, 4, 6)")
        expected = traces[0].mass.transpose("step", "layer", "head", "key")[3, 4, 6]
        np.testing.assert_allclose(row, expected, rtol=2e-4)
        tab.page.get_by_label("Example").select_option("1")
        tab.page.wait_for_selector(".fsv-band-name:has-text('passage <b>1</b>')")
        assert_harmless(tab.page)


def test_a_chosen_head_is_there_at_every_step(browser, server, traces):
    """One request brings its whole way; nothing is said to be missing."""
    with Tab(browser, server.url) as tab:
        assert "single heads" not in tab.page.locator(".fsv-message").inner_text()
        tab.page.get_by_label("Layer", exact=True).select_option("4")
        tab.page.get_by_label("Head", exact=True).select_option("6")
        tab.wait("views[0].scene.alone.has('4/6')")
        for view, trace in ((0, traces[0]), (1, traces[2])):  # the second fits into its scene
            mass = trace.mass.transpose("step", "layer", "head", "key")
            for step in range(trace.n_steps):
                assert tab.state(f"views[{view}].scene.headStep({step}, 4, 6)") == step
                row = tab.state(f"views[{view}].scene.shareRow({step}, 4, 6)")
                np.testing.assert_allclose(row, mass[step, 4, 6], rtol=0.025 if view else 2e-4)
            dots = tab.page.locator(".fsv-path").nth(view).locator(".fsv-dot")
            assert dots.count() == trace.n_steps
        change = tab.state("views[0].scene.valueRow('change', 5, 4, 6)")
        mass = traces[0].mass.transpose("step", "layer", "head", "key").values
        np.testing.assert_allclose(change, mass[5, 4, 6] - mass[4, 4, 6], atol=2e-4)
        asked = [url.split("/scene/")[1] for url in tab.requests if "/head/" in url]
        assert asked == ["t0/head/4/6"]
        assert "single heads" not in tab.page.locator(".fsv-message").inner_text()


def test_a_head_that_cannot_be_read_is_said_and_asked_for_again(browser, server):
    with Tab(browser, server.url) as tab:
        tab.page.route("**/head*/**", lambda route: route.fulfill(status=500, body="no"))
        tab.page.get_by_label("Layer", exact=True).select_option("4")
        tab.page.get_by_label("Head", exact=True).select_option("6")
        message = tab.page.locator(".fsv-message")
        tab.until(lambda: "could not be read: 500" in message.inner_text(), "the reason")
        tab.wait("views[0].scene.asked.size === 0")
        tab.page.unroute("**/head*/**")
        tab.set_slider(3)
        tab.wait("views[0].scene.alone.has('4/6')")
        tab.until(lambda: "single heads" not in message.inner_text(), "the head")
        assert all("500" in error for error in tab.errors)  # the browser's own words for it
        tab.errors.clear()


def test_a_notebook_says_which_steps_have_heads_and_what_to_type(
    browser, traces, tmp_path, monkeypatch
):
    assert "floatscope view" not in traces[0]._repr_html_()  # all of them fit
    monkeypatch.setattr(embed, "_NOTEBOOK_BUDGET", 200_000)
    path = tmp_path / "notebook.html"
    shown = traces[0]._repr_html_()
    assert len(shown) < 1_000_000
    path.write_text(f"<!doctype html><meta charset='utf-8'>{shown}", encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector(".fsv-cell")
    said = frame.locator(".fsv-message").inner_text()
    page.close()
    count = int(said.split("single heads for ")[1].split(" of 8 steps")[0])
    named = said.split("those are steps ")[1].split(";")[0].split(", ")
    assert 0 < count == len(named) < 8 and named[0] == "1"
    assert 'trace.save("traces/this.zarr")' in said and "floatscope view traces" in said


def ask(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
    connection.request(method, f"/{server.key}{path}", headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.headers


def test_the_server_answers_this_machine_and_nothing_else(server, tmp_path):
    status, body, headers = ask(server, "/index")
    assert status == 200 and len(json.loads(body)["examples"]) == 2
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1:1"):
        assert ask(server, "/index", host=host)[0] == 403
    (tmp_path / "secret.txt").write_text("nobody reads this")
    escapes = "/secret.txt /../secret.txt /scene/../secret.txt /scene/..%2f..%2fsecret.txt"
    assert ask(server, "/scene/t0/head/4/6")[0] == 200
    nothing = "/scene/t99 /scene/t0/heads/99 /scene/t0/head/99/0 /scene/t0/head/0/99 "
    nothing += "/scene/t0/head/0 /scene/ /shards/0.zarr/zarr.json //etc/passwd"
    for path in (*escapes.split(), *nothing.split()):
        status, body, _ = ask(server, path)
        assert status == 404 and "nobody" not in body
    assert ask(server, "/", method="POST")[0] == 415  # whatever it brings: nothing is taken
    assert server.server_address[0] == "127.0.0.1"


def test_a_trace_that_cannot_be_shown_is_named(browser, tmp_path, llada):
    whole, damaged = list(hostile_traces())
    whole.save(tmp_path / "a.zarr")
    damaged.save(tmp_path / "b.zarr")
    (tmp_path / "b.zarr/canvas/zarr.json").unlink()
    bare = llada.trace([5, 6], fs.Confidence(length=2, steps=2), keep=["entropy"])
    bare.save(tmp_path / "c.zarr")
    assert bare._repr_html_() is None
    made = make_server(tmp_path)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    with Tab(browser, made.url) as tab:
        said = tab.page.locator(".fsv-message").inner_text()
        assert "2 traces could not be read" in said and "b.zarr is damaged" in said
    made.shutdown()
    made.server_close()


def test_a_directory_without_traces_is_refused(tmp_path):
    with pytest.raises(fs.UsageError, match="no saved traces"):
        make_server(tmp_path)


def test_ctrl_c_ends_the_server_cleanly(tmp_path):
    next(hostile_traces()).save(tmp_path / "t.zarr")
    code = "import sys; from floatscope.report.serve import serve; serve(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout.readline().startswith("http://127.0.0.1:")
        run.send_signal(signal.SIGINT)
        out, errors = run.communicate(timeout=LIMIT)
        assert (run.returncode, out, errors) == (0, "ended\n", "")
