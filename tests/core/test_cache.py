"""The cache stays below its limit and removes what is its own, the oldest first."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from mlcil.core.cache import DiskCache, NoRoomError, Shelf
from mlcil.core.cached_rows import BLOCK, CachedRows, open_rows
from mlcil.core.errors import UserError

SHELF = Shelf("squares-1", (2, 3), "int32")
BYTES = 2 * 3 * 4 + 4  # of a row's file


class Squares:
    """Row n of six numbers n * n; negative rows have none."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.computed = numbers, []
        self.digests = tuple(number.to_bytes(4, "big", signed=True) for number in numbers)

    def compute(self, rows):
        for row in rows:
            number = self.numbers[row]
            self.computed.append(number)
            yield row, UserError(f"{number} is negative") if number < 0 else np.full((2, 3), number * number)


def opened(folder: Path, source: Squares, limit: int = 10**6, shelf: Shelf = SHELF) -> CachedRows:
    return open_rows(DiskCache(folder, limit), shelf, source)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_rows_are_served_as_computed(tmp_path):
    source = Squares(3, -1, 2, 3)
    rows = opened(tmp_path, source)
    assert source.computed == [3, -1, 2]
    assert rows.missing == {1: "-1 is negative"}
    assert files(tmp_path) == {"squares-1/00/000003", "squares-1/00/000002"}
    for _ in range(2):
        values = rows[np.array([2, 0, 3])]
        assert values.dtype == np.int32
        assert values.tolist() == [[[n] * 3] * 2 for n in (4, 9, 9)]
        assert rows.pick(np.array([0, 2]), np.array([1, 0])).tolist() == [[9] * 3, [4] * 3]
    with pytest.raises(UserError, match="^-1 is negative$"):
        rows[np.array([0, 1])]


def test_parts_of_a_row_are_told_apart(tmp_path):
    class Counted(Squares):
        def compute(self, rows):
            for row in rows:
                yield row, np.arange(6).reshape(2, 3) + 10 * self.numbers[row]

    rows = opened(tmp_path, Counted(1, 2))
    expected = [[23, 24, 25], [10, 11, 12], [20, 21, 22]]
    for _ in range(2):  # read in whole at first, then in part
        assert rows.pick(np.array([1, 0, 1]), np.array([1, 0, 0])).tolist() == expected
    (tmp_path / "squares-1/00/000002").unlink()
    assert rows.pick(np.array([1, 0, 1]), np.array([1, 0, 0])).tolist() == expected


def test_a_row_of_another_shape_is_computed_again(tmp_path):
    opened(tmp_path, Squares(2), shelf=Shelf("squares-1", (3, 3), "int32"))
    assert opened(tmp_path, Squares(2))[np.array([0])].tolist() == [[[4] * 3] * 2]


def test_what_was_used_longest_ago_makes_room_on_all_shelves(tmp_path):
    other = Shelf("squares-2", SHELF.shape, SHELF.dtype)
    for age, shelf, numbers in ((30, other, (1, 2)), (20, SHELF, (3, 4)), (10, other, (5, 6))):
        before = files(tmp_path)
        opened(tmp_path, Squares(*numbers), 6 * BYTES, shelf)
        for name in files(tmp_path) - before:
            os.utime(tmp_path / name, (time.time() - age,) * 2)
    opened(tmp_path, Squares(1, 2), 6 * BYTES, other)  # now the second is the oldest
    opened(tmp_path, Squares(7, 8, 9), 6 * BYTES)
    names = [*(f"squares-1/00/00000{number}" for number in (7, 8, 9)), *(f"squares-2/00/00000{n}" for n in (1, 2))]
    left = files(tmp_path) - set(names)
    assert set(names) < files(tmp_path)
    assert left in ({"squares-2/00/000005"}, {"squares-2/00/000006"})  # no more is removed than must be


def test_the_limit_is_kept_while_others_write(tmp_path):
    class Crowded(Squares):
        def compute(self, rows):
            for row, values in super().compute(rows):
                other = tmp_path / "others-1/ff" / f"{row:06x}"  # another process writes as much as we do
                other.parent.mkdir(parents=True, exist_ok=True)
                other.write_bytes(bytes(BYTES))
                os.utime(other, (1000, 1000))
                yield row, values

    opened(tmp_path, Crowded(*range(30)), limit=40 * BYTES)
    assert len(files(tmp_path / "squares-1")) == 30
    assert len(files(tmp_path)) <= 42  # counted again after every twentieth of the limit


def test_what_another_process_writes_meanwhile_is_not_computed(tmp_path):
    numbers = range(3 * BLOCK)

    class Overtaken(Squares):
        def compute(self, rows):
            opened(tmp_path, Squares(*numbers))
            yield from super().compute(rows)

    source, progress = Overtaken(*numbers), []
    rows = open_rows(DiskCache(tmp_path, 10**6), SHELF, source, None, lambda *at: progress.append(at))
    assert len(source.computed) == len(progress) == BLOCK
    assert rows[np.array([7, 300])][:, 0, 0].tolist() == [49, 90000]


def test_an_earlier_format_counts_and_goes_first(tmp_path):
    name = "0123456789abcdef" * 2 + "01234567"
    old = [tmp_path / f"{name}.{kind}" for kind in ("rows", "json", "done", "partial", "lock")]
    kept = [tmp_path / "notes.json", tmp_path / "files.sqlite", tmp_path / "my-images/ab/photo.jpg"]
    kept[2].parent.mkdir(parents=True)
    opened(tmp_path, Squares(1), 3 * BYTES)
    os.utime(tmp_path / "squares-1/00/000001", (1000, 1000))
    for path in (*old, *kept):
        path.write_bytes(bytes(BYTES // 5))
    opened(tmp_path, Squares(2), 3 * BYTES)
    assert all(path.exists() for path in old)  # there is room
    opened(tmp_path, Squares(3), 3 * BYTES)
    assert files(tmp_path / "squares-1") == {"00/000001", "00/000002", "00/000003"}
    assert not any(path.exists() for path in old)
    opened(tmp_path, Squares(4), 3 * BYTES)
    assert files(tmp_path / "squares-1") == {"00/000002", "00/000003", "00/000004"}
    assert all(path.exists() for path in kept)


def test_partial_files_are_removed_when_nobody_writes_them_any_more(tmp_path):
    opened(tmp_path, Squares(1))
    for name, age in (("new", 3600), ("old", 25 * 3600)):
        path = tmp_path / "squares-1/00" / f"00000{name == 'new':d}.0a1b2c3d.partial"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    opened(tmp_path, Squares(2))
    assert files(tmp_path / "squares-1") == {"00/000001", "00/000002", "00/000001.0a1b2c3d.partial"}


def test_no_room_is_one_line_and_removes_nothing(tmp_path):
    opened(tmp_path, Squares(9), 3 * BYTES)
    used = opened(tmp_path, Squares(1, 2), 3 * BYTES)
    for source in (Squares(3, 4), Squares(3, 4, 5, 6)):
        with pytest.raises(
            NoRoomError, match=r"^\S+ GB are needed and the cache .* \(cache_gb\), part of it .* in use$"
        ):
            opened(tmp_path, source, 3 * BYTES)
        assert source.computed == []
    assert used[np.arange(2)].tolist() == [[[n] * 3] * 2 for n in (1, 4)]
    assert files(tmp_path / "squares-1") == {"00/000001", "00/000002", "00/000009"}  # nor anything else in vain


def test_rows_that_are_there_are_marked_as_used_and_a_read_only_cache_serves_them(tmp_path, monkeypatch):
    opened(tmp_path, Squares(1))
    path = tmp_path / "squares-1/00/000001"
    os.utime(path, (1000, 1000))
    opened(tmp_path, Squares(1))
    assert time.time() - path.stat().st_mtime < 3600

    def refused(path):
        raise FileNotFoundError if not os.path.exists(path) else PermissionError

    monkeypatch.setattr(os, "utime", refused)
    source = Squares(1)
    assert opened(tmp_path, source)[np.array([0])].tolist() == [[[1] * 3] * 2]
    assert source.computed == []
