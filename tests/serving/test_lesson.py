"""Lessons of methods that train: old labels stay, and a lesson that was killed goes on to the same tagger."""

import shutil

import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.core.locks import FileLock
from mlcil.serving.tagger import Tagger
from mlcil.training.config import make_config
from mlcil.training.progress import Reporter
from mlcil.training.run import run

from ..tiny import settings
from .lessons import photos_of, start_trained, teach

METHODS = ("krt", "lwf", "ft")
OFTEN = {"checkpoint_seconds": 0}


@pytest.fixture(scope="module")
def started(digit_tables):
    """Taggers that have learned a.csv, by method."""
    return {method: start_trained(digit_tables / "a.csv", method) for method in METHODS}


@pytest.fixture(scope="module")
def photos(digit_tables):
    return photos_of(digit_tables, range(30))


class Killed(BaseException):
    """Ends a lesson in the middle."""


@pytest.fixture
def killed(monkeypatch):
    """Ends a lesson at the end of its second epoch, before it is kept, and lists the epochs that end."""
    epochs = []

    def end(self, record, *_):
        epochs.append(record["epoch"])
        if len(epochs) == 2:
            raise Killed

    monkeypatch.setattr(Reporter, "epoch", end)
    return epochs


@pytest.mark.parametrize("method", METHODS)
def test_a_tagger_learns_more_and_keeps_its_labels(started, method, digit_tables, photos, tmp_path):
    before = started[method].scores(photos)
    loaded = Tagger.load(started[method].save(tmp_path / "saved"))
    learned = teach(loaded, digit_tables / "b.csv", check=str(digit_tables / "c.csv"))
    assert learned.classes == tuple(f"digit {k}" for k in range(4))
    assert np.array_equal(loaded.scores(photos), before)  # itself is as it was
    scores = learned.scores(photos)
    assert scores.shape == (30, 4)
    assert np.isfinite(scores).all()
    assert (np.ptp(scores, axis=0) > 0).all()
    assert [step.new_labels for step in learned.steps] == [("digit 0", "digit 1"), ("digit 2", "digit 3")]
    assert len(learned.thresholds) == len(learned.calibration.thresholds) == 4
    assert {one.measured for one in learned.labels[:2]} == {"60 photos of c.csv"}
    again = Tagger.load(learned.save(tmp_path / "learned"))
    assert np.array_equal(again.scores(photos), scores)


def test_known_labels_alone_are_refused(started, digit_tables):
    with pytest.raises(UserError, match="^krt learns new labels only, and the table has none; see mlcil methods$"):
        teach(started["krt"], digit_tables / "a.csv")


def test_options_that_do_not_fit_are_one_line(started, digit_tables):
    with pytest.raises(UserError, match="^this tagger has width 16, which stays as it is; leave out width=32$"):
        teach(started["krt"], digit_tables / "b.csv", settings={"width": 32})


def test_a_run_with_exemplars_learns_no_more(digit_tables, tmp_path):
    run(make_config(settings("krt", buffer="2", epochs=1)), tmp_path / "run")
    with pytest.raises(UserError, match=r"^krt trains on exemplars, [^\n]+; make one without a buffer$"):
        teach(Tagger.load(tmp_path / "run"), digit_tables / "b.csv")


def test_a_run_learns_more(digit_tables, tmp_path, photos):
    run(make_config(settings("lwf", epochs=1)), tmp_path / "run")
    learned = teach(Tagger.load(tmp_path / "run"), digit_tables / "b.csv")
    assert learned.classes == (*"0123456", "digit 2", "digit 3")
    assert [step.number for step in learned.steps] == [1, 2, 3, 4]
    assert Tagger.load(learned.save(tmp_path / "tagger")).scores(photos).shape == (30, 9)


def test_a_first_lesson_that_was_killed_goes_on(started, digit_tables, photos, tmp_path, killed):
    work = tmp_path / "work"
    with pytest.raises(Killed):
        start_trained(digit_tables / "a.csv", "krt", work=work, **OFTEN)
    assert (work / "session-01" / "progress.safetensors").is_file()
    learned = start_trained(digit_tables / "a.csv", "krt", work=work, **OFTEN)
    assert np.array_equal(learned.scores(photos), started["krt"].scores(photos))
    assert np.array_equal(learned.thresholds, started["krt"].thresholds)


@pytest.mark.parametrize("method", ["krt", "lwf"])
def test_a_later_lesson_that_was_killed_goes_on(started, method, digit_tables, photos, tmp_path, killed):
    work, before = tmp_path / "work", started[method].scores(photos)
    with pytest.raises(Killed):
        teach(started[method], digit_tables / "b.csv", work=work, settings=OFTEN)
    assert np.array_equal(started[method].scores(photos), before)
    learned = teach(started[method], digit_tables / "b.csv", work=work, settings=OFTEN)
    assert killed == [1, 2, 2]  # it does not begin again
    whole = teach(started[method], digit_tables / "b.csv")
    assert np.array_equal(learned.scores(photos), whole.scores(photos))
    assert np.array_equal(learned.thresholds, whole.thresholds)


@pytest.mark.parametrize("other", ["table", "settings", "tagger"])
def test_another_lesson_does_not_go_on_from_there(started, other, digit_tables, photos, tmp_path, killed):
    tagger, table, work = started["ft"], digit_tables / "b.csv", tmp_path / "work"
    with pytest.raises(Killed):
        teach(tagger, table, work=work, settings=OFTEN)
    changes = OFTEN
    if other == "table":
        rows = table.read_text().splitlines()
        table = tmp_path / "b.csv"
        table.write_text("\n".join(rows[:-1]).replace("\n", f"\n{digit_tables}/"))
    elif other == "settings":
        changes = OFTEN | {"lr": 5e-4}
    else:
        tagger = start_trained(digit_tables / "a.csv", "ft", seed=1)
        changes = OFTEN | {"seed": 0}
    learned = teach(tagger, table, work=work, settings=changes)
    whole = teach(tagger, table, settings=changes)
    assert np.array_equal(learned.scores(photos), whole.scores(photos))
    assert learned.classes == whole.classes


def test_a_folder_whose_lesson_nobody_can_tell_is_kept(started, digit_tables, photos, tmp_path, killed):
    work, table = tmp_path / "work", digit_tables / "b.csv"
    with pytest.raises(Killed):
        teach(started["ft"], table, work=work, settings=OFTEN)
    mark, progress = work / "lesson.json", (work / "session-02" / "progress.safetensors").read_bytes()
    mark.write_text(mark.read_text().translate(str.maketrans("0123456789", "1234567890")))
    learned = teach(started["ft"], table, work=work, settings=OFTEN)
    assert (tmp_path / "work.damaged" / "session-02" / "progress.safetensors").read_bytes() == progress
    assert np.array_equal(learned.scores(photos), teach(started["ft"], table).scores(photos))


def test_a_lesson_under_way_elsewhere_is_left_alone(started, digit_tables, tmp_path, killed):
    with pytest.raises(Killed):
        teach(started["ft"], digit_tables / "b.csv", work=tmp_path / "work", settings=OFTEN)
    files, lock = sorted((tmp_path / "work").rglob("*")), FileLock(tmp_path / "work" / ".lock")
    assert lock.try_to_claim()
    for changes in (OFTEN, OFTEN | {"lr": 5e-4}):
        with pytest.raises(UserError, match="another process is "):
            teach(started["ft"], digit_tables / "b.csv", work=tmp_path / "work", settings=changes)
    lock.close()
    assert sorted((tmp_path / "work").rglob("*")) == files


def test_without_a_work_folder_nothing_is_read_or_written_here(
    started, digit_tables, photos, tmp_path, monkeypatch, killed
):
    with pytest.raises(Killed):
        teach(started["ft"], digit_tables / "b.csv", work=tmp_path / "work", settings=OFTEN | {"lr": 0.1})
    monkeypatch.chdir(shutil.copytree(tmp_path / "work", tmp_path / "here"))
    files = sorted((tmp_path / "here").rglob("*"))
    learned = teach(started["ft"], digit_tables / "b.csv", settings=OFTEN)
    assert sorted((tmp_path / "here").rglob("*")) == files
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(learned.scores(photos), teach(started["ft"], digit_tables / "b.csv").scores(photos))
