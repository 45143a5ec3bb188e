"""The README and the pages say what is true: code runs, settings exist, links lead to a heading."""

import re
from pathlib import Path

import pytest

import mlcil
from mlcil.core.config import option_names
from mlcil.training.config import RunSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run_code(page: str, block: int = 0, **replaced: str) -> dict[str, object]:
    """Run a Python block of a page, with some of its text replaced so that it takes seconds."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[block]
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    names: dict[str, object] = {}
    exec(code, names)
    return names


def anchors(page: Path) -> set[str]:
    """The headings of a page as they stand in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = {"digits:size=32": "digits:train=60,test=40,size=16", '"image_size": 32': '"image_size": 16'}
    run_code("README.md", 1, **tiny, **{'"epochs": 8': '"epochs": 1'})
    assert Path("report/index.html").exists()


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_code("docs/guide.md")
    assert Path(names["page"]).exists()


def test_the_code_that_takes_sessions_back_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"protocol": "0,1,2,3|4,5|6,7", "image_size": 16, "remember": "fingerprints"}
    mlcil.run("analytic", "digits:train=60,test=40,size=16", "runs/analytic", **settings)
    names = run_code("docs/methods/analytic.md")
    assert names["tagger"].classes == tuple("01236")
    assert (tmp_path / "reduced" / "tags.csv").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_with_an_anchor_leads_to_a_heading(page):
    links = re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", page.read_text())
    assert [(file, name) for file, name in links if name not in anchors((page.parent / file) if file else page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_of_a_page_exists(page):
    known = {name for method in mlcil.methods().values() for name in option_names(method.Config)}
    named = set(re.findall(r"--set (\w+)=", page.read_text()))
    assert named <= known | set(option_names(RunSettings)) | {"key"}
