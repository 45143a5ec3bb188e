"""The journal: whatever was answered is there after a crash, and undo works across restarts."""

import os
import resource
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.core.errors import UserError
from mlcil.teaching.book import Book
from mlcil.teaching.journal import Journal


def deed(number):
    return {"do": "mark", "label": f"label {number}\n<b>\u202e", "yes": [str(number)]}


def labels(journal):
    return [entry["label"] for entry in journal.done]


@given(deeds=st.lists(st.sampled_from(["mark", "undo", "redo"]), max_size=30))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_journal_that_is_opened_again_goes_on_where_it_was(tmp_path_factory, deeds):
    file = tmp_path_factory.mktemp("journal") / "marks.log"
    kept, done, undone = Journal(file), [], []
    for number, one in enumerate(deeds):
        if one == "mark":
            kept.add(deed(number))
            done, undone = [*done, deed(number)["label"]], []
        elif one == "undo":
            assert (kept.undo() is None) == (not done)
            undone = [*undone, *done[-1:]]
            done = done[:-1]
        else:
            assert (kept.redo() is None) == (not undone)
            done = [*done, *undone[-1:]]
            undone = undone[:-1]
        again = Journal(file)
        assert labels(again) == labels(kept) == done
        assert again.sequence == kept.sequence


def test_whatever_length_a_crash_leaves_everything_answered_before_is_there(tmp_path):
    file = tmp_path / "marks.log"
    journal, ends = Journal(file), [0]
    for number in range(4):
        journal.add(deed(number))
        ends.append(file.stat().st_size)
    data = file.read_bytes()
    for length in range(len(data) + 1):
        file.write_bytes(data[:length])
        cut = Journal(file)
        assert len(cut.done) == sum(end - 1 <= length for end in ends) - 1  # also without the end of its line
        cut.add(deed(9))
        assert labels(Journal(file)) == [*labels(cut)]


def test_a_damaged_line_is_named_and_not_guessed(tmp_path):
    file = tmp_path / "marks.log"
    journal = Journal(file)
    for number in range(3):
        journal.add(deed(number))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1].replace(b"yes", b"yEs") + lines[2])
    with pytest.raises(UserError, match="line 2 of .* is damaged"):
        Journal(file)
    sound = b"".join(lines)
    file.write_bytes(sound[:-1] + b"\x0b")  # not a line that was cut short
    with pytest.raises(UserError, match="line 3 of .* is damaged"):
        Journal(file)
    assert len(file.read_bytes()) == len(sound)


def test_what_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "marks.log")
    journal.add(deed(0))

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device; nothing was changed"):
            journal.add(deed(1))
    assert len(journal.done) == 1
    journal.add(deed(2))
    assert labels(Journal(journal.path)) == labels(journal) == [deed(0)["label"], deed(2)["label"]]


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"do":"undo"}', b"[" * 100_000, b"9" * 5000])
def test_an_entry_that_makes_no_sense_is_named(tmp_path, text):
    (file := tmp_path / "marks.log").write_bytes(b"%08x %s\n" % (zlib.crc32(text), text))
    with pytest.raises(UserError, match="marks.log"):
        Book((), {}, Journal(file).done)


@pytest.mark.parametrize("entry", [{"do": "delete", "label": "x"}, {"do": "init__"}, {"do": "mark", "label": []}])
def test_a_deed_that_cannot_be_done_is_named(entry):
    with pytest.raises(UserError, match="an entry that makes no sense"):
        Book(("a",), {}, [entry])


def test_half_a_line_that_a_full_disk_took_is_taken_away(tmp_path):
    journal = Journal(tmp_path / "marks.log")
    journal.add(deed(0))
    size, limits = journal.path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        for _ in range(2):
            with pytest.raises(UserError, match="nothing was changed"):
                journal.add(deed(1))
            assert journal.path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.add(deed(2))
    assert labels(Journal(journal.path)) == labels(journal) == [deed(0)["label"], deed(2)["label"]]


def test_a_last_line_that_an_editor_did_not_end_counts(tmp_path):
    journal = Journal(tmp_path / "marks.log")
    journal.add(deed(0))
    journal.path.write_bytes(journal.path.read_bytes()[:-1])
    journal = Journal(journal.path)
    journal.add(deed(1))
    assert labels(Journal(journal.path)) == [deed(0)["label"], deed(1)["label"]]
