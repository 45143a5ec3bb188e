import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from mlcil.core.errors import UserError
from mlcil.reports import sections
from mlcil.reports.report import write_report
from mlcil.reports.style import save_png

from .made import made_run

CLASSES = ["<b>", "$5 & $6", "日本", "a class of a very long name", "#1b1f24", '"quoted"']
VOID = {"meta", "input", "img"}


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch):
    """PNG files are the slow part of a report, so they are small here."""
    monkeypatch.setattr(sections, "save_png", lambda figure, file, dpi=10: save_png(figure, file, 10))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two settings, two seeds, a joint run, one half done, one that cannot be read."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        made_run(root, f"krt-{seed}", "krt", seed, names=CLASSES)
    made_run(root, "joint", "joint", counts=(6,), names=CLASSES)
    made_run(root, "half", "ft", done=2, protocol="B2-C2", names=CLASSES)
    (root / "broken <i>").mkdir()
    (root / "broken <i>" / "results.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "save_png", lambda figure, file, dpi=10: save_png(figure, file, 10))
        return write_report(
            [runs], tmp_path_factory.mktemp("report"), "Bees & <wasps>", "First.\n\nSecond <i>.", ["a > b"]
        )


class Tags(HTMLParser):
    """Collects tags, ids and links, and checks that what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_loads_nothing(report):
    text = report.read_text()
    assert "://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "@import" not in text
    found = Tags(text)
    assert not {"link", "iframe", "object"} & set(found.tags)
    assert found.tags.count("script") == 1
    assert all(re.match(r"#|data:image/png;base64,|(tables|figures)/", link) for link in found.links)


def test_the_page_is_well_formed_and_its_links_lead_somewhere(report):
    found = Tags(report.read_text())
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    files = [report.parent / link for link in found.links if link.startswith(("tables/", "figures/"))]
    assert len(files) > 25
    assert all(file.is_file() for file in files)


def test_every_table_and_figure_is_a_file_that_the_page_links(report):
    links = set(Tags(report.read_text()).links)
    names = ["summary", "pseudo-labels", "cost", "environment"]
    names += [f"{name}-digits-{one}" for name in ("sessions", "classes", "forgetting") for one in ("b0-c2", "b2-c2")]
    tables = {f"tables/{name}.{ending}" for name in names for ending in ("md", "tex", "csv")}
    assert {f"tables/{file.name}" for file in (report.parent / "tables").iterdir()} == tables
    figures = {f"figures/{file.name}" for file in (report.parent / "figures").iterdir()}
    assert tables | figures <= links
    keys = {Path(name).stem for name in figures}
    assert {"curves-digits-b0-c2", "forgetting-digits-b2-c2", "losses-digits-b0-c2-joint"} <= keys
    assert "classes-digits-b0-c2-joint" not in keys  # one session makes no map


def test_names_are_escaped(report):
    text = report.read_text()
    assert "<b>" not in text
    assert "<i>" not in text.replace("</span><i></i>", "")
    assert '<td role="rowheader" class="text" data-key="&lt;b&gt;">&lt;b&gt;</td>' in text
    assert "$5 &amp; $6" in text
    assert "日本" in text
    assert ">#1b1f24<" in text
    assert "<title>Bees &amp; &lt;wasps&gt;</title>" in text
    assert "Second &lt;i&gt;." in text
    assert "a &gt; b" in text


def test_what_could_not_be_shown_is_listed(report):
    left_out = report.read_text().partition('<section id="left-out">')[2]
    assert "broken &lt;i&gt;" in left_out
    assert "not valid JSON" in left_out


def test_commands_are_those_of_the_runs(report, runs):
    section = report.read_text().partition('<section id="commands">')[2]
    assert "mlcil run --method krt --seed 1" in section
    assert f"mlcil run {runs}/krt-1/config.yaml --out NEW" in section


def test_a_program_path_is_shortened_and_arguments_are_quoted(tmp_path):
    folder = made_run(tmp_path / "runs", "ft", "ft", counts=(2, 4))
    launches = '{"launches": [{"command": ["some/bin/mlcil", "run", "--data", "coco:/a b"]}]}'
    (folder / "environment.json").write_text(launches)
    text = write_report([folder], tmp_path / "out", images=0).read_text()
    assert "mlcil run --data &#39;coco:/a b&#39;" in text
    assert "some/bin" not in text


def test_half_a_run_and_a_single_run_make_a_report(tmp_path):
    made_run(tmp_path / "runs", "er", "er", done=1, buffer="20")
    text = write_report([tmp_path / "runs"], tmp_path / "out").read_text()
    assert "er (unfinished)" in text
    assert "1 run on digits B0-C2; 1 not finished." in text
    assert '<section id="left-out">' not in text
    assert '<section id="published">' not in text
    assert Tags(text).open == []


def test_the_same_runs_give_the_same_bytes(tmp_path):
    run = made_run(tmp_path / "runs", "krt", counts=(2, 4))
    first, second = (write_report([run], tmp_path / name).parent for name in ("one", "two"))
    names = sorted(file.relative_to(first) for file in first.rglob("*") if file.is_file())
    assert names == sorted(file.relative_to(second) for file in second.rglob("*") if file.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_no_run_is_the_users_mistake_and_writes_nothing(tmp_path):
    with pytest.raises(UserError, match="found no run"):
        write_report([tmp_path], tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path):
    run = made_run(tmp_path, "ft", "ft", counts=(2, 4))
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_report([run], tmp_path / "out")


def test_attention_maps_are_pictures_of_the_first_group_that_has_them(tmp_path, monkeypatch):
    for method in ("ft", "lwf", "krt"):
        made_run(tmp_path / "runs", method, method, counts=(2, 4))
    asked = []

    def maps(path, count):
        asked.append((path.name, count))
        if path.name == "krt":
            raise UserError("the pictures are gone")
        return [(f"picture <{number}>", Figure(figsize=(1, 1))) for number in range(count)]

    monkeypatch.setattr(sections, "maps_for_report", maps)
    report = write_report([tmp_path / "runs"], tmp_path / "out", images=2)
    assert asked == [("krt", 2), ("ft", 2)]  # cross-attention first
    pictures = [link for link in Tags(report.read_text()).links if link.startswith("data:") and len(link) > 60]
    files = sorted((tmp_path / "out" / "figures").glob("attention-*.png"))
    shown = [base64.b64decode(link.partition(",")[2]) for link in pictures]
    assert [file.read_bytes() for file in files] == [data for data in shown if data.startswith(b"\x89PNG")][-2:]
    assert "ft: picture &lt;1&gt;" in report.read_text()
    assert "the pictures are gone" not in report.read_text()


def test_the_page_says_why_there_are_no_attention_maps(report, tmp_path):
    section = report.read_text().partition('<section id="attention">')[2].partition("</section>")[0]
    assert section.count("no finished session") == 2  # made runs have no model, in either setting


def test_settings_that_share_the_letters_of_a_file_name_get_files_of_their_own(tmp_path):
    for name, data in (("a", "coco:/x/日本"), ("b", "coco:/x/中国")):
        made_run(tmp_path / "runs", name, data=data)
    write_report([tmp_path / "runs"], tmp_path / "out", images=0)
    files = sorted(file.name for file in (tmp_path / "out" / "tables").glob("sessions-*.md"))
    assert files == ["sessions-b0-c2-2.md", "sessions-b0-c2.md"]


def test_cells_carry_what_to_sort_and_columns_what_to_filter_by(report):
    text = report.read_text()
    last = re.search(r'<tr data-method="krt".*?<td data-key="([\d.]+)">\d+\.\d ± \d+\.\d</td>', text)
    assert 0 < float(last[1]) < 100
    assert '<th scope="col" data-method="krt">krt</th>' in text  # of the table by class


def test_progress_is_reported(tmp_path):
    said = []
    runs = [made_run(tmp_path, "ft", "ft", counts=(2, 4)), tmp_path / "nowhere"]
    write_report(runs, tmp_path / "out", say=said.append)
    assert f"{tmp_path / 'nowhere'} does not exist" in said
    assert "figure curves-digits-b0-c2" in said
    assert any(line.startswith("attention maps of ") for line in said)
