"""Which file the tags of a photo go to, and what is refused."""

import errno
import tempfile
from pathlib import Path

import pytest

from mlcil.core.errors import UserError
from mlcil.data.xmp import BadSidecar, read_keywords
from mlcil.data.xmp_writing import remove_tags, write_tags

from .test_xmp import packet


@pytest.fixture
def photo(tmp_path) -> Path:
    path = tmp_path / "photo.jpg"
    path.touch()
    return path


def test_a_new_sidecar_with_adobes_name(photo, tmp_path):
    assert write_tags(photo, ["dog"], adobe_names=True)
    assert read_keywords(tmp_path / "photo.xmp") == {"dog"}
    assert write_tags(photo, ["cat"])  # it is there, so it is used
    assert remove_tags(photo)
    assert list(tmp_path.iterdir()) == [photo]


def test_which_sidecar(photo, tmp_path):
    full, short = tmp_path / "Photo.JPG.xmp", tmp_path / "PHOTO.XMP"
    short.write_text(packet(["short"]), encoding="utf-8")
    write_tags(photo, ["cat"])
    assert read_keywords(short) == {"short", "cat"}
    full.write_text(packet(["full"]), encoding="utf-8")
    assert write_tags(photo, ["cat"])
    assert (read_keywords(full), read_keywords(short)) == ({"full", "cat"}, {"short"})
    assert sorted(tmp_path.iterdir()) == sorted([photo, full, short])


@pytest.mark.parametrize("adobe_names", [False, True])
def test_a_sidecar_of_two_images_is_left_alone(photo, tmp_path, adobe_names):
    other, shared = tmp_path / "Photo.PNG", tmp_path / "photo.xmp"
    other.touch()
    shared.write_text(packet(["both"]), encoding="utf-8")
    write_tags(photo, ["cat"], adobe_names=adobe_names)
    write_tags(other, ["dog"], adobe_names=adobe_names)
    assert read_keywords(shared) == {"both"}
    assert read_keywords(tmp_path / "photo.jpg.xmp") == {"cat"}
    assert read_keywords(tmp_path / "Photo.PNG.xmp") == {"dog"}


def test_a_sidecar_of_a_raw_file_and_its_image_is_used(photo, tmp_path):
    (tmp_path / "photo.CR2").touch()
    write_tags(photo, ["cat"], adobe_names=True)
    assert read_keywords(tmp_path / "photo.xmp") == {"cat"}


def test_tags_from_before_the_second_image_can_be_taken_away(photo, tmp_path):
    write_tags(photo, ["cat"], adobe_names=True)
    (tmp_path / "photo.png").touch()
    assert remove_tags(photo)
    assert not (tmp_path / "photo.xmp").exists()


@pytest.mark.parametrize("tag", ["", " ", "a\nb", "a\x00", "\x1b[0m", "a\x85b", "\ud800", "\uffff"])
def test_tags_that_no_sidecar_can_hold(photo, tmp_path, tag):
    with pytest.raises(UserError, match="^got tag .*, expected text in one line without control characters$"):
        write_tags(photo, ["cat", tag])
    assert list(tmp_path.iterdir()) == [photo]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "declares a document type"),
        ('<?xml version="1.0"?><!DOCTYPE a><a/>'.encode("utf-16"), "declares a document type"),
        (packet(["cat"]).encode()[:300], "not XML"),
        (b"", "not XML"),
        (b"\xef\xbb\xbf<?xml version='1.0' encoding='latin-1'?><a/>", "not XML|no rdf:RDF"),
        (b"<html/>", "holds no rdf:RDF"),
        (packet().replace("<rdf:Bag></rdf:Bag></dc:subject>", "cat</dc:subject>").encode(), "dc:subject is not a list"),
        (
            packet().replace("xmlns:dc", "d:TagsList='a' xmlns:d='http://www.digikam.org/ns/1.0/' xmlns:dc").encode(),
            "digiKam:TagsList is not a list",
        ),
    ],
)
def test_sidecars_that_cannot_be_added_to(photo, tmp_path, content, reason):
    file = tmp_path / "photo.xmp"
    file.write_bytes(content)
    with pytest.raises(BadSidecar, match=reason):
        write_tags(photo, ["cat"])
    if "not a list" not in reason:
        with pytest.raises(BadSidecar, match=reason):
            remove_tags(photo)
    assert file.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [photo, file]


def test_an_unreadable_sidecar(photo, tmp_path):
    (tmp_path / "photo.xmp").mkdir()
    with pytest.raises(BadSidecar, match="unreadable"):
        write_tags(photo, ["cat"])


def test_nothing_is_written_if_the_second_sidecar_is_damaged(photo, tmp_path):
    (tmp_path / "photo.jpg.xmp").write_text(packet(), encoding="utf-8")
    (tmp_path / "photo.xmp").write_text("damaged")
    with pytest.raises(BadSidecar):
        write_tags(photo, ["cat"])
    assert (tmp_path / "photo.jpg.xmp").read_text(encoding="utf-8") == packet()


def test_permissions_and_links_stay(photo, tmp_path):
    target = tmp_path / "elsewhere" / "file"
    target.parent.mkdir()
    target.write_text(packet(), encoding="utf-8")
    target.chmod(0o600)
    link = tmp_path / "photo.xmp"
    link.symlink_to(target)
    write_tags(photo, ["cat"])
    assert link.is_symlink()
    assert read_keywords(target) == {"cat"}
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_read_only_folder(photo, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    write_tags(photo, ["cat"])
    content = (tmp_path / "photo.jpg.xmp").read_bytes()
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match=r"^cannot write .*photo.jpg.xmp: Read-only file system"):
        write_tags(photo, ["dog"])
    with pytest.raises(UserError, match=r"^cannot remove .*photo.jpg.xmp: Read-only file system$"):
        remove_tags(photo)
    assert (tmp_path / "photo.jpg.xmp").read_bytes() == content


def test_no_such_photo(tmp_path):
    for tags in ([], ["cat"]):
        with pytest.raises(UserError, match="^photo .*gone.jpg does not exist or is not a file$"):
            write_tags(tmp_path / "gone" / "gone.jpg", tags)
