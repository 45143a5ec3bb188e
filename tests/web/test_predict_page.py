import shutil
from pathlib import Path

import pytest

from mlcil.web.tagger_server import make_tagger_app

from .conftest import ACCESS, EVIL, served

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as started:
        made = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield made
        made.close()


def test_photos_are_tagged_and_names_are_only_text(browser, evil_tagger, digit_tables, tmp_path):
    bad = tmp_path / "<b>text.jpg"
    bad.write_text("no image")
    with served(make_tagger_app(evil_tagger, ACCESS)) as port:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append("a dialog"))
        page.goto(f"http://127.0.0.1:{port}/")
        page.set_input_files("#files", [str(digit_tables / "150.png"), str(bad)])
        expect = sync_api.expect
        expect(page.locator(".photo")).to_have_count(2)
        expect(page.locator(".is-waiting")).to_have_count(0)
        expect(page.locator(".photo.has-error h2")).to_have_text(bad.name)
        expect(page.locator(".photo.has-error .state")).to_contain_text("Not an image")
        _slide(page, "0")
        expect(page.locator("#summary")).to_have_text("2 photos, 2 tags, 1 not read")
        tag = page.locator(".photo .tag", has_text=EVIL)
        expect(tag).to_have_count(1)
        tag.click()
        expect(tag).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".overlay:not([hidden])")).to_have_count(1)
        page.locator("#own").click()
        expect(page.locator("#threshold-value")).to_have_text("own")
        assert page.locator("img[src=x]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.goto(f"http://127.0.0.1:{port}/api-docs")
        expect(page.locator(".operation", has_text="/v1/predict")).to_have_count(1)
        assert problems == []
        page.close()


def _slide(page, value: str) -> None:
    page.locator("#threshold").fill(value)


def test_page_files_are_all_there():
    pages = Path(__file__).parents[2] / "src/mlcil/web/pages"
    for name in ("predict.html", "predict.css", "predict.js", "predict_photo.js", "predict_send.js", "look.css"):
        assert (pages / name).is_file()
