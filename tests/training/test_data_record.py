"""A run that goes on with a table that has changed since."""

import csv

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.digits import read_digits
from mlcil.data.images import LabelledImages
from mlcil.training.config import make_config
from mlcil.training.data_record import _label_keys
from mlcil.training.run import run

from ..tiny import final_state, outcome, settings


@pytest.fixture
def photos(tmp_path):
    """Canvases of digits as files, and the rows of a table about them: path, labels, split."""
    rows = []
    for part in read_digits(train=60, test=40, size=16)[:2]:
        for place, (pixels, labels) in enumerate(zip(part.pixels, part.labels, strict=True)):
            name = f"{part.split}-{place}.png"
            Image.fromarray(pixels).save(tmp_path / name)
            rows.append([name, ";".join(np.array(part.classes)[labels == 1]), part.split])
    return rows


def write(folder, rows):
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "labels", "split"], *rows])


class StoppedError(Exception):
    pass


def config(folder, **changes):
    values = {"data": f"table:{folder / 'labels.csv'}", "cache": str(folder / "cache"), "protocol": "0,1,2|3,4"}
    return make_config(settings("er", **values | {"buffer": "3", "checkpoint_seconds": 0.0} | changes))


def stop_after_first_session(folder, monkeypatch, **changes):
    """Run until the second session is to begin."""
    from mlcil.training.run import _Run

    with monkeypatch.context() as patch:
        whole = _Run._run_session

        def once(self, session, start):
            if session.number > 1:
                raise StoppedError
            whole(self, session, start)

        patch.setattr(_Run, "_run_session", once)
        with pytest.raises(StoppedError):
            run(config(folder, **changes), folder / "run")


def labels_of(row):
    return set(row[1].split(";")) - {""}


def test_rows_in_another_order_change_nothing(photos, tmp_path, monkeypatch):
    write(tmp_path, photos)
    run(config(tmp_path), tmp_path / "whole")
    stop_after_first_session(tmp_path, monkeypatch)
    write(tmp_path, photos[::-1])
    run(config(tmp_path), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    one, other = final_state(tmp_path / "run"), final_state(tmp_path / "whole")
    assert all(one[name].equal(other[name]) for name in other)


def test_rows_for_a_session_to_come_are_taken_in(photos, tmp_path, monkeypatch):
    late = [row for row in photos if labels_of(row) <= set("34") and labels_of(row) and row[2] == "train"][:2]
    assert len(late) == 2
    write(tmp_path, [row for row in photos if row not in late])
    stop_after_first_session(tmp_path, monkeypatch)
    write(tmp_path, [*late, *(row for row in photos if row not in late)])
    grown = run(config(tmp_path), tmp_path / "run")
    write(tmp_path, photos)
    whole = run(config(tmp_path), tmp_path / "whole")
    assert [one.notes for one in grown.sessions] == [one.notes for one in whole.sessions]
    assert [one.images for one in grown.sessions] == [one.images for one in whole.sessions]
    assert grown.data_digest == whole.data_digest


@pytest.mark.parametrize("finished", [False, True])
def test_rows_for_a_session_that_is_learned_are_named(photos, tmp_path, monkeypatch, finished):
    write(tmp_path, photos[1:])
    assert labels_of(photos[0]) & set("012")
    if finished:
        run(config(tmp_path), tmp_path / "run")
    else:
        stop_after_first_session(tmp_path, monkeypatch)
    write(tmp_path, photos)
    with pytest.raises(UserError, match=r"1 image is new \(first .*train-0\.png\), and session 1 would see .* --out"):
        run(config(tmp_path), tmp_path / "run")


def test_other_labels_are_named(photos, tmp_path, monkeypatch):
    write(tmp_path, photos)
    stop_after_first_session(tmp_path, monkeypatch)
    photos[3][1] = "2" if photos[3][1] != "2" else "1"
    write(tmp_path, photos)
    with pytest.raises(UserError, match=r"1 image is labelled differently \(first .*train-3\.png\)"):
        run(config(tmp_path), tmp_path / "run")


def test_images_that_are_gone_are_named(photos, tmp_path, monkeypatch):
    write(tmp_path, photos)
    stop_after_first_session(tmp_path, monkeypatch)
    write(tmp_path, photos[1:])
    with pytest.raises(UserError, match=r"1 of the train images of .*run are no longer in its data .*train-0\.png"):
        run(config(tmp_path), tmp_path / "run")


def test_what_no_session_has_seen_may_go(photos, tmp_path, monkeypatch):
    """An image that cannot be read, and one of a session to come, in front of images that are being learned from."""
    late = next(row for row in photos if labels_of(row) and labels_of(row) <= set("34") and row[2] == "train")
    (tmp_path / "broken.png").write_text("no image")
    others = [row for row in photos if row is not late]
    write(tmp_path, [["broken.png", "1", "train"], late, *others])
    skip = {"on_bad_image": "skip"}
    stop_after_first_session(tmp_path, monkeypatch, **skip)
    write(tmp_path, others)
    for _ in range(2):  # the record of a run that goes on is as good as the first
        grown = run(config(tmp_path, **skip), tmp_path / "run")
    whole = run(config(tmp_path, **skip), tmp_path / "whole")
    assert [one.images for one in grown.sessions] == [one.images for one in whole.sessions]


def test_a_class_that_is_absent_does_not_change_the_labels():
    for count in range(1, 40):
        classes = tuple(f"class {number}" for number in range(count))
        images = LabelledImages(("a.jpg",), np.eye(1, count, dtype=np.int8), classes, "train", digests=(b"a",))
        assert _label_keys(images) == _label_keys(images.with_classes(classes[:1]))


def test_a_photo_that_comes_with_two_sessions_keeps_its_rows(photos, tmp_path, monkeypatch):
    header = ["path", "labels", "split", "session"]
    rows = [[*row, 1 if labels_of(row) & set("012") else 2] for row in photos]
    both = next(row for row in rows if row[2] == "train" and labels_of(row) & set("012"))
    rows = [*rows, [both[0], "3", "train", 2]]
    for name, order in (("whole", 1), ("run", 1), ("run", -1)):
        with (tmp_path / "labels.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows[::order]])
        if name == "run" and order == 1:
            stop_after_first_session(tmp_path, monkeypatch)
        else:
            run(config(tmp_path), tmp_path / name)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_before_anything_is_learned_the_data_may_change(photos, tmp_path, monkeypatch):
    write(tmp_path, photos[5:])
    with monkeypatch.context() as patch:
        patch.setattr("mlcil.training.run._Run.execute", lambda self: None)
        run(config(tmp_path), tmp_path / "run")
    assert (tmp_path / "run" / "data.json").exists()
    write(tmp_path, photos)
    assert run(config(tmp_path, epochs=1), tmp_path / "run").finished
