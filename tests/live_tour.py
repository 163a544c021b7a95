"""Walk the tour of docs/tutorials/live_tour.md in a browser: each stop is a picture of the page.

The tests walk it and compare the stops with the page's pictures; `python tests/live_tour.py` takes them
again and puts them into docs/live/.
"""

import io
import os
from pathlib import Path

from live_browsing import Tab, served

FOLDER = Path(__file__).parent.parent / "docs" / "live"
WINDOW = {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"}
LENGTH = "8"


def tour(tab):
    """The stops' names, each when the page shows what there is to see."""
    page = tab.page
    page.get_by_label("Example").select_option("1")
    page.get_by_label("length", exact=True).first.fill(LENGTH)
    page.get_by_label("steps", exact=True).first.fill(LENGTH)
    yield "start"
    tab.run()
    plain = tab.state("lanes[0].id")
    yield "run"
    page.keyboard.press("Home")
    first = tab.first_answer()
    tab.cell(first).click()
    page.wait_for_selector(".fsl-lens")
    page.mouse.move(1, 1)
    yield "candidates"
    tab.branch(lambda: page.locator(".fsl-candidate").nth(1).click())
    compared(page)
    from_the_top(page)
    yield "force"
    page.get_by_role("button", name=f"Show run {plain}", exact=True).click()
    tab.until(lambda: tab.look("page.lanes.length === 1"), "the first run alone")
    page.keyboard.press("Home")
    gold = tab.look("page.lanes[0].scene.json.regions.indexOf(page.lanes[0].scene.json.gold)")
    key = tab.state(f"lanes[0].scene.array.region.values.indexOf({gold})")
    tab.cell(key).click()
    page.evaluate("window.scrollTo(0, 0)")
    tab.branch(lambda: page.get_by_role("button", name="Cut to").click())
    page.get_by_label("Colour").select_option("difference")
    rows = "Boolean(page.viewer.views[0].scene.difference)"
    tab.until(lambda: tab.look(rows), "the differences")
    from_the_top(page)
    yield "cut"
    page.get_by_role("button", name="layer 3 head 2:").first.click()
    page.get_by_role("button", name="Whole pattern").click()
    page.wait_for_selector(".fsl-row h3")
    page.locator(".fsl-pattern").scroll_into_view_if_needed()
    page.mouse.move(1, 1)
    yield "pattern"
    page.evaluate("window.scrollTo(0, 0)")
    tab.unfold()
    page.get_by_label("Compare with a second model or setting").check()
    for field in page.get_by_label("length", exact=True).all():
        field.fill(LENGTH)
    page.locator(".fsl-compose summary").first.click()
    tab.run()
    page.get_by_label("Colour").select_option("lift")
    compared(page)
    from_the_top(page)
    yield "models"
    page.get_by_role("button", name="Copy as Python").click()
    page.wait_for_selector(".fsl-text:not([hidden])")
    page.locator(".fsl-history").scroll_into_view_if_needed()
    yield "history"


def compared(page):
    page.get_by_text("(mean over layers and heads)").last.wait_for()


def from_the_top(page):
    page.mouse.move(1, 1)
    page.evaluate("scrollTo(0, 0), document.querySelector('.fsv-side').scrollTo(0, 0)")


def picture(tab, name):
    """What the reader sees: the window, or the part that this stop is about."""
    part = {"pattern": ".fsl-pattern", "history": ".fsl-history"}.get(name)
    return (tab.page.locator(part) if part else tab.page).screenshot()


def main():
    from browsing import opened
    from PIL import Image

    FOLDER.mkdir(exist_ok=True)
    with served() as address, opened() as browser, Tab(browser, address, **WINDOW) as tab:
        for name in tour(tab):
            image = Image.open(io.BytesIO(picture(tab, name))).convert("RGB")
            file = FOLDER / f"{name}.webp"
            few = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.convert("RGB").save(file, lossless=True, method=6)
            print(f"{file}: {os.path.getsize(file)} bytes")


if __name__ == "__main__":
    main()
