"""The page of `mlcil teach` in a real browser: a label is taught by clicks and keys, and names are only ever text."""

import csv
import shutil

import pytest

from mlcil.serving.tagger import Tagger
from mlcil.teaching.workbench import Workbench
from mlcil.web.teach_server import make_teach_app

from .conftest import ACCESS, EVIL, served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install mlcil[dev]")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine to open the page with", allow_module_level=True)


@pytest.fixture
def photos(digit_tables, tmp_path):
    """The pictures that no tagger has seen, one of them with a name that is hostile."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(140, 200):
        name = f"{number}.png" if number != 199 else f"{EVIL}.png"
        shutil.copy(digit_tables / f"{number}.png", folder / name)
    return folder


@pytest.fixture
def shown(digit_tables):
    """The names of pictures that show the digit 2."""
    with (digit_tables / "c.csv").open() as stream:
        return [row["path"] for row in csv.DictReader(stream) if "digit 2" in row["labels"]]


@pytest.fixture
def address(digit_tagger, photos, tmp_path):
    paths = [str(one) for one in sorted(photos.iterdir())]
    bench = Workbench(Tagger.load(digit_tagger), paths, tmp_path / "teach", "pictures")
    bench.indexer.wait()
    with served(make_teach_app(bench, ACCESS)) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def visit(address):
    complaints = []
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_page(width=1280):
            page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
            page.set_default_timeout(20_000)
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(dialog.message))
            page.goto(address)
            return page

        yield open_page
        browser.close()
    assert not complaints


def tile(page, name):
    return page.locator(f'#grid .tile[title="{name}"]')


def marked(page, act):
    """Do something and wait until the server has taken it."""
    with page.expect_response(lambda answer: answer.request.method == "POST") as answer:
        act()
    assert answer.value.status == 200
    return answer.value.json()


def test_a_label_is_taught_by_clicks_and_keys(visit, shown):
    page = visit()
    page.locator("#label-box").fill("digit 2")
    page.keyboard.press("Enter")
    assert page.locator("#start").is_visible()
    for name in shown[:3]:
        page.locator("#search").fill(name)
        page.locator("#grid[aria-rowcount='1']").wait_for()
        marked(page, tile(page, name).click)
        page.locator(f'#grid .tile[title="{name}"][data-mark="yes"]').wait_for()
    page.locator("#search").fill("")
    likely = page.locator("#row-likely .tile[data-id]")
    likely.first.wait_for()
    names = [likely.nth(place).get_attribute("title") for place in range(likely.count())]
    for place, name in enumerate(names):
        if name not in shown:
            likely.nth(place).click()
    view = marked(page, page.locator("#confirm-likely").click)
    assert view["yes"] == 3 + sum(name in shown for name in names)
    assert view["no"] == sum(name not in shown for name in names)

    other = visit()  # a second window sees it, and what it does is seen in the first
    other.locator("#label-list [role=option]", has_text="digit 2").click()
    other.locator(f"#marks-yes:has-text('{view['yes']}')").wait_for()
    undone = marked(other, lambda: other.keyboard.press("z"))
    assert undone["view"]["yes"] == 3
    page.locator("#marks-yes:has-text('3')").wait_for()
    page.reload()
    page.locator("#marks-yes:has-text('3')").wait_for()  # the label is still picked

    page.locator("#save").click()
    assert marked(page, page.locator("#ask-ok").click)["labels"] == 3


def test_names_are_only_ever_text_and_the_page_fits_a_phone(visit):
    page = visit(390)
    page.locator("[data-tab=labels]").click()
    page.locator("#label-box").fill(EVIL)
    page.keyboard.press("Enter")
    page.locator("[data-tab=photos]").click()
    page.locator("#search").fill("onerror")
    cell = page.locator("#grid .tile[data-id]").first
    cell.wait_for()
    marked(page, cell.click)
    assert page.locator("#label-title").inner_text() == EVIL
    assert page.locator("img[src='x']").count() == 0
    assert page.locator("body").evaluate("body => body.scrollWidth") <= 390
