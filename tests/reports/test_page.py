import re
from html.parser import HTMLParser

import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.evaluation.results import evaluate, summarise
from mlcil.reports.page import write_page

NAMES = ["<b>", "$5 & $6", "日本", "a class of a very long name", "#010203", '"quoted"']


def a_run(method, counts, finished=True, **header):
    rng, sessions = np.random.default_rng(0), []
    for t, count in enumerate(counts):
        labels = (rng.random((30, count)) < 0.4).astype(np.int8)
        labels[:, 1] = 0  # a class without a positive
        first = counts[t - 1] if t else 0
        scores = rng.random((30, count))
        sessions.append(evaluate(scores, labels, t + 1, NAMES[:count], first, sessions, 40, 3.2, {}))
    return summarise({"method": method, "protocol": "B0-C2", "seed": 0, **header}, sessions, finished)


@pytest.fixture
def runs():
    return [
        a_run("ft", (2, 4, 6)),
        a_run("krt", (2, 4, 6), environment={"torch": "2.6"}),
        a_run("joint", (6,)),
    ]


def page(path, runs, **changes):
    given = {
        "title": "Bees & <wasps>",
        "explanation": "First.\n\nSecond <i>.",
        "commands": ["mlcil train > log"],
    }
    return write_page(runs, path / "page.html", **{**given, **changes}).read_text()


class Tags(HTMLParser):
    """Collects tags and ids, and checks that what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_loads_nothing(tmp_path, runs):
    text = page(tmp_path, runs)
    assert "://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "@import" not in text
    found = Tags(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert all(link.startswith("#") for link in found.links)


def test_the_page_is_well_formed(tmp_path, runs):
    found = Tags(page(tmp_path, runs))
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert found.tags.count("svg") == 2 + len(runs)


def test_names_are_escaped(tmp_path, runs):
    text = page(tmp_path, runs)
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "$5 &amp; $6" in text
    assert "日本" in text
    assert ">#010203<" in text
    assert "Bees &amp; &lt;wasps&gt;" in text
    assert "Second &lt;i&gt;." in text
    assert "mlcil train &gt; log" in text


def test_a_method_name_is_escaped_too(tmp_path):
    text = page(tmp_path, [a_run('<script>"x"', (2, 4))])
    assert "script" not in Tags(text).tags


def test_the_same_runs_give_the_same_bytes(tmp_path, runs):
    assert page(tmp_path / "one", runs) == page(tmp_path / "two", runs)


def test_every_run_is_named_in_the_given_order(tmp_path, runs):
    headings = re.findall(r"<h3>(.*?)</h3>", page(tmp_path, runs[::-1]))
    assert headings == ["joint", "krt", "ft"]


def test_settings_and_environment_are_shown(tmp_path, runs):
    text = page(tmp_path, runs)
    assert '<th scope="row">seed</th><td colspan="3">0</td>' in text
    assert '<th scope="row">torch</th><td>-</td><td>2.6</td><td>-</td>' in text


def test_figures_follow_the_page_in_light_and_dark(tmp_path, runs):
    text = page(tmp_path, runs)
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert ": #010203" not in text


@pytest.mark.parametrize("counts", [(), (2,), (2, 4)])
def test_half_a_run_is_welcome(tmp_path, runs, counts):
    assert "er (unfinished)" in page(tmp_path, [*runs, a_run("er", counts, finished=False)])
    assert "er (unfinished)" in page(tmp_path, [a_run("er", counts, finished=False)], commands=())


def test_no_run_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="no run"):
        page(tmp_path, [])
    assert not list(tmp_path.iterdir())


def test_the_users_matplotlib_style_is_untouched(tmp_path, runs):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"svg.fonttype": "path", "axes.facecolor": "red"}):
        assert page(tmp_path / "red", runs) == page(tmp_path / "plain", runs)
    assert dict(matplotlib.rcParams) == before
