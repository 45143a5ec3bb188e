import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.data.xmp import read_keywords
from mlcil.data.xmp_writing import remove_tags, write_tags

from .sidecars import DARKTABLE, DIGIKAM, LIGHTROOM, LISTS, RDF, TAGS, Sidecar, sidecars
from .test_xmp import packet

TAG_LISTS = st.lists(TAGS, max_size=4)
DESCRIPTION = f"{{{RDF}}}Description"
EXAMPLES = settings(deadline=None, max_examples=40)  # each waits for the disk several times
ADDED = "{urn:mlcil:xmp:1.0/}added"


@pytest.fixture
def photo(tmp_path) -> Path:
    path = tmp_path / "photo.jpg"
    path.touch()
    return path


def after(content: bytes, *steps: Callable[[Path], bool]) -> bytes:
    """What becomes of a sidecar in some steps."""
    with tempfile.TemporaryDirectory() as folder:
        photo, file = Path(folder, "a.jpg"), Path(folder, "a.jpg.xmp")
        photo.touch()
        file.write_bytes(content)
        for step in steps:
            before = file.read_bytes()
            assert step(photo) == (file.read_bytes() != before)
        return file.read_bytes()


def writing(tags: list[str]) -> Callable[[Path], bool]:
    return lambda photo: write_tags(photo, tags)


def keywords(content: bytes) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.xmp").write_bytes(content)
        return read_keywords(Path(folder, "a.xmp"))


def canonical(content: bytes) -> str:
    return ElementTree.canonicalize(content, with_comments=True)


def lists(content: bytes) -> dict[str, list[list[str]]]:
    """The texts of each of the three lists at the top level, and of what we note, per list found."""
    root = ElementTree.fromstring(content)
    rdf = next(root.iter(f"{{{RDF}}}RDF"))
    names = {name: f"{{{namespace}}}{local}" for name, (namespace, local) in LISTS.items()} | {"added": ADDED}
    return {
        name: [
            [item.text or "" for item in child[0]]
            for description in rdf
            for child in description
            if child.tag == qualified
        ]
        for name, qualified in names.items()
    }


@EXAMPLES
@given(sidecars(), TAG_LISTS.filter(bool))
def test_tags_come_to_the_keywords_that_were_there(sidecar: Sidecar, tags):
    written = after(sidecar.content, writing(tags))
    names = {tag.strip() for tag in tags}
    assert keywords(written) == keywords(sidecar.content) | names
    old, new = lists(sidecar.content), lists(written)
    subjects = [text.strip() for items in old["dc"] for text in items]
    expected = {
        "dc": sorted(names - set(subjects)),
        "lr": sorted({"mlcil|" + name.replace("|", "/") for name in names}),
        "digiKam": sorted({"mlcil/" + name.replace("/", "|") for name in names}),
        "added": sorted(names - set(subjects)),
    }
    if any(old["lr"]) and not old["digiKam"]:  # a new list would hide the owner's hierarchy from Immich
        assert not new["digiKam"]
        del expected["digiKam"]
    for name, texts in expected.items():
        (found,) = new[name]  # a second list of the same name would be an error
        (kept,) = old[name] or [[]]
        assert found[: len(kept)] == kept
        assert sorted(found[len(kept) :]) == texts


@EXAMPLES
@given(sidecars(), TAG_LISTS)
def test_all_else_stays(sidecar: Sidecar, tags):
    written = after(sidecar.content, writing(tags)).decode(sidecar.encoding)
    pieces = re.compile(r"<[^>]*>|[^<>]+")
    old = [piece.replace("/>", ">") for piece in pieces.findall(sidecar.content.decode(sidecar.encoding))]
    new = iter(piece.replace("/>", ">") for piece in pieces.findall(written))
    left = [piece for piece in old if piece not in new]  # `in` advances: the pieces must come in the same order
    assert left == []


@EXAMPLES
@given(sidecars(), TAG_LISTS)
def test_tags_taken_away_leave_the_sidecar_as_it_was(sidecar: Sidecar, tags):
    left = after(sidecar.content, writing(tags), remove_tags)
    assert canonical(left) == canonical(sidecar.content)
    text = sidecar.content.decode(sidecar.encoding)
    if not re.search(r"<\w+:(Bag|Seq|Alt|RDF [^<>]*)/>", text):  # <a/> comes back as <a></a>
        assert left == sidecar.content


@EXAMPLES
@given(sidecars(), TAG_LISTS, TAG_LISTS)
def test_only_the_last_tags_count(sidecar: Sidecar, first, last):
    once = after(sidecar.content, writing(last))
    assert after(once, writing(last[::-1] + last)) == once
    again = after(sidecar.content, writing(first), writing(last))
    assert again == once if last else canonical(again) == canonical(once)


@pytest.mark.parametrize("text", [LIGHTROOM, DARKTABLE, DIGIKAM])
def test_photo_tools(photo, text):
    file = photo.with_suffix(".xmp")
    file.write_text(text, encoding="utf-8")
    before = read_keywords(file)
    assert write_tags(photo, ["cat", "owl"])
    assert read_keywords(file) == before | {"cat", "owl"}
    lines = iter(file.read_text(encoding="utf-8").splitlines())
    assert [line for line in text.replace("<rdf:Bag/>", "<rdf:Bag>").splitlines() if line not in lines] == []
    assert write_tags(photo, ["dog"])
    assert read_keywords(file) == before | {"dog"}
    assert remove_tags(photo)
    assert file.read_text(encoding="utf-8") == text.replace("<rdf:Bag/>", "<rdf:Bag></rdf:Bag>")
    assert not remove_tags(photo)


def test_the_words_of_lightroom(photo):
    file = photo.with_suffix(".xmp")
    file.write_text(LIGHTROOM, encoding="utf-8")
    write_tags(photo, ["cat", "owl"])
    found = lists(file.read_bytes())
    assert found["dc"] == [["Animals", "cat", "owl"]]
    assert found["lr"] == [["Animals|cat", "mlcil|cat", "mlcil|owl"]]
    assert found["digiKam"] == []  # it would hide the hierarchy above from Immich
    assert found["added"] == [["owl"]]  # the user's own cat shall stay
    assert "     <rdf:li>cat</rdf:li>\n     <rdf:li>owl</rdf:li>\n    </rdf:Bag>" in file.read_text(encoding="utf-8")


def test_a_new_sidecar(photo, tmp_path):
    assert not write_tags(photo, [])
    assert write_tags(photo, [" dog ", "R&D <\"'>", "dog"])
    file = tmp_path / "photo.jpg.xmp"
    assert read_keywords(file) == {"dog", "R&D <\"'>"}
    assert file.stat().st_mode & 0o777 == 0o644
    (paths,) = ElementTree.parse(file).iter("{http://www.digikam.org/ns/1.0/}TagsList")
    assert paths[0].tag == f"{{{RDF}}}Seq"
    inode = file.stat().st_ino
    assert not write_tags(photo, ["R&D <\"'>", "dog"])
    assert file.stat().st_ino == inode  # not written again
    assert write_tags(photo, [])
    assert list(tmp_path.iterdir()) == [photo]


def test_a_sidecar_of_ours_that_somebody_wrote_into_is_kept(photo, tmp_path):
    write_tags(photo, ["cat"])
    file = tmp_path / "photo.jpg.xmp"
    file.write_text(file.read_text().replace("<rdf:li>cat</rdf:li>", "<rdf:li>cat</rdf:li><rdf:li>own</rdf:li>", 1))
    assert remove_tags(photo)
    assert read_keywords(file) == {"own"}
    assert lists(file.read_bytes()) == {"dc": [["own"]], "lr": [], "digiKam": [], "added": []}


def test_a_value_that_another_tool_put_beside_our_lists_stays(photo, tmp_path):
    write_tags(photo, ["cat"])
    file = tmp_path / "photo.jpg.xmp"
    rating = 'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="5"'
    file.write_text(file.read_text().replace("<rdf:Description ", f"<rdf:Description {rating} "))
    assert remove_tags(photo)
    (description,) = ElementTree.parse(file).iter(DESCRIPTION)
    assert description.attrib == {f"{{{RDF}}}about": "", "{http://ns.adobe.com/xap/1.0/}Rating": "5"}
    assert len(description) == 0


def test_what_another_tool_merged_and_ordered(photo, tmp_path):
    """A tool that writes all into one description, as attributes where it can, and appends a keyword."""
    file = tmp_path / "photo.xmp"
    text = packet(["own"], ["A|own"]).replace("Description", 'Description rdf:about="" rdf:ID="1"', 1)
    file.write_text(text, encoding="utf-8")
    write_tags(photo, ["cat", "dog"])
    merged = file.read_text(encoding="utf-8")
    start, end = merged.rindex("<rdf:Description"), merged.rindex("</rdf:Description>")
    inner = merged[merged.index(">", start) + 1 : end]
    declared = ' xmlns:digiKam="http://www.digikam.org/ns/1.0/" xmlns:mlcil="urn:mlcil:xmp:1.0/"'
    merged = merged[:start] + merged[end + len("</rdf:Description>") :]
    merged = merged.replace("</rdf:Description>", inner + "</rdf:Description>").replace(' rdf:ID="1"', declared)
    merged = merged.replace("<rdf:li>dog</rdf:li></rdf:Bag>", "<rdf:li>dog</rdf:li><rdf:li>late</rdf:li></rdf:Bag>", 1)
    file.write_text(merged, encoding="utf-8")
    assert lists(file.read_bytes())["dc"] == [["own", "cat", "dog", "late"]]
    assert not write_tags(photo, ["dog", "cat"])
    assert write_tags(photo, ["dog"])
    assert lists(file.read_bytes())["dc"] == [["own", "late", "dog"]]
    assert remove_tags(photo)
    assert lists(file.read_bytes()) == {"dc": [["own", "late"]], "lr": [["A|own"]], "digiKam": [], "added": []}


def test_a_subject_that_somebody_wrote_again_is_left_once(photo, tmp_path):
    file = tmp_path / "photo.xmp"
    file.write_text(packet(["own"]), encoding="utf-8")
    write_tags(photo, ["cat"])
    file.write_text(file.read_text(encoding="utf-8").replace("<rdf:li>own", "<rdf:li>cat</rdf:li><rdf:li>own"))
    remove_tags(photo)
    assert sorted(lists(file.read_bytes())["dc"][0]) == ["cat", "own"]


def test_the_same_subject_of_the_photo(tmp_path, photo):
    """Adobe's library refuses descriptions about different things."""
    file = tmp_path / "photo.xmp"
    file.write_text(
        packet().replace("<rdf:Description", '<rdf:Description rdf:about="uuid:&quot;1"', 1), encoding="utf-8"
    )
    write_tags(photo, ["cat"])
    abouts = {element.get(f"{{{RDF}}}about") for element in ElementTree.parse(file).iter(DESCRIPTION)}
    assert abouts == {'uuid:"1'}
