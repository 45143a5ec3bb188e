import io

import pytest

from mlcil.core.errors import UserError
from mlcil.serving.photo_lists import list_photos


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """a.jpg, b.PNG, notes.txt, [1].jpg and in/c.jpg, in the current folder."""
    (tmp_path / "in").mkdir()
    for name in ("b.PNG", "a.jpg", "notes.txt", "[1].jpg", "in/c.jpg"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["b.PNG", "a.jpg"], ["b.PNG", "a.jpg"]),
        (["in"], ["in/c.jpg"]),
        (["."], ["[1].jpg", "a.jpg", "b.PNG", "in/c.jpg"]),
        (["*.jpg"], ["[1].jpg", "a.jpg"]),
        (["**/*.jpg"], ["[1].jpg", "a.jpg", "in/c.jpg"]),
        (["[1].jpg"], ["[1].jpg"]),  # a file of that name is no pattern
        (["[ab].*"], ["a.jpg", "b.PNG"]),
        (["a.jpg", "*.jpg", "a.jpg"], ["a.jpg", "[1].jpg"]),
        (["notes.txt"], ["notes.txt"]),  # whoever names a file means it
        (["-"], ["a.jpg", " in/c.jpg", "gone.jpg"]),
    ],
)
def test_what_is_meant(folder, given, found):
    listed = io.StringIO("a.jpg\r\n\n in/c.jpg\ngone.jpg\na.jpg\n")
    assert list_photos(given, listed) == found


def test_home_may_be_abbreviated(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert list_photos(["~/in"]) == [f"{folder}/in/c.jpg"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["gone.jpg"], "gone.jpg does not exist; expected photos, folders of photos, or patterns"),
        (["*.gif"], r"\*\.gif matches no image files"),
        (["-"], "no photos were named"),
        ([], "no photos were named"),
    ],
)
def test_what_means_nothing_is_one_line(folder, given, message):
    with pytest.raises(UserError, match=message) as caught:
        list_photos(given, io.StringIO("\n"))
    assert "\n" not in str(caught.value)
