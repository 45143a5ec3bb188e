"""The page in a real browser: it sorts, filters, changes its colours and fits a phone, without any network."""

import shutil

import pytest

from mlcil.reports import sections
from mlcil.reports.report import write_report
from mlcil.reports.style import save_png

from .made import made_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install mlcil[dev]")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine to open the page with", allow_module_level=True)

SETTINGS = ("digits B0-C2", "digits B2-C2")


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("browser")
    for seed in (0, 1):
        made_run(root / "runs", f"krt-{seed}", "krt", seed)
    for method in ("ft", "lwf"):
        made_run(root / "runs", method, method)
    made_run(root / "runs", "joint", "joint", counts=(6,))
    made_run(root / "runs", "other", "ft", done=2, protocol=SETTINGS[1].split()[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "save_png", lambda figure, file, dpi=10: save_png(figure, file, 10))
        return write_report([root / "runs"], root / "report").as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """Opens the page, aborts whatever else it asks for, and checks at the end that it asked and complained not."""
    requests, complaints, contexts = [], [], []

    def open_page(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.route(lambda url: not url.startswith(("file:", "data:")), lambda route: route.abort())
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {address}


def column(page, name):
    """The heading of a column of the summary and a function that reads its cells from top to bottom."""
    headings = page.locator("#table-summary thead th")
    place = headings.all_inner_texts().index(name)
    cells = page.locator(f"#table-summary tbody td:nth-child({place + 1})")
    return headings.nth(place), lambda: [cell.get_attribute("data-key") for cell in cells.all()]


def shown(page, selector):
    """How many of these elements are to be seen."""
    return page.evaluate(
        "(name) => [...document.querySelectorAll(name)].filter((one) => one.getClientRects().length).length", selector
    )


def unfold(page):
    page.evaluate("document.querySelectorAll('details.fold').forEach((one) => { one.open = true; })")


def choose(page, name, is_on):
    if page.locator("#filters").get_attribute("open") is None:
        page.locator("#filters > summary").click()
    page.locator("#filters").get_by_label(name, exact=True).set_checked(is_on)


def test_a_numeric_column_sorts_both_ways_and_keeps_what_is_empty_last(visit):
    page = visit()
    heading, keys = column(page, "last mAP")
    numbers = sorted(float(key) for key in keys() if key)
    empty = [key for key in keys() if not key]
    assert len(numbers) == 4
    assert len(empty) == 1
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(key) for key in keys()[:4]] == numbers[::-1]
    assert keys()[4:] == empty
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(key) for key in keys()[:4]] == numbers
    assert keys()[4:] == empty


def test_text_sorts_by_keyboard_and_equal_rows_keep_their_order(visit):
    page = visit()
    heading, methods = column(page, "method")
    setting, settings = column(page, "setting")
    heading.locator("button").press("Space")
    assert methods() == sorted(methods())
    before = list(zip(settings(), methods(), strict=True))
    setting.locator("button").click()
    assert list(zip(settings(), methods(), strict=True)) == sorted(before)
    assert heading.get_attribute("aria-sort") is None


def test_hiding_a_method_hides_its_rows_columns_maps_and_lines_and_brings_them_back(visit):
    page = visit()
    unfold(page)
    everything = "[data-method=krt]"
    before = shown(page, everything)
    lines = "#curves svg [data-group]"
    drawn = shown(page, lines)
    assert before > 15
    choose(page, "krt", False)
    assert shown(page, everything) == 0
    assert 0 < shown(page, lines) < drawn
    assert page.locator("#table-summary tbody tr:visible").count() == 4
    assert "4 of 5" in page.locator("#filters > summary").inner_text()
    choose(page, "krt", True)
    assert shown(page, everything) == before
    assert shown(page, lines) == drawn


def test_hiding_a_setting_hides_its_blocks(visit):
    page = visit()
    of_other = f"main [data-setting='{SETTINGS[1]}']"
    before = shown(page, of_other)
    choose(page, SETTINGS[1], False)
    assert before > 5
    assert shown(page, of_other) == 0
    assert shown(page, f"main [data-setting='{SETTINGS[0]}']") > 5
    choose(page, SETTINGS[1], True)
    assert shown(page, of_other) == before


def test_a_method_is_found_by_part_of_its_name_and_an_empty_page_says_so(visit):
    page = visit()
    page.locator("#filters > summary").click()
    page.locator("#filter-text").fill("LW")
    assert page.locator("#table-summary tbody tr:visible").count() == 1
    # Its setting is the only one left: that without any such method is hidden as a whole.
    assert shown(page, f".block[data-setting='{SETTINGS[1]}']") == 0
    page.locator("#filter-text").fill("no such method")
    assert shown(page, "main section") == 0
    assert page.locator("#nothing").is_visible()
    page.locator("#filter-all").click()
    assert page.locator("#table-summary tbody tr:visible").count() == 5
    assert not page.locator("#nothing").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#filter-text").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_there_and_the_page_does_not_scroll_sideways(visit, width):
    page = visit(viewport={"width": width, "height": 800})
    unfold(page)
    boxes = [figure.locator("svg:visible").bounding_box() for figure in page.locator("figure").all()]
    assert len(boxes) > 10
    assert all(box["width"] > 200 and box["height"] > 60 for box in boxes)
    cards = [figure.bounding_box() for figure in page.locator("figure").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in cards)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # A wide figure scrolls in its card, so that no text is smaller than 11 pixels.
    sizes = page.evaluate(
        """[...document.querySelectorAll('svg text')].filter((one) => one.getClientRects().length).map((one) =>
        parseFloat(getComputedStyle(one).fontSize) * Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b))"""
    )
    assert min(sizes) >= 10.95


def test_tables_scroll_within_their_card_with_the_method_in_view(visit):
    page = visit(viewport={"width": 390, "height": 800})
    card = page.locator("#summary .scroll")
    card.evaluate("(one) => { one.scrollLeft = 300; }")
    assert card.evaluate("(one) => one.scrollLeft") > 100
    first = page.locator("#table-summary tbody td").first.bounding_box()
    assert first["x"] == pytest.approx(card.bounding_box()["x"], abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_toggled(visit, scheme):
    page = visit(color_scheme=scheme)

    def brightness():
        colours = [page.evaluate(f"getComputedStyle({one}).{what}") for one, what in parts]
        return [sum(map(int, colour[4:-1].split(","))) / 765 for colour in colours]

    # Of the page, of its text, and of the text of a figure.
    parts = [
        ("document.body", "backgroundColor"),
        ("document.body", "color"),
        ("document.querySelector('text')", "fill"),
    ]
    paper, ink, drawn = brightness()
    assert (paper > 0.8, ink < 0.3, drawn < 0.3) == (scheme == "light",) * 3
    page.locator("#theme").click()
    paper, ink, drawn = brightness()
    assert (paper > 0.8, ink < 0.3, drawn < 0.3) == (scheme == "dark",) * 3
    page.locator("#theme").click()
    assert (brightness()[0] > 0.8) == (scheme == "light")


def test_without_scripts_everything_can_be_read(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("#table-summary tbody tr:visible").count() == 5
    assert page.locator("main section:visible").count() > 8
    assert not page.locator("#filters").is_visible()
    assert not page.locator("#theme").is_visible()
    page.locator("#commands summary").first.click()
    assert page.locator("#commands pre").first.is_visible()
