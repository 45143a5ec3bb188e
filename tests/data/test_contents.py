"""What is in image files, and an index that spares reading those that did not change."""

import os
import sqlite3
import time
from hashlib import blake2b
from pathlib import Path

import pytest
from PIL import Image

from mlcil.data import contents as module
from mlcil.data.contents import Contents


@pytest.fixture
def read(monkeypatch):
    """The paths read so far."""
    paths, original = [], module.read_content
    monkeypatch.setattr(module, "read_content", lambda path: paths.append(path) or original(path))
    return paths


@pytest.fixture
def photos(tmp_path) -> list[str]:
    """Ten photos that are older than a moment."""
    paths = [str(tmp_path / f"{number}.png") for number in range(10)]
    for number, path in enumerate(paths):
        Image.new("RGB", (3 + number, 2), (number, 0, 0)).save(path)
        os.utime(path, (1000, 1000))
    return paths


def test_facts_of_good_and_broken_files(tmp_path, broken_files):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg")
    content = (tmp_path / "a.jpg").read_bytes()
    (facts,) = Contents().look([str(tmp_path / "a.jpg")])
    assert facts == (blake2b(content, digest_size=16).digest(), None, 30, 20, "JPEG", len(content))
    found = Contents().look([str(path) for path in broken_files])
    assert [one.problem for one in found] == list(broken_files.values())
    assert len({one.digest for one in found}) == 5


def test_progress_and_order(tmp_path, photos):
    calls: list[tuple[int, int]] = []
    wanted = [photos[3], photos[0], photos[3]]
    found = Contents(workers=3, on_progress=lambda *at: calls.append(at)).look(wanted)
    assert [one.width for one in found] == [6, 3, 6]
    assert calls == [(2, 2)]  # each file is read once
    assert Contents(tmp_path / "index").look([]) == []


def test_an_unchanged_file_is_not_read_again(tmp_path, photos, read, monkeypatch):
    contents = Contents(tmp_path / "cache/files.sqlite")
    first = contents.look(photos)
    assert first == Contents().look(photos)
    read.clear()
    assert contents.look(photos) == first
    assert read == []
    assert contents.look(photos[::-1]) == first[::-1]
    monkeypatch.chdir(tmp_path)
    assert contents.look([os.path.relpath(path) for path in photos]) == first
    assert read == []


@pytest.mark.parametrize("change", ["content", "same size", "time", "replaced", "removed"])
def test_a_changed_file_is_read_again(tmp_path, photos, read, change):
    contents, path = Contents(tmp_path / "files.sqlite"), Path(photos[4])
    contents.look(photos)
    read.clear()
    content = path.read_bytes()
    if change == "content":
        path.write_bytes(content + b"more")
        os.utime(path, (1000, 1000))
    elif change == "same size":  # in place, and with the time it had
        path.write_bytes(content[:-1] + b"x")
        touched = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == touched:  # a file system's clock has ticks
            os.utime(path, (1000, 1000))
    elif change == "time":
        os.utime(path, (1000, 1001))
    else:
        path.rename(tmp_path / "before")
    if change == "replaced":
        path.write_bytes(content)
        os.utime(path, (1000, 1000))
    assert contents.look(photos) == Contents().look(photos)
    assert read[0] == str(path)
    assert read.count(str(path)) == 2  # by each of them
    assert len(read) == 11


def test_a_file_changed_just_before_it_was_read_is_not_trusted(tmp_path, photos, read):
    contents = Contents(tmp_path / "files.sqlite")
    for age, times in ((1, 2), (60, 1), (-3600, 1)):  # the clock of a camera may be ahead
        os.utime(photos[0], (time.time() - age,) * 2)
        read.clear()
        contents.look(photos[:1])
        contents.look(photos[:1])
        assert len(read) == times


def test_a_clock_that_was_set_back_lets_no_change_pass_unnoticed(tmp_path, photos, read, monkeypatch):
    contents, now = Contents(tmp_path / "files.sqlite"), time.time_ns()
    contents.look(photos)
    monkeypatch.setattr(time, "time_ns", lambda: now - 10**9 * 3600)
    Path(photos[0]).write_bytes(Path(photos[1]).read_bytes())
    os.utime(photos[0], (1000, 1000))
    assert contents.look(photos[:1])[0].digest == contents.look(photos[1:2])[0].digest


def test_problems_and_limits_are_not_remembered(tmp_path, photos, read, monkeypatch):
    index = tmp_path / "files.sqlite"
    whole = Contents(index).look(photos)

    def limited(path, content, megapixels):
        header = original(path, content)
        if header.width * header.height > megapixels * 1e6:
            raise module.BadImage(path, "too large")
        return header

    original = module.inspect
    monkeypatch.setattr(module, "inspect", limited)
    read.clear()
    small = Contents(index, megapixels=20e-6).look(photos)
    assert [one.problem for one in small] == [None] * 8 + ["too large"] * 2
    assert read == photos[8:]
    assert Contents(index).look(photos) == whole
    (tmp_path / "text.png").write_text("text")
    os.utime(tmp_path / "text.png", (1000, 1000))
    for _ in range(2):
        read.clear()
        assert Contents(index).look([str(tmp_path / "text.png")])[0].problem == "not an image"
        assert len(read) == 1


@pytest.mark.parametrize("trouble", ["not a database", "damaged", "other columns", "folder", "no folder", "locked"])
def test_trouble_with_the_index_means_reading(tmp_path, photos, read, monkeypatch, trouble):
    monkeypatch.setattr("mlcil.data.file_index.WAIT", 0.01)
    index, expected = tmp_path / "files.sqlite", Contents().look(photos)
    other = None
    if trouble == "not a database":
        index.write_bytes(b"no database at all, " * 100)
    elif trouble == "damaged":
        Contents(index).look(photos)
        content = index.read_bytes()
        index.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    elif trouble == "other columns":
        with sqlite3.connect(index) as connection:
            connection.execute("CREATE TABLE files_3 (path TEXT)")
        connection.close()
    elif trouble == "folder":
        index.mkdir()
    elif trouble == "no folder":
        (tmp_path / "file").write_text("")
        index = tmp_path / "file" / "files.sqlite"
    else:
        other = sqlite3.connect(index, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
    read.clear()
    assert Contents(index).look(photos) == expected
    assert read == photos
    if other is not None:
        other.close()
    read.clear()
    assert Contents(index).look(photos) == expected
    assert read == ([] if trouble in {"not a database", "damaged"} else photos)  # replaced and filled


def test_a_flipped_byte_in_the_index_gives_no_image_another_content(tmp_path, photos, read):
    index = tmp_path / "files.sqlite"
    expected = Contents(index).look(photos)
    sound = index.read_bytes()
    for at in [sound.index(one.digest) + place for one in expected for place in (-1, 3, 16)]:
        index.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        assert Contents(index).look(photos) == expected
    # SQLite quotes the damaged description of the table, which is not even text.
    index.write_bytes(sound.replace(b"WITHOUT ROWID", b"WITHOUT RO\xf7ID"))
    assert Contents(index).look(photos) == expected
    read.clear()
    assert Contents(index).look(photos) == expected
    assert not read  # it was made again


def test_a_name_that_is_not_text_is_remembered(tmp_path, read):
    path = os.fsdecode(bytes(tmp_path) + b"/\xff.png")
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    os.utime(tmp_path / "a.png", (1000, 1000))
    os.rename(tmp_path / "a.png", path)
    first = Contents(tmp_path / "files.sqlite").look([path, path + "lost"])
    read.clear()
    assert Contents(tmp_path / "files.sqlite").look([path]) == first[:1]
    assert read == []
    assert first[1].problem == "missing"
