"""A run that goes on with a table that has changed since."""

import csv

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.digits import read_digits
from mlcil.training.config import make_config
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


def stop_after_first_session(folder, monkeypatch):
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
            run(config(folder), folder / "run")


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


def test_before_anything_is_learned_the_data_may_change(photos, tmp_path, monkeypatch):
    write(tmp_path, photos[5:])
    with monkeypatch.context() as patch:
        patch.setattr("mlcil.training.run._Run.execute", lambda self: None)
        run(config(tmp_path), tmp_path / "run")
    assert (tmp_path / "run" / "data.json").exists()
    write(tmp_path, photos)
    assert run(config(tmp_path, epochs=1), tmp_path / "run").finished
