"""The page in a real browser: it draws, answers clicks and keys, and hostile text does not run."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.page.pages import HOSTILE, full_page
from tests.page.test_server import Stub

from holdfast.page import render_page
from holdfast.page.model import Chart, Line
from holdfast.page.server import PageServer

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (make services)")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


def open_tab(browser: Any) -> tuple[Any, list[str]]:
    """Return a tab, and the list of what its page complains of or asks another host for."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    own = "getImageData"  # Chromium remarks on how often these tests read pixels
    page.on("console", lambda message: None if own in message.text else complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: None if _is_local(sent.url) else complaints.append(sent.url))
    return page, complaints


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab that fails the test if the page complains or asks another host for anything."""
    page, complaints = open_tab(browser)
    yield page
    page.close()
    assert complaints == []


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[str]]]:
    """A tab with the mailed page of three charts, opened once: opening it is most of what a test costs."""
    page, complaints = open_tab(browser)
    page.goto(mailed(tmp_path_factory.mktemp("calm"), full_page(series=3)))
    page.wait_for_selector(".chart:nth-child(3) .uplot canvas")
    yield page, complaints
    page.close()


@pytest.fixture
def calm(opened: tuple[Any, list[str]]) -> Iterator[Any]:
    """The tab with the mailed page, nothing zoomed and no finding open."""
    page, complaints = opened
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)
    yield page
    assert complaints == []


def _is_local(url: str) -> bool:
    return url.startswith(("file:", "data:", "http://127.0.0.1:"))


def mailed(tmp_path: Path, *pages: Any) -> str:
    file = tmp_path / "page.html"
    file.write_text(render_page(*pages), encoding="utf-8")
    return file.as_uri()


def is_drawn(tab: Any, selector: str, *, least: int = 4) -> bool:
    """Whether a canvas shows several colours."""
    colours: int = tab.eval_on_selector(
        selector,
        """canvas => { const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set(); for (let i = 0; i < pixels.length; i += 4)
        seen.add((pixels[i] << 16) + (pixels[i + 1] << 8) + pixels[i + 2]); return seen.size; }""",
    )
    return colours >= least


def test_the_mailed_page_draws_its_charts(calm: Any) -> None:
    calm.wait_for_selector(".chart:nth-child(3) .uplot canvas")
    assert calm.inner_text(".verdict .word") == "UNHEALTHY"
    assert is_drawn(calm, ".uplot canvas")
    assert is_drawn(calm, "canvas.heat")


def test_a_flag_opens_its_suspects_proof_and_command(calm: Any) -> None:
    calm.click(".flag.critical")
    calm.wait_for_selector("#detail canvas")
    text = calm.inner_text("#detail")
    for expected in (
        "12,345",
        "Suspects",
        "Proof",
        "holdfast prove runs/exp7 --step 1000",
        "left its noise at step 997",
    ):
        assert expected in text
    calm.keyboard.press("Escape")
    assert calm.query_selector("#detail") is None


def test_a_flag_on_the_axis_opens_the_finding_too(calm: Any) -> None:
    calm.click(".timeline .pin.critical")
    calm.wait_for_selector("#detail canvas")
    assert calm.get_attribute('[data-flag="0"]', "aria-expanded") == "true"
    assert calm.locator(".timeline canvas").count() == 3, "checkpoints, events, and where the time went"
    for number in range(3):
        assert is_drawn(calm, f".timeline canvas >> nth={number}", least=2)


def test_what_shares_the_axis_is_zoomed_with_the_charts(calm: Any) -> None:
    pin = calm.locator(".timeline .pin.critical")
    plot = calm.locator(".uplot .u-over").first

    def share() -> float:
        box, whole = pin.bounding_box(), plot.bounding_box()
        return float((box["x"] + box["width"] / 2 - whole["x"]) / whole["width"])

    calm.wait_for_selector(".uplot canvas")
    assert abs(share() - 997 / 1999) < 0.01
    calm.keyboard.press("+")
    calm.keyboard.press("ArrowRight")  # from 750 to 1,750
    calm.wait_for_timeout(50)
    assert abs(share() - 247 / 1000) < 0.01


def test_keys_zoom_and_walk_through_the_findings(calm: Any) -> None:
    calm.wait_for_selector(".uplot canvas")
    before = calm.inner_text(".chart .u-legend")
    calm.keyboard.press("+")
    calm.keyboard.press("0")
    calm.keyboard.press("n")
    assert calm.get_attribute('[data-flag="0"]', "aria-expanded") == "true"
    calm.keyboard.press("n")
    assert calm.get_attribute('[data-flag="1"]', "aria-expanded") == "true"
    assert calm.inner_text(".chart .u-legend") == before


def test_dragging_over_a_chart_zooms_all_of_them(calm: Any) -> None:
    calm.wait_for_selector(".uplot canvas")
    box = calm.query_selector(".chart .u-over").bounding_box()
    height = box["y"] + box["height"] / 2
    calm.mouse.move(box["x"] + box["width"] * 0.4, height)
    calm.mouse.down()
    calm.mouse.move(box["x"] + box["width"] * 0.6, height, steps=5)
    calm.mouse.up()
    calm.wait_for_selector(".uplot canvas")
    calm.locator(".chart .u-over").nth(1).hover(position={"x": 2, "y": 20})
    shown = calm.locator(".chart .u-legend").nth(1).locator(".u-value").first.inner_text()
    assert 790 <= int(shown.replace(",", "")) <= 830, "the drag began at two fifths of 2,000 steps"


def test_all_charts_share_the_axis_of_the_whole_run(tab: Any, tmp_path: Path) -> None:
    """A series that is recorded later, or now and then, lies where its steps are, not from edge to edge."""
    page = full_page(steps=400)
    late = Chart("Late", (Line("late", np.arange(300.0, 350.0), np.ones(50)),))
    tab.goto(mailed(tmp_path, replace(page, charts=(*page.charts, late))))
    tab.wait_for_selector(".chart:nth-child(2) .uplot canvas")
    box = tab.locator(".chart .u-over").first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    tab.wait_for_timeout(50)
    shares = tab.evaluate(
        """() => [...document.querySelectorAll('.chart .u-over')].map((over) => {
        const line = over.querySelector('.u-cursor-x').getBoundingClientRect(), whole = over.getBoundingClientRect();
        return (line.right - whole.left) / whole.width; })"""
    )
    assert shares == pytest.approx([0.25, 0.25], abs=0.01)


def test_what_lies_below_the_first_chart_begins_and_ends_with_its_axis(tab: Any, tmp_path: Path) -> None:
    tab.goto(mailed(tmp_path, full_page()))
    tab.wait_for_selector(".uplot canvas")
    tab.wait_for_timeout(100)
    plot, strip = (tab.locator(which).first.bounding_box() for which in (".uplot .u-over", ".timeline canvas"))
    assert (strip["x"], strip["width"]) == pytest.approx((plot["x"], plot["width"]), abs=2)


def test_buttons_zoom_around_the_place_that_was_pressed_last(calm: Any) -> None:
    pin = calm.locator(".timeline .pin.critical")
    plot = calm.locator(".uplot .u-over").first
    box = plot.bounding_box()
    calm.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 20)
    calm.click('[aria-label="Zoom in"]')
    calm.click('[aria-label="Zoom in"]')
    calm.wait_for_timeout(50)
    found, whole = pin.bounding_box(), plot.bounding_box()
    share = (found["x"] + found["width"] / 2 - whole["x"]) / whole["width"]
    assert abs(share - 0.5) < 0.02, "step 997 of 2,000 was in the middle, and still is"
    assert calm.is_enabled("#reset")
    calm.click('[aria-label="Zoom out"]')
    calm.click('[aria-label="Zoom out"]')
    assert calm.is_disabled("#reset"), "all of it is shown again"


def test_two_runs_lie_over_each_other(tab: Any, tmp_path: Path) -> None:
    tab.goto(mailed(tmp_path, full_page(), full_page(steps=1500)))
    tab.wait_for_selector(".uplot canvas")
    assert tab.inner_text(".chart .u-legend").count("(runs/exp7 calm)") == 2


def test_two_live_runs_are_compared_by_choosing_one(tab: Any) -> None:
    with PageServer([Stub("exp7", full_page()), Stub("exp/8", full_page(steps=1500, text="eight"))]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(f"{server.url}?run=exp7")
        tab.wait_for_selector(".uplot canvas")
        tab.select_option("#compare", label="compare with exp/8")
        tab.wait_for_url(lambda url: url.endswith("compare=exp%2F8"))
        tab.wait_for_selector("text=loss (runs/exp7 eight)")
        tab.goto("about:blank")
        server.shutdown()


def test_several_runs_in_one_file_begin_with_a_table_that_leads_to_each(tab: Any, tmp_path: Path) -> None:
    from holdfast.page.render import render_pages

    good = replace(full_page(steps=300), title="calm run", verdict="healthy", flags=(), lead="All is well.")
    file = tmp_path / "runs.html"
    file.write_text(render_pages([good, full_page(steps=300, text=HOSTILE[0])], title="2 runs"), encoding="utf-8")
    tab.goto(file.as_uri())
    rows = tab.locator("tbody tr")
    assert rows.count() == 2
    assert "unhealthy" in rows.nth(0).inner_text(), "the worst comes first"
    rows.nth(1).locator("button").click()
    tab.wait_for_selector(".uplot canvas")
    assert tab.inner_text(".verdict h1") == "calm run"
    tab.click("#all")
    assert tab.locator("tbody tr").count() == 2


def test_a_finding_is_marked_on_every_chart(calm: Any) -> None:
    """The last chart is noise around zero: the colour of a critical finding is there only because of the mark."""
    calm.wait_for_selector(".chart:nth-child(3) .uplot canvas")
    marked = calm.evaluate(
        """() => { const wanted = getComputedStyle(document.documentElement).getPropertyValue('--bad').trim();
        const [r, g, b] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
        return [...document.querySelectorAll('.uplot canvas')].map((canvas) => {
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          for (let i = 0; i < data.length; i += 4)
            if (data[i] === r && data[i + 1] === g && data[i + 2] === b) return true;
          return false; }); }"""
    )
    assert marked == [True, True, True]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_does_not_run(text: str, tab: Any, tmp_path: Path) -> None:
    tab.goto(mailed(tmp_path, full_page(text=text)))
    tab.click(".flag.critical")
    tab.wait_for_selector("#detail canvas")
    for summary in tab.query_selector_all("summary"):
        summary.click()
    assert tab.inner_text(".lead").strip() == text.strip("\u2028\u2029")
    assert "pwned" not in tab.title().split(" ")[0]
    assert tab.query_selector("img, svg, #detail script, .verdict script") is None


def test_the_policy_stops_what_would_get_into_the_document_all_the_same(browser: Any, tmp_path: Path) -> None:
    """Were text ever written as markup: the browser itself runs no handler, no script and asks no other host."""
    tab, complaints = open_tab(browser)
    tab.goto(mailed(tmp_path, full_page(steps=100)))
    title = tab.title()
    tab.evaluate(
        """async () => { const [box, script] = ['div', 'script'].map((tag) => document.createElement(tag));
        const spoil = "document.title='pwned'"; document.body.append(box);
        box.innerHTML = `<img src=x onerror="${spoil}"><button onclick="${spoil}">b</button>`;
        box.querySelector('button').click();
        script.textContent = spoil; box.append(script);
        await fetch('http://127.0.0.1:9/').catch(() => null); }"""
    )
    assert tab.title() == title
    assert len([text for text in complaints if "Content Security Policy" in text]) >= 4
    tab.close()


@pytest.mark.parametrize("width", [1200, 390])
def test_text_that_turns_its_surroundings_or_never_breaks_leaves_them_as_they_are(
    width: int, tab: Any, tmp_path: Path
) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(mailed(tmp_path, full_page(text="\u202eevil\x00" + "x" * 600)))
    tab.click(".flag.critical")
    tab.wait_for_selector("#detail canvas")
    text = tab.inner_text("body")
    assert "\\u202eevil\\u0000" in text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_phone_width(tab: Any, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.goto(mailed(tmp_path, full_page(series=2)))
    tab.wait_for_selector(".uplot canvas")
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.click("#theme")
    tab.wait_for_selector(".uplot canvas")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
    tab.click(".flag.critical")
    tab.wait_for_selector("#detail canvas")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.locator("td.preview").first.bounding_box()["width"] > 300, "a long text has a line of its own"


def test_a_new_step_appears_by_itself(tab: Any) -> None:
    feed = Stub("exp7", full_page(steps=100))
    with PageServer([feed]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(server.url)
        tab.wait_for_selector(".uplot canvas")
        feed.current = full_page(steps=200, text="two hundred")
        tab.wait_for_selector("text=two hundred")
        tab.goto("about:blank")
        server.shutdown()


def test_the_button_copies_the_command(tab: Any) -> None:
    with PageServer([Stub("exp7", full_page())]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.goto(server.url)
        tab.click(".flag.critical")
        tab.click("#detail .command button")
        tab.wait_for_selector("text=Copied")
        assert tab.evaluate("navigator.clipboard.readText()") == "holdfast prove runs/exp7 --step 1000 # calm"
        tab.goto("about:blank")
        server.shutdown()


def test_a_live_page_takes_nothing_away_from_who_uses_it(tab: Any) -> None:
    """New steps come twice a second: the focus, an opened list, a selection, folds, the place and a drag all stay."""
    page = full_page(steps=100, series=4)
    feed = Stub("exp7", page)

    def grow(steps: int) -> None:
        feed.current = replace(full_page(steps=steps, series=4), flags=page.flags, facts=(f"{steps} steps",))
        tab.wait_for_selector(f"text={steps} steps", timeout=10_000)

    with PageServer([feed, Stub("exp8", full_page())]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(f"{server.url}?run=exp7")
        tab.wait_for_selector(".uplot canvas")
        tab.focus("#compare")
        grow(110)
        assert tab.evaluate("document.activeElement.id") == "compare"
        tab.focus(".verdict .command button")
        grow(120)
        assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Copy the command"
        tab.click(".flag.critical")
        tab.click("summary:has-text('Environment')")
        tab.evaluate("getSelection().selectAllChildren(document.querySelector('#detail ul'))")
        tab.evaluate("scrollTo(0, document.body.scrollHeight)")
        tab.wait_for_timeout(50)
        place = tab.evaluate("scrollY")
        assert place > 500
        grow(130)
        tab.wait_for_timeout(50)
        assert "rose from 1.2" in tab.evaluate("String(getSelection())")
        assert tab.locator("details[open]:has-text('Environment')").count() == 1
        assert abs(tab.evaluate("scrollY") - place) <= 2
        tab.keyboard.press("Escape")
        tab.locator(".chart .u-over").first.scroll_into_view_if_needed()
        box = tab.locator(".chart .u-over").first.bounding_box()
        tab.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
        tab.mouse.down()
        feed.current = replace(full_page(steps=140, series=4), flags=page.flags, facts=("140 steps",))
        tab.wait_for_timeout(1500)
        tab.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=3)
        tab.mouse.up()
        tab.wait_for_selector("text=140 steps")
        tab.wait_for_timeout(100)
        tab.locator(".chart .u-over").first.hover(position={"x": 2, "y": 20})
        first = tab.locator(".chart .u-legend").first.locator(".u-value").first.inner_text()
        assert int(first) > 40, "zoomed to what was dragged over"
        tab.goto("about:blank")
        server.shutdown()


def test_the_list_of_runs_follows_them(tab: Any) -> None:
    feed = Stub("exp7", replace(full_page(), verdict="unknown", lead="The detectors are still running."))
    with PageServer([feed, Stub(HOSTILE[1], full_page(text=HOSTILE[0]))]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(server.url)
        assert "cannot tell" in tab.inner_text("tbody tr:first-child")
        feed.current = full_page()
        tab.wait_for_selector("tbody tr:first-child td.unhealthy")
        assert tab.inner_text("tbody tr:nth-child(2) a") == HOSTILE[1]
        tab.click("tbody tr:nth-child(2) a")
        tab.wait_for_selector(".uplot canvas")
        assert "pwned" not in tab.title().split(" ")[0]
        tab.goto("about:blank")
        server.shutdown()


def test_the_list_of_runs_leads_to_each(tab: Any) -> None:
    with PageServer([Stub("exp7", full_page()), Stub("exp/8", full_page(text="eight"))]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.goto(server.url)
        tab.click("text=exp/8")
        tab.wait_for_selector("text=runs/exp7 eight")
        tab.goto("about:blank")
        server.shutdown()


def test_values_that_are_not_finite_are_marked(calm: Any) -> None:
    """The last values of the first chart are not: its right upper corner has the mark, and the third's has none."""
    assert np.isnan(full_page().charts[0].lines[1].values[-5:]).all()
    marked = calm.evaluate(
        """() => { const wanted = getComputedStyle(document.documentElement).getPropertyValue('--bad').trim();
        const bad = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
        return [...document.querySelectorAll('.uplot')].map((plot) => {
          const canvas = plot.querySelector('canvas'), ratio = devicePixelRatio || 1;
          const all = canvas.getBoundingClientRect(), over = plot.querySelector('.u-over').getBoundingClientRect();
          const left = (over.right - all.left - 9) * ratio, top = (over.top - all.top) * ratio;
          const { data } = canvas.getContext('2d').getImageData(left, top, 9 * ratio, 13 * ratio);
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 99 && bad.every((value, at) => Math.abs(value - data[i + at]) < 50)) return true;
          return false; }); }"""
    )
    assert (marked[0], marked[2]) == (True, False)
