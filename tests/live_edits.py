"""Random edits on the live page, and what its card "What changed" must then say: the server's own numbers.

`python tests/live_edits.py 200` makes so many edits in a browser and reports where page and server differ.
"""

import math
import random
import sys
import urllib.request

from live_browsing import Tab, got, served

KINDS = ("ablate", "force", "remask", "hide", "value", "cut")


def random_edit(draw, scene):
    """An edit of a run with this scene, and the step from which it acts."""
    steps, start, size = scene["steps"], scene["start"], scene["keys"]
    heads = [
        [draw.randrange(scene["layers"]), draw.randrange(scene["heads"])]
        for _ in range(draw.randint(1, 3))
    ]
    kind = draw.choice(KINDS)
    edit = {
        "ablate": {"heads": heads, "to": draw.choice(["zero", "mean"])},
        "force": {"position": draw.randrange(start, size), "token": draw.randrange(300, 4000)},
        "remask": {"positions": [draw.randrange(start, size)]},
        "hide": {"positions": [draw.randrange(size)], "layers": [heads[0][0]]},
        "value": {"positions": [draw.randrange(size)], "to": "zero"},
        "cut": {"queries": ["predicting"], "keys": [draw.choice(scene["regions"])]},
    }[kind]
    return draw.randrange(steps), {"kind": kind, **edit}


SCENE = """(scene => ({steps: scene.steps, start: scene.json.prompt_length, keys: scene.keys,
    layers: scene.layers, heads: scene.heads, regions: scene.json.regions.filter(r => r !== "answer")}))"""


def percent(share):
    """As the page writes a share: three digits."""
    value = 100 * share
    if value == 0:
        return "0 %"
    fixed = float(f"{value:.2e}")
    if not 1e-4 <= fixed < 1e5:
        mantissa, exponent = f"{fixed:.2e}".split("e")
        return f"{mantissa}e{int(exponent):+d} %"
    return f"{fixed:.{min(7, max(0, 2 - math.floor(math.log10(fixed))))}f} %"


def moved(distance, resolution):
    return "no change" if distance <= resolution else percent(distance)


def expected(whole, at):
    """What the card says, from the server's two answers: of the runs, and of attention at the steps."""
    if whole["same"]:
        return [
            "No change: the same answer, tokens and order, and the same attention at every step."
        ]
    answer = whole["answer"]
    was, now = (answer[key].strip() or "nothing yet" for key in ("was", "is"))
    said = [f"Answer: the same, {now}" if was == now else f"Answer: {was} → {now}"]
    order = [o for o in whole["order"] if o["was"] is not None and o["is"] is not None]
    first = order[0] if order else {}
    several = "position" if len(order) == 1 else "positions"
    said.append(
        f"{len(order)} {several} revealed at another step: position {first['position']} at step "
        f"{first['was']}, now {first['is']}" + (", …" if len(order) > 1 else "")
        if order
        else "revealed in the same order so far"
    )
    resolution, top = at["resolution"], at["top"]
    if top["distance"] <= resolution:
        said.append("no change")
    else:
        head = f"layer {top['layer']} head {top['head']} {moved(top['distance'], resolution)}"
        by_head = f"{moved(at['distance'], resolution)} moved (mean over layers and heads)"
        said.append(f"{by_head}; most: {head}")
        said.append(
            "Attention moved, by layer: "
            + ", ".join(f"{i}: {moved(d, resolution)}" for i, d in enumerate(at["layers"]))
        )
    distances = whole["attention"]["distance"]
    if max(distances) > resolution:
        step = whole["attention"]["steps"][distances.index(max(distances))]
        said.append(f"Of all steps most at step {step}: {moved(max(distances), resolution)}")
    return said


def shown(tab):
    """The lines of the card, without those that come from the canvases of the steps shown."""
    card = tab.page.locator(".fsl-changes").last
    lines = [line.strip() for line in card.locator("p").all_text_contents()]
    bars = [b.get_attribute("aria-label") for b in card.locator(".fsv-bars").all()]
    left_out = ("by layer, first", "the same at every position", "and ")
    kept = [line for line in lines if not line.startswith(left_out)]
    at = next((i for i, line in enumerate(kept) if line.startswith("Of all steps")), len(kept))
    return kept[:at] + bars + kept[at:]


COMPARED = """(() => { const whole = comparisonOf(page.viewer), at = attentionOf(page.viewer);
    return Boolean(page.viewer.views.length === 2 && whole && whole.value && (at && at.value)
      && !page.viewer.frame); })()"""


def edited(tab, step, edit):
    """Make the edit, and return what page and server say of the runs; None where it is refused."""
    tab.page.evaluate(BRANCH, [step, edit])
    tab.until(lambda: tab.look("!page.busy() && page.lanes.length === 2"), "the end of the run")
    if tab.state("lanes[1].phase") == "failed":
        return None
    tab.until(lambda: tab.look(COMPARED), "the comparison")
    ids = tab.state("lanes.map(run => run.id)")
    steps = tab.state("viewer.views.map(view => view.scene.json.steps[view.step])")
    whole = got(f"{tab.origin}compare/{ids[0]}/{ids[1]}")
    at = got(f"{tab.origin}compare/{ids[0]}/{ids[1]}/{steps[0]}/{steps[1]}")
    return shown(tab), expected(whole, at), whole["same"]


BRANCH = """([step, edit]) => {
  floatscopeLive.branch(floatscopeLive.lanes[0], step, edit);  // its end is waited for by itself
}"""


def show_alone(tab, run):
    """The run as it is stored, by itself."""
    tab.page.evaluate("() => { floatscopeLive.begin([]); }")
    tab.page.get_by_role("button", name=f"Show run {run}", exact=True).click()
    tab.until(lambda: tab.look("page.lanes.length === 1 && page.lanes[0].finished"), "the run")


def main(count):
    from browsing import opened

    draw, wrong, same, done = random.Random(7), [], 0, 0
    kinds, refused = dict.fromkeys(KINDS, 0), 0
    with served(["pair/mdm"]) as address, opened() as browser, Tab(browser, address) as tab:
        tab.write(length=6)
        tab.run()
        run, scene = tab.state("lanes[0].id"), tab.look(f"({SCENE})(page.lanes[0].scene)")
        while done < count:
            if done == count // 2:
                show_alone(tab, run)  # from here on as it is stored; before, as it was streamed
            step, edit = random_edit(draw, scene)
            said = edited(tab, step, edit)
            if said is None:
                refused += 1
                continue
            page, server, unchanged = said
            kinds[edit["kind"]] += 1
            same, done = same + unchanged, done + 1
            if page != server:
                wrong.append((step, edit, page, server))
            forget(address, tab)
            if done % 20 == 0 or done == count:
                say = f"{done} edits, {refused} refused, {same} change nothing, {len(wrong)} differ"
                print(say, flush=True)
    print(kinds, *wrong[:3], sep="\n")


def forget(address, tab):
    """Let the branch go on the server, which keeps 64 runs."""
    body = f'{{"runs": ["{tab.state("lanes[1].id")}"]}}'.encode()
    request = urllib.request.Request(address + "forget", body, {"content-type": "application/json"})
    urllib.request.urlopen(request).close()
    tab.page.evaluate("() => { const p = floatscopeLive; p.past = []; p.begin([p.lanes[0]]); }")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
