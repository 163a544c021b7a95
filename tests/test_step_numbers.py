"""A step has one number, from 0: in arrays, in the terminal, in the viewer and in figures."""

import re

import browsing
import numpy as np
import pytest

import floatscope as fs
from floatscope import heatmap
from floatscope.report.embed import viewer_page
from floatscope.scenes.pack import scene_of

LENGTH, STEPS = 6, 4
SAMPLERS = {"pair/mdm": ("--steps", STEPS), "pair/arm": ()}


@pytest.fixture(params=SAMPLERS)
def traced(request, pair_kept, command_line, tmp_path):
    """One decoding: the trace that a command saved, and what it printed."""
    where = ["--model", request.param, "--prompt", "Where does Ada live?", "--out", tmp_path / "t"]
    how = ["--length", LENGTH, *SAMPLERS[request.param], "--keep", "mass,rows"]
    printed = command_line("trace", *where, *how).stdout
    return fs.Trace.load(tmp_path / "t"), printed


def revealed_at(trace):
    """The step of each answer position: masked (or not there) when it looked, not so at the next."""
    start = trace.info["prompt_length"]
    empty = trace.data["masked"].values | (trace.canvas.values[:-1] < 0)
    return [int(np.flatnonzero(empty[:, key])[-1]) for key in range(start, trace.mass.sizes["key"])]


class Tab(browsing.Tab):
    def go(self, place):
        act = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }"
        self.page.locator(".fsv-slider").evaluate(act, place)

    def says(self, selector):
        return self.page.locator(selector).first.inner_text()


@pytest.fixture
def shown(browser, tmp_path):
    def show(trace):
        page = tmp_path / "page.html"
        page.write_text(viewer_page([scene_of(trace)], "Steps"), encoding="utf-8")
        return Tab(browser, page.as_uri())

    return show


def test_one_number_everywhere(traced, shown):
    trace, printed = traced
    steps, start, when = trace.n_steps, trace.info["prompt_length"], revealed_at(trace)
    # Arrays
    assert trace.mass["step"].values.tolist() == list(range(steps)) and min(when) == 0
    by_event = dict(
        zip(trace.rows["event_position"].values, trace.rows["event_step"].values, strict=True)
    )
    assert [by_event[start + i] for i in range(len(when))] == when
    assert (trace.change == 1).argmax("tick").values[start:].tolist() == when
    # The terminal
    order = printed[printed.index("order") : printed.index("Where attention rests")]
    assert [int(n) for n in re.findall(r"·(\d+)\b", order)] == when
    assert f"{steps} steps" in printed
    # The viewer
    with shown(trace) as tab:
        for step in range(steps):
            tab.go(step)
            name = f"step {step} of 0–{steps - 1}"
            assert tab.says(".fsv-status").startswith(f"{name} reveals")
            assert tab.page.locator(".fsv-slider").get_attribute("aria-valuetext") == name
            revealed = tab.page.locator(".fsv-revealed").evaluate_all(
                "all => all.map(e => Number(e.dataset.key))"
            )
            assert revealed == [start + i for i, at in enumerate(when) if at == step]
        ends = tab.page.locator(".fsv-path-step").all_text_contents()
        assert ends == ["step 0", f"step {steps - 1}"]
        for i, at in enumerate(when):
            tab.page.locator(f".fsv-cell[data-key='{start + i}']").click()
            panel = tab.says(".fsv-panel")
            assert f"revealed at step {at}\n" in panel
            assert f"What it looked at when revealed (step {at})" in panel


def test_kept_steps_go_by_their_own_number(load, shown):
    trace = load("pair/mdm").trace(
        "Where does Ada live?",
        fs.Confidence(length=LENGTH, steps=LENGTH),
        steps=[1, 4],
        keep="mass",
    )
    assert trace.mass.sel(step=4).equals(trace.mass.isel(step=1))
    with shown(trace) as tab:
        for place, step in enumerate([1, 4]):
            tab.go(place)
            assert tab.says(".fsv-status").startswith(f"step {step} of 0–5 reveals")
    [axis, *_] = heatmap(trace).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["1", "4"]


def test_the_viewer_names_what_a_row_saw_not_what_it_became(load, shown):
    """Keys that a reveal looked at are masks where they were masked then."""
    trace = load("pair/mdm").trace("Where does Ada live?", fs.Confidence(length=LENGTH))
    start, when = trace.info["prompt_length"], revealed_at(trace)
    first = start + when.index(0)
    with shown(trace) as tab:
        cell = tab.page.locator(f".fsv-cell[data-key='{first}']")
        cell.click()
        assert tab.says(".fsv-token-text").startswith("mask position")
        assert "in the end" in tab.says(".fsv-token-text")
        looked = tab.page.locator(".fsv-panel .fsv-link").all_inner_texts()
        in_answer = [
            one for one in looked if (key := re.search(r" (\d+)$", one)) and int(key[1]) >= start
        ]
        assert in_answer and all(one.startswith("mask ") for one in in_answer)
        tab.go(LENGTH - 1)
        assert "in the end" not in tab.says(".fsv-token-text")
