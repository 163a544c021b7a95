"""The report page: numbers, drawings and figures by themselves, then the whole in a browser."""

import json
import math
import re
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import planted
import pytest
from browsing import Tab
from matplotlib.figure import Figure
from waiting import until

from floatscope.glossary import load_glossary
from floatscope.plots import STYLE, save
from floatscope.report import numbers, ranges, strips
from floatscope.report.page import TITLE, Drawing, _link, _tight, image, render
from floatscope.scenes.pack import scene_of
from floatscope.studies.answer import Answered, Part
from floatscope.studies.claim import VERDICTS, Claim, Number, describe_curve
from floatscope.studies.findings import Findings
from floatscope.studies.request import request_of
from floatscope.studies.study import Study
from floatscope.studies.verdict import Rule, curve_of

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror=alert(2)>'
HOSTILE = f"{SCRIPT}{IMAGE}'</style></title></script>{{{{7*7}}}}"


# Numbers


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (0.07314, "0.0731"),
        (7.3149, "7.31"),
        (731.49, "731"),
        (73149, "73,100"),
        (9.996, "10.0"),
        (99.96, "100"),
        (-0.5, "−0.500"),
        (0, "0"),
        (-0.0, "0"),
        (1e-7, "1.00·10⁻⁷"),
        (2.5e12, "2.50·10¹²"),
        (math.nan, "–"),
        (None, "–"),
        (-math.inf, "−∞"),
        (np.float32(0.25), "0.250"),
    ],
)
def test_three_significant_digits(x, shown):
    assert numbers.digits(x) == shown


def a_number(value=0.0731, low=0.0502, high=0.0938, null=0.0031, unit="%", n=24, label="MDM"):
    return Number(label, value, low, high, null, unit, n)


def in_words(number):
    return ", ".join(filter(None, [numbers.estimate(number), numbers.context(number)]))


def test_a_number_in_words():
    assert in_words(a_number()) == "7.31 % [5.02, 9.38], null 0.310 %, n = 24"
    assert in_words(a_number(unit="×", null=1)) == "0.0731× [0.0502, 0.0938], null 1.00×, n = 24"
    bits = a_number(2.5, None, None, None, "bits", None)
    assert in_words(bits) == "2.50 bits"
    assert in_words(a_number(math.nan, math.nan, math.nan)) == "–, null 0.310 %, n = 24"
    assert numbers.interval(-0.5, 0.5, "%") == "[−50.0, 50.0]"
    assert numbers.interval(None, 0.5) == ""
    assert numbers.count(12345) == "n = 12,345"
    assert [numbers.short(x, "%") for x in (0, 1, 0.025)] == ["0", "100 %", "2.5 %"]


@pytest.mark.parametrize(
    ("cells", "shown", "numeric"),
    [
        ([0.0, 1.0, math.nan], ["0", "1", "–"], True),
        ([np.float32(0.5), np.int64(1), None], ["0.500", "1.00", "–"], True),
        ([-3, 12345], ["−3", "12345"], True),
        (["a", None, "1.5"], ["a", "–", "1.5"], False),
        ([True, np.bool_(False)], ["True", "False"], False),
        ([math.nan, None], ["–", "–"], False),
        ([], [], False),
    ],
)
def test_columns_of_a_table(cells, shown, numeric):
    assert numbers.column(pd.Series(cells)) == (shown, numeric)


# Ranges


def places(drawing):
    return {
        name: [float(x) for x in re.findall(r'(?:x1|x2|cx)="([\d.]+)%"', part)]
        for name, part in re.findall(r'class="(\w+)"([^>]*)', drawing)
    }


def test_a_range_shows_value_interval_and_null_on_one_scale():
    first, second = ranges.drawings([a_number(0.25, 0.2, 0.3, 0.1), a_number(1.0, 0.9, 1.0, 0.1)])
    seen = places(first)
    assert (
        seen["value"] == [26.0] and seen["between"] == [21.2, 30.8] and seen["null"] == [11.6, 11.6]
    )
    assert places(second)["value"] == [98.0]
    assert "<text" not in first and ">100 %</text>" in second


def test_numbers_between_others_keep_their_scale():
    shares = [a_number(0.5, None, None, None), a_number(1.0, None, None, None)]
    first, lift, second = ranges.drawings([shares[0], a_number(2, 1, 3, 1, "×"), shares[1]])
    assert places(first)["value"] == [50.0] and places(second)["value"] == [98.0]
    assert all("<text" in drawing for drawing in (first, lift, second))


def test_lifts_are_logarithmic_and_bad_numbers_draw_nothing():
    (drawing,) = ranges.drawings([a_number(4, 0.25, 4, 1, "×")])
    assert places(drawing)["null"][0] == pytest.approx(50, abs=0.1)
    (zero,) = ranges.drawings([a_number(1, 0, 2, 1, "×")])
    assert places(zero)["between"][0] == 2.0
    (nothing,) = ranges.drawings([a_number(math.nan, None, math.inf, None, "bits")])
    assert set(places(nothing)) <= {"axis", "end", "range"}
    (negative,) = ranges.drawings([a_number(-0.2, -0.4, 0.1, 0, "correlation")])
    seen = places(negative)
    assert "zero" in seen and seen["between"][0] < seen["value"][0] < seen["null"][0]
    (unseen,) = ranges.drawings([a_number(0.9, -8e-6, 1, 0, "points")])
    assert ">0<" in unseen and ">100 points<" in unseen  # no label runs into the other
    (both,) = ranges.drawings([a_number(-0.2, -0.4, 0.25, 0, "points")])
    assert ">−40<" in both and ">25 points<" in both  # the unit stands once
    (below,) = ranges.drawings([a_number(-0.2, -0.4, -0.1, 0, "points")])
    assert ">−40 points<" in below and ">0<" in below
    (lift,) = ranges.drawings([a_number(4, 0.25, 4, 1, "×")])
    assert ">0.25<" in lift and ">4×<" in lift
    (hostile,) = ranges.drawings([a_number(unit=HOSTILE)])
    assert "<script" not in hostile and "<img" not in hostile
    (none,) = ranges.drawings([a_number(0.0, 0.0, 0.0, 0.0)])
    assert "100 %" in none, "nothing was right: a scale all the same"
    assert ranges.drawings([]) == []


# Strips


def bands(drawing):
    found = re.findall(r'class="band is-(\w+)" x="([\d.]+)%" width="([\d.]+)%"', drawing)
    return {name: (float(x), float(x) + float(width)) for name, x, width in found}


@pytest.mark.parametrize("more", [True, False])
def test_a_strip_shows_where_the_verdict_changes(more):
    """The interval is 5.02 to 9.38 %, the strip goes from 0 to 16 %."""
    curve = curve_of(a_rule(above=more), a_number())
    assert (curve.holds_to, curve.refuted_from) == ((0.0502, 0.0938) if more else (0.0938, 0.0502))
    seen = bands(strips.strip(curve))
    low, high = (3 + 94 * x / 0.16 for x in (0.0502, 0.0938))
    below, above = ("holds", "refuted") if more else ("refuted", "holds")
    assert seen[below] == pytest.approx((3, low), abs=0.02)
    assert seen[above] == pytest.approx((high, 97), abs=0.02)
    middle = ["undecided", "undecided"]  # at 6 and 8 %
    assert [*curve.verdicts] == [below, below, below, below, *middle, above]
    sides = ("below 5.02 %", "above 9.38 %") if more else ("above 9.38 %", "below 5.02 %")
    assert describe_curve(curve) == (
        f"The claim holds for δ {sides[0]}, is refuted for δ {sides[1]}, is undecided otherwise. "
        "Registered: δ = 4.00 %."
    )


def test_too_few_examples_are_undecided_for_every_delta():
    curve = curve_of(a_rule(), a_number(n=8))
    assert set(curve.verdicts) == {"undecided"} and set(bands(strips.strip(curve))) == {"undecided"}
    assert describe_curve(curve).startswith("The claim is undecided for every δ.")
    assert curve_of(a_rule(), None) is None and curve_of(a_rule(), a_number(), bar="x") is None


def test_what_untrained_weights_earn_holds_for_no_delta():
    curve = curve_of(a_rule(untrained=True), a_number(), a_number(0.08, 0.06, 0.1))
    assert curve.holds_to is None and curve.refuted_from == 0.0938 and "holds" not in curve.verdicts


def test_deltas_of_a_lift_count_from_one_and_those_at_zero_go_both_ways():
    lift = curve_of(a_rule(delta=2.0, unit="×"), a_number(14.2, 11, 18, 1, "×"))
    assert lift.deltas == (1, 1.25, 1.5, 2, 2.5, 3, 5)
    none = curve_of(a_rule(delta=0.0, unit="points"), a_number(unit="points"))
    assert min(none.deltas) == -max(none.deltas) < 0
    assert "δ = 0" in strips.strip(none)


# Figures


def drawn(tmp_path):
    from matplotlib import rc_context

    with rc_context(STYLE):
        made = Figure(figsize=(3.3, 2.3))
        axis = made.subplots()
        axis.plot([0, 1], [0, 1], label="a < b & c")
        axis.legend()
    return save(made, tmp_path / "figure.svg").read_text()


BAD_SVG = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
 width="90" height="60" onload="alert(3)"><script>alert(4)</script><style>* {fill: red}</style>
 <foreignObject><img xmlns="http://www.w3.org/1999/xhtml" src="x" onerror="alert(5)"/></foreignObject>
 <a xlink:href="javascript:alert(6)"><text>link</text></a>
 <image xlink:href="https://evil.example/a.png" width="9" height="9"/>
 <image href="data:image/svg+xml;base64,AAAA" width="9" height="9"/>
 <use xlink:href="https://evil.example/b.svg#x"/><animate attributeName="href" to="javascript:alert(7)"/>
 <rect width="9" height="9" fill="url(https://evil.example/c)" onclick="alert(8)"
  style="fill: url(//evil.example/d); mask: image-set('//evil.example/e' 1x); stroke: red; behavior: x"/>
 <rect style="fill: u\\72l(//evil.example/f); opacity: .5" clip-path="url(#here)"/><set/>
 <text x="5" y="30">&lt;script&gt;alert(9)&lt;/script&gt;</text></svg>"""


# The whole


def a_scene(text="A question", model="pair/mdm"):
    size, steps, rng = 12, 3, np.random.default_rng(0)
    canvas = np.tile(np.arange(10, 10 + size), (steps + 1, 1))
    for t in range(steps):
        canvas[: t + 1, size - 1 - t] = planted.MASK
    trace = planted.trace_of(
        planted.random_attention(rng, steps, 2, 2, size, causal=False),
        regions=["question"] * 4 + ["passage 1"] * 5 + ["answer"] * 3,
        prompt_length=9,
        canvas=canvas,
        tokens=[text, *(f" w{i}" for i in range(1, size))],
        events=[(t, size - 1 - t, 10 + size - 1 - t) for t in range(steps)],
        gold="passage 1",
        model=model,
    )
    return scene_of(trace, title=text)


def a_rule(**more):
    return Rule("1", "Water is wet", "wetness", **({"delta": 0.04, "unit": "%"} | more))


def given(name, text):
    """A study that asks nothing by itself and has one table."""
    study = type("Given", (Study,), {"name": name, "makes": (text("rows"),)})()
    study.question = text(f"What about {name}?")
    study.method = text("lift(j) = received(j) / null(j)\n  over  keys")
    return study


def findings_of(text=lambda words: words, **values):
    """Findings without a run: what is given, and nothing else."""
    found = object.__new__(Findings)
    request = request_of({"studies": ["floating"], "models": [text("pair/mdm")]})
    nothing = {
        "verdicts": (),
        "questions": [],
        "studies": [],
        "models": {},
        "warnings": [],
        "extra_runs": (),
    }
    found.__dict__ |= {"request": request, "tables": {}, **nothing, **values}
    return found


def a_page(svg, text=lambda words: words, names=("floating", "geometry"), scenes=2):
    several = (a_number(label=text("MDM")), a_number(0.98, 0.96, 0.99, label=text("ARM")))
    lift = (a_number(14.2, 11, 18, 1, text("×"), label=text("lift")),)
    claims = tuple(
        Claim(
            str(i + 1),
            text(f"Claim {i + 1}"),
            v,
            text("It is 7.31 % [5.02, 9.38]."),
            several + lift,
            names[i % 2],
            rule=text("θ = x. Holds above 5 %."),
            curve=curve_of(a_rule(), replace(several[0], n=24)),
            scope=text("for pair/mdm, 24 prompts of world:mixed"),
        )
        for i, v in enumerate(VERDICTS)
    )
    rows = [(text("mdm"), i, i / 7, None, math.nan) for i in range(1234)]
    about = {"family": "LLaDA", "direction": "bidirectional", "fingerprint": "2bce3893"}
    about = {key: text(words) for key, words in about.items()}
    about |= {"parameters": 1_200_000, "layers": text("8"), "heads": 4}
    found = findings_of(
        text,
        verdicts=claims,
        questions=[
            Answered(
                text("Is water wet?"),
                tuple(Part(c, text("At sea"), text("It is.")) for c in claims),
            )
        ],
        models={text("pair/mdm"): about, text("pair/arm"): about},
        studies=[given(name, text) for name in names],
        sentences=dict.fromkeys(names, (text("First."), text("Second."))),
        claims={name: claims[i::2] for i, name in enumerate(names)},
        tables={text("rows"): pd.DataFrame(rows, columns=[text("model"), *"abcd"])},
    )
    figures = [
        [Drawing(text("A figure"), text("In words"), image(svg), 317) for _ in range(2)]
        for _ in names
    ]
    shown = [a_scene(text(f"Question {i}"), text("pair/mdm")) for i in range(scenes)]
    opening = [Drawing(text("A layer"), text("Step by step"), image(svg), 317)]
    return render(found, figures, shown, [text("The viewer shows 2 of 24 examples.")], opening)


def test_a_page_is_one_document_without_an_address():
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><path id="a" d="M0 0"/></svg>'
    made = a_page(svg)
    assert made == a_page(svg)
    assert made.lstrip().startswith("<!doctype html>")
    assert "default-src 'none'" in made.replace("&#39;", "'")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", made)
    assert made.count("window.floatscopeEmbedded =") == 1
    ids = re.findall(r'<[^>]* id="([^"]+)"', made)
    assert len(ids) == len(set(ids))
    assert "1,234 lines, the first 6 here" in made and made.count("<td>mdm</td>") == 12


def test_an_empty_page_and_odd_names():
    made = render(findings_of(), [])
    assert f"<h1>{TITLE}</h1>" in made and 'id="viewer"' not in made
    svg = '<svg viewBox="0 0 9 9"/>'
    made = a_page(svg, names=("É!", "é?"), scenes=0)
    ids = re.findall(r'<section id="(study-[^"]*)"', made)
    assert len(set(ids)) == 2
    with pytest.raises(ValueError, match="verdict"):
        Claim("1", "", "perhaps", "", (), "")


@pytest.mark.parametrize(
    "file", ["javascript:alert(1)", "//evil.example/x", "\\\\evil\\x", 'a" b<.parquet']
)
def test_a_table_links_to_a_file_beside_the_page(file):
    study = given("s", lambda words: file)
    tables = {file: pd.DataFrame({"a": [1]})}
    found = findings_of(studies=[study], sentences={"s": ()}, claims={"s": ()}, tables=tables)
    (link,) = re.findall(r'<p class="file"><a href="([^"]*)"', render(found, [[]]))
    assert re.fullmatch(r"\./results/[^:\\\s<>]+", link)
    link = _link(file)
    assert re.fullmatch(r"\./[^/:\\\s<>][^:\\\s<>]*", link)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("test it with --data long:continuation --length 64.", ["--data long:continuation", "--length 64"]),
        ("let go (--view keeps more)", ["--view"]),
        ("add one with --model. (floatscope compare)", ["--model", "floatscope compare"]),
        ("give --set decoding.frequencies=FILE", ["--set decoding.frequencies=FILE"]),
        ("a--b and ---", []),
    ],
)  # fmt: skip
def test_an_option_and_its_value_stay_on_one_line(text, typed):
    assert re.findall(r'<code class="word">(.*?)</code>', _tight(text)) == typed
    assert "<b>" not in _tight("<b> --model") and "[1,\u00a02]" in _tight("[1, 2]")


# In a browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(a_page(drawn(folder)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def open_page(browser):
    """Opens an address; at the end nothing was asked for, nothing failed, nothing popped up."""
    with ExitStack() as tabs:

        def opening(address, **options):
            tab = tabs.enter_context(Tab(browser, address, **options))
            tabs.callback(lambda: assert_asked_for(tab, address))
            return tab.page

        yield opening


def assert_asked_for(tab, address):
    assert {url.split("#")[0] for url in tab.asked_for()} == {address}


def count(page, selector, number):
    """Until so many are there."""
    until(lambda: page.locator(selector).count() == number or page.wait_for_timeout(10), selector)


def test_a_claim_is_one_line_that_unfolds_and_leads_to_its_section(open_page, address):
    page = open_page(address)
    cards = page.locator("details.claim")
    assert cards.count() == 4
    for i, verdict in enumerate(VERDICTS):
        card = cards.nth(i)
        line = card.locator("summary")
        assert line.locator(".verdict").inner_text() == verdict
        assert line.bounding_box()["height"] < 40 and not card.locator(".numbers").is_visible()
        line.click()
        assert card.locator("summary .shape").count() == 1 and card.locator(".range").count() == 3
        assert "98.0 % [96.0, 99.0]" in card.inner_text().replace("\u00a0", " ")
        assert "null 0.310 %, n = 24" in card.inner_text()
        card.locator(".more a").click()
        place = page.evaluate("document.querySelector(location.hash).getBoundingClientRect().top")
        assert -60 < place < 900
    count(page, ".bar a[aria-current]", 1)
    current = page.locator(".bar a[aria-current]")
    assert current.inner_text() in ("floating", "geometry", "about")


def test_the_first_screen_answers_the_question_and_shows_the_picture(open_page, address):
    page = open_page(address, viewport={"width": 1280, "height": 800})
    answer, picture = page.locator(".found.main"), page.locator(".pictures img")
    for part in (answer, picture):
        box = part.bounding_box()
        assert box["y"] + box["height"] < 800
    assert answer.locator("h3").inner_text() == "Is water wet?"
    said = answer.locator("li").all_inner_texts()
    words = ["yes", "no", "cannot tell", "not tested"]
    assert [line.split(": ")[1] for line in said] == [f"{word}. It is." for word in words]
    answer.locator("li a").nth(1).click()
    page.wait_for_selector("#claim-2[open]")


def test_one_switch_for_page_and_viewer(open_page, address):
    page = open_page(address, color_scheme="dark")
    ground = "getComputedStyle(document.querySelector('{}')).backgroundColor"
    dark = [page.evaluate(ground.format(what)) for what in ("body", ".fsv")]
    assert dark[0] == dark[1] != "rgb(255, 255, 255)"
    assert page.locator(".fsv-theme").count() == 0
    page.get_by_role("button", name="Light").click()
    light = [page.evaluate(ground.format(what)) for what in ("body", ".fsv")]
    assert light == ["rgb(255, 255, 255)"] * 2
    page.get_by_role("button", name="Dark").click()
    assert [page.evaluate(ground.format(what)) for what in ("body", ".fsv")] == dark


def test_methods_unfold_and_commands_are_copied(open_page, address):
    page = open_page(address)
    method = page.locator(".method").first
    assert not method.is_visible()
    page.locator("summary", has_text="Method").first.click()
    assert method.is_visible() and method.inner_text().endswith("\n  over  keys")
    button = page.get_by_role("button", name="Copy: command of geometry")
    button.click()
    page.wait_for_selector("#said:not(:empty)", state="attached")
    command = "floatscope study geometry --model pair/mdm --out run-geometry"
    assert page.locator("#said").inner_text().endswith(command)
    assert button.inner_text() in ("Copied", "Selected")
    shown = page.locator(".command code").evaluate_all("all => all.map(e => e.textContent)")
    assert shown[-1] == "floatscope study floating --model pair/mdm --out run"
    assert shown[0] == "floatscope study floating --model pair/mdm --out run-floating"


def test_paper_is_light_open_and_without_bars(open_page, address, tmp_path):
    page = open_page(address, color_scheme="dark")
    page.emulate_media(media="print")
    count(page, "details:not([open])", 0)
    assert not page.locator(".bar").is_visible() and not page.locator(".copy").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    count(page, "details[open]", 0)
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") >= 3


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => v / 255).map(
    (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest(".fsv, .ground, .unseen, script, noscript")) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(e);
    const ink = parse(e.namespaceURI.endsWith("svg") ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) low.push([e.outerHTML.slice(0, 80), (a + .05) / (b + .05)]);
  }
  return low; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_headings_names_and_contrast_are_accessible(open_page, address, scheme):
    page = open_page(address, color_scheme=scheme)
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.locator("h1,h2,h3,h4,h5,h6").evaluate_all("all => all.map(e => +e.tagName[1])")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels)), levels
    for landmark in ("main", "body > nav", "body > header", "body > footer"):
        assert page.locator(landmark).count() == 1
    nameless = """all => all.filter(e => !e.closest('[aria-hidden=true]') && !e.getAttribute('aria-label')
        && !e.getAttribute('alt') && !e.textContent.trim()).map(e => e.outerHTML.slice(0, 90))"""
    assert page.locator("img, button, a, summary").evaluate_all(nameless) == []
    assert page.locator("figure img[alt]").count() == 5
    unseen = (
        "all => all.filter(e => !e.matches('[role=img], [aria-hidden=true], [role=img] *')).length"
    )
    assert page.locator("main svg:not(.fsv svg)").evaluate_all(unseen) == 0
    assert page.evaluate(CONTRAST) == []


def test_the_keyboard_reaches_everything(open_page, address):
    page = open_page(address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    met, unmarked = set(), []
    for _ in range(90):
        page.keyboard.press("Tab")
        met |= set(
            page.evaluate("[...document.activeElement.classList, document.activeElement.tagName]")
        )
        outline = (
            "document.activeElement !== document.body && getComputedStyle(document.activeElement)"
        )
        if page.evaluate(f"({outline}).outlineStyle") == "none":
            unmarked.append(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
    assert {"theme", "fsv-cell", "fsv-slider", "fsv-button", "SUMMARY", "copy"} <= met
    assert unmarked == []
    page.locator(".fsv-slider").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.querySelector('.fsv').floatscope.views[0].step") == 1


def test_a_narrow_screen_shows_all_of_it(open_page, address):
    page = open_page(address, viewport={"width": 400, "height": 800})
    page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    scroll = "e => { e.scrollLeft = 900; return e.scrollLeft; }"
    assert page.locator(".bar ul").evaluate(scroll) >= 0


def test_hostile_text_is_text_everywhere(open_page, tmp_path):
    names = (f"floating{HOSTILE}", f"geometry{HOSTILE}")
    path = tmp_path / "hostile.html"
    path.write_text(
        a_page(BAD_SVG, text=lambda words: words + HOSTILE, names=names),
        encoding="utf-8",
    )
    page = open_page(path.as_uri())
    page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    page.get_by_role("button", name="Copy").first.click()
    page.wait_for_selector("#said:not(:empty)", state="attached")
    assert page.title() == TITLE
    where = """.models b, .models span, .models code, .claim h3, .words p, .study h2, .study .name, .label,
        .findings p, figcaption, .method, .command code, .table summary, .file a, th:first-child,
        td:first-child, .notes li, .bar a[href^='#study'], .found h3, .found li"""
    found = page.locator(where).evaluate_all("all => all.map(e => e.textContent)")
    assert len(found) > 60 and [t for t in found if SCRIPT + IMAGE not in t] == []
    figures = page.locator("figure img")
    assert all(figures.evaluate_all(f"all => all.map(e => e.alt.endsWith({json.dumps(HOSTILE)}))"))
    # Images that are drawn, though what is in them would run a script, or fetch something, elsewhere.
    assert all(figures.evaluate_all("all => all.map(e => e.naturalWidth > 0)"))
    assert page.locator("img:not(figure img), [onerror], [onload]").count() == 0
    # The viewer, its index and two scenes, its start, the tooltips, and the page's own.
    assert page.locator("script").count() == 1 + 3 + 1 + 2
    assert HOSTILE in page.locator(".fsv").inner_text()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


# Tooltips


def test_a_term_shows_its_definition_on_focus_and_on_hover(open_page, address):
    page = open_page(address)
    page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    tip, lift = page.locator(".term-tip"), page.locator(".claims dfn.term", has_text="lift").first
    assert not tip.is_visible() and lift.get_attribute("aria-describedby") == tip.get_attribute(
        "id"
    )
    lift.focus()
    count(page, "[role=tooltip]:not([hidden])", 1)
    assert tip.inner_text() == load_glossary()["lift"]["definition"]
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 1280
    page.keyboard.press("Escape")
    count(page, "[role=tooltip]:not([hidden])", 0)
    assert page.evaluate("document.activeElement.textContent") == "lift", (
        "Escape closes the tip alone"
    )
    lift.blur()
    lift.hover()
    count(page, "[role=tooltip]:not([hidden])", 1)
    tip.hover()
    count(page, "[role=tooltip]:not([hidden])", 1)  # it can be reached and selected
    page.mouse.move(5, 5)
    count(page, "[role=tooltip]:not([hidden])", 0)


def test_each_section_explains_a_term_once_and_no_data_is_touched(open_page, address):
    page = open_page(address)
    twice = """() => [...document.querySelectorAll("section, header, footer, body")].filter((section) => {
      const own = [...section.querySelectorAll("dfn.term")]
        .filter((e) => e.closest("section, article, header, footer, body") === section);
      return new Set(own.map((e) => e.textContent.toLowerCase())).size !== own.length; }).length"""
    assert page.locator("dfn.term").count() > 5 and page.evaluate(twice) == 0
    inside = 'pre dfn, code dfn, button dfn, a dfn, .fsv-cell dfn, .asked dfn, [translate="no"] dfn'
    assert page.locator(inside).count() == 0
