import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch

from mlcil.data.decoding import BadImage
from mlcil.serving.predicting import TOGETHER, score_photos
from mlcil.web import batches, engine
from mlcil.web.batches import Batches
from mlcil.web.engine import Engine
from mlcil.web.errors import Busy
from mlcil.web.uploads import Upload


@pytest.fixture
def running(tagger):
    made = Engine(tagger, most=8)
    made.start()
    yield made
    made.close()


def test_scores_are_those_of_predict_to_the_bit(tagger, digit_tables, running):
    files = [digit_tables / f"{number}.png" for number in range(140, 140 + 2 * TOGETHER)]
    wanted = np.stack(list(score_photos(tagger, [str(file) for file in files])))
    whole = tagger.scores(files)
    alone = [running.submit([Upload("x", file.read_bytes())])[0].result(10).scores for file in files]
    np.testing.assert_array_equal(np.stack(alone), wanted)
    np.testing.assert_array_equal(np.stack(alone), whole)
    for start in range(0, 24, 8):
        some = running.submit([Upload("x", file.read_bytes()) for file in files[start : start + 8]])
        np.testing.assert_array_equal(np.stack([one.result(10).scores for one in some]), wanted[start : start + 8])


@pytest.mark.parametrize("count", range(1, TOGETHER + 1))
def test_batches_of_every_size(tagger, digit_tables, count):
    squares = [tagger.square(digit_tables / f"{number}.png") for number in range(140, 140 + count)]
    whole = np.zeros((TOGETHER, *squares[0].shape), np.uint8)
    whole[:count] = squares
    np.testing.assert_array_equal(Batches(tagger).scores(squares), tagger.score_pixels(whole)[:count])


def test_a_stem_that_rounds_differently_is_computed_whole(tagger, monkeypatch):
    """Where fewer images give other bits, no smaller size is used."""
    original = type(tagger).prepare

    def prepare(self, pixels):
        prepared = original(self, pixels)
        return prepared if len(pixels) == TOGETHER else torch.nextafter(prepared, torch.tensor(1e9))

    monkeypatch.setattr(type(tagger), "prepare", prepare)
    assert Batches(tagger).sizes == (TOGETHER,)


def test_some_sizes_are_used_here(tagger):
    assert set(Batches(tagger).sizes) <= {*batches.SIZES, TOGETHER}


def test_a_bad_image_harms_no_other(running, picture):
    good, bad, again = running.submit([Upload("a", picture), Upload("b", b"text"), Upload("c", picture)])
    np.testing.assert_array_equal(good.result(10).scores, again.result(10).scores)
    with pytest.raises(BadImage, match="not an image"):
        bad.result(10)
    assert running.count == 0


def test_a_full_queue_is_busy_and_empties_again(tagger, picture, monkeypatch):
    gate = threading.Event()
    original = engine.decoded
    monkeypatch.setattr(engine, "decoded", lambda *given: (gate.wait(10), original(*given))[1])
    made = Engine(tagger, most=4)
    made.start()
    waiting = made.submit([Upload("x", picture)] * 3)
    with pytest.raises(Busy, match="busy with 3 images; at most 4"):
        made.submit([Upload("x", picture)] * 2)
    last = made.submit([Upload("x", picture)])
    gate.set()
    for one in waiting + last:
        one.result(10)
    made.submit([Upload("x", picture)] * 4)[3].result(10)
    assert "mlcil_rejected_images_total 2" in made.metrics.text()
    made.close()
    assert made.count == 0


def test_cancelled_work_is_not_done(tagger, picture, monkeypatch):
    gate, done = threading.Event(), []
    original = engine.decoded

    def slow(tagger, upload, has_photo):
        gate.wait(10)
        done.append(upload.name)
        return original(tagger, upload, has_photo)

    monkeypatch.setattr(engine, "decoded", slow)
    made = Engine(tagger, most=20)
    made.start()
    jobs = made.submit([Upload(str(number), picture) for number in range(10)])
    for job in jobs[2:9]:  # two are being decoded
        assert job.cancel()
    gate.set()
    for job in (*jobs[:2], jobs[9]):
        job.result(10)
    with pytest.raises(CancelledError):
        jobs[5].result()
    made.close()
    assert sorted(done) == ["0", "1", "9"]
    assert made.count == 0


def test_images_are_computed_together(tagger, picture):
    made = Engine(tagger, most=64)
    made.start()
    for job in made.submit([Upload("x", picture)] * 48):
        job.result(10)
    text = made.metrics.text()
    count = int(text.split("mlcil_batch_images_count ")[1].split()[0])
    assert count < 48
    assert "mlcil_images_total 48" in text
    made.close()


def test_a_failure_reaches_whoever_waits_and_the_engine_goes_on(running, picture, monkeypatch):
    monkeypatch.setattr(Batches, "scores", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        running.submit([Upload("x", picture)])[0].result(10)
    monkeypatch.undo()
    running.submit([Upload("x", picture)])[0].result(10)
    assert running.is_running
    assert running.count == 0


def test_a_closed_engine_takes_nothing(tagger, picture):
    made = Engine(tagger)
    made.start()
    made.close()
    assert not made.is_running
    with pytest.raises(Busy, match="stopping"):
        made.submit([Upload("x", picture)])
