import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlcil.core.errors import UserError
from mlcil.evaluation.scores import ScoredImages, load_scores, save_scores, scores_file

# Replaces the scores argv[1] by larger ones, on a system that writes no file beyond 20 kB.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from mlcil.core.errors import UserError
from mlcil.evaluation.scores import ScoredImages, save_scores
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
count = 50_000
try:
    save_scores(Path(sys.argv[1]), ScoredImages(np.zeros((count, 1)), np.zeros((count, 1)), np.arange(count), ("ant",)))
except UserError as error:
    print(error)
print("torch" in sys.modules)
"""


def some_scores(**changes):
    rng = np.random.default_rng(0)
    scored = ScoredImages(
        scores=rng.random((5, 3)).astype(np.float32),
        labels=rng.integers(-1, 2, (5, 3)).astype(np.int8),
        rows=np.array([7, 3, 4, 11, 0]),
        classes=("ant", "größer", 'a "b", c'),
    )
    return scored._replace(**changes)


def test_scores_come_back_bit_for_bit(tmp_path):
    scored, path = some_scores(), scores_file(tmp_path, 3)
    assert path == tmp_path / "session-03" / "scores.safetensors"
    save_scores(path, scored)
    loaded = load_scores(path)
    assert loaded.classes == scored.classes
    assert [array.dtype for array in loaded[:3]] == [np.float32, np.int8, np.int64]
    for got, expected in zip(loaded[:3], scored[:3], strict=True):
        np.testing.assert_array_equal(got, expected)
    assert [child.name for child in path.parent.iterdir()] == ["scores.safetensors"]


def test_a_view_into_larger_arrays_is_saved_as_it_looks(tmp_path):
    wide = np.random.default_rng(1).random((3, 5))
    save_scores(tmp_path / "scores", some_scores(scores=wide.T))
    np.testing.assert_array_equal(load_scores(tmp_path / "scores").scores, wide.T.astype(np.float32))


def test_a_full_disk_is_an_error_of_one_line_that_leaves_the_old_scores(tmp_path):
    path = tmp_path / "scores.safetensors"
    save_scores(path, some_scores())
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    message, has_torch = done.stdout.splitlines()
    assert message.startswith(f"cannot write {path}: File too large. What was saved before is intact")
    assert has_torch == "False"
    assert load_scores(path).classes == some_scores().classes
    assert [child.name for child in tmp_path.iterdir()] == ["scores.safetensors"]


def test_scores_of_another_session_and_of_an_earlier_version(tmp_path):
    save_scores(scores_file(tmp_path, 1), some_scores())
    scores_file(tmp_path, 1).parent.rename(tmp_path / "session-02")
    with pytest.raises(UserError, match="session-01/scores.safetensors under another name"):
        load_scores(scores_file(tmp_path, 2))
    arrays = some_scores()._asdict()
    del arrays["classes"]
    save_file(arrays, tmp_path / "old", {"classes": '["a", "b", "c"]'})
    assert load_scores(tmp_path / "old").classes == ("a", "b", "c")


def test_missing_scores_are_named(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_scores(tmp_path / "nowhere")


def test_damaged_scores_are_named_in_one_line(tmp_path):
    path = tmp_path / "scores"
    save_scores(path, some_scores())
    data = path.read_bytes()
    flipped = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(0, len(data), 7)]
    for broken in (b"", b"hello", data[:-3], data[: len(data) // 2], *flipped):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="scores is damaged: it holds no scores") as caught:
            load_scores(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("metadata", [None, {"classes": "ant, bee"}])
def test_a_foreign_file_is_refused(tmp_path, metadata):
    arrays = {"scores": np.zeros((2, 3)), "labels": np.zeros((2, 3)), "rows": np.arange(2)}
    save_file(arrays, tmp_path / "scores", metadata)
    with pytest.raises(UserError, match="holds no scores"):
        load_scores(tmp_path / "scores")
