import json

import pytest

from mlcil.core.errors import UserError
from mlcil.data.contents import Contents
from mlcil.data.folder import read_folder
from mlcil.data.images import Level

from .fake_contents import FakeContents
from .test_xmp import packet


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Writes files, given as `name: text` or as names alone; they are below the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(*names, **texts):
        for name, text in {**dict.fromkeys(names, ""), **texts}.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def rows(found):
    names = {1: "", 0: "not ", -1: "perhaps "}
    shown = [
        " ".join(f"{names[value]}{name}" for name, value in zip(found.classes, line, strict=True) if value)
        for line in found.labels.tolist()
    ]
    return dict(zip(found.paths, shown, strict=True))


def test_a_folder_per_class(make, tmp_path):
    make("p/dog/2.JPG", "p/dog/10.heic", "p/cat/2020/1.png", "p/cat/notes.txt", "p/cat/._1.png", "p/.trash/3.jpg")
    found = read_folder((tmp_path / "p").relative_to(tmp_path))
    assert rows(found) == {"p/cat/2020/1.png": "cat", "p/dog/10.heic": "dog", "p/dog/2.JPG": "dog"}
    assert found.paths == tuple(sorted(found.paths))
    assert found.labels.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert found.parts == ("", "", "")
    assert (found.source, found.findings, found.arrivals.tolist()) == ("p", (), [0, 0, 0])


def test_loose_images_are_left_out(make):
    root = make("a.jpg", "b.jpg", "cat/1.jpg")
    found = read_folder(root)
    assert found.paths == (str(root / "cat/1.jpg"),)
    text = f"2 images are in no class folder of {root} and left out, first {root / 'a.jpg'}"
    assert found.findings == ((Level.LOOK, text),)


def test_parts_on_top(make):
    root = make("train/cat/1.jpg", "Test/cat/2.jpg", "val/dog/3.jpg", "train/loose.jpg")
    found = read_folder(root)
    assert found.classes == ("cat", "dog")
    assert {path.rpartition("/")[2]: part for path, part in zip(found.paths, found.parts, strict=True)} == {
        "1.jpg": "train",
        "2.jpg": "test",
        "3.jpg": "test",
    }
    assert "1 image is in no class folder" in found.findings[0].text


def test_train_may_be_a_class(make):
    found = read_folder(make("train/1.jpg", "bus/2.jpg"))
    assert found.classes == ("bus", "train")
    assert found.parts == ("", "")


def test_negatives(make):
    root = make("train/cat/1.jpg", "train/none/2.jpg", "test/cat/3.jpg")
    found = read_folder(root, negatives="none")
    assert found.classes == ("cat",)
    assert sorted(found.labels[:, 0].tolist()) == [0, 1, 1]
    with pytest.raises(UserError, match="folder of negatives in .* 'nnone', did you mean 'none'"):
        read_folder(root, negatives="nnone")
    with pytest.raises(UserError, match="no class folders besides the negatives 'cat'"):
        read_folder(root / "test", negatives="cat")


def test_a_photo_in_two_class_folders_has_both_labels(make):
    root = make("cat/1.jpg", "dog/1.jpg", "dog/2.jpg", "none/9.jpg")
    same = {str(root / "cat/1.jpg"): "x", str(root / "dog/1.jpg"): "x", str(root / "none/9.jpg"): "x"}
    found = read_folder(root, negatives="none", test_fraction=0.5)
    whole = found.resolve(FakeContents(content=same | {str(root / "dog/2.jpg"): "y0"}))
    images = dict(zip(whole.train.paths + whole.test.paths, [*whole.train.labels, *whole.test.labels], strict=True))
    assert images[str(root / "cat/1.jpg")].tolist() == [1, 1]
    assert len(images) == 2
    assert "both without and with labels" in whole.findings[1].text


def test_links_in_circles(make):
    root = make("cat/1.jpg")
    (root / "cat" / "again").symlink_to(root)
    (root / "dog").symlink_to(root / "cat")
    found = read_folder(root)
    assert found.classes == ("cat", "dog")
    assert found.paths == (str(root / "cat/1.jpg"), str(root / "dog/1.jpg"))


def test_sidecars(make):
    root = make("x/c.jpg", "train/e.jpg")
    make(
        **{
            "x/a.jpg": "",
            "x/a.jpg.xmp": packet(["dog"], ["Animals|Cat"]),
            "x/b.JPG": "",
            "x/b.xmp": packet(["dog"]),
            "x/d.jpg": "",
            "x/d.xmp": "<broken",
        }
    )
    found = read_folder(root)
    assert found.classes == ("Cat", "dog")
    labels = dict(zip((path[-5] for path in found.paths), found.labels.tolist(), strict=True))
    assert labels == {"a": [1, 1], "b": [0, 1], "c": [-1, -1], "d": [-1, -1], "e": [-1, -1]}
    unlabelled, damaged = found.findings
    text = f"3 images have no keywords in {root}, first {root / 'train/e.jpg'}; taken as not looked at"
    assert unlabelled == (Level.NOTE, text)
    assert damaged.level == Level.LOOK
    assert damaged.text.startswith(f"1 sidecar is damaged and left out, first {root / 'x/d.xmp'}: not XML")
    assert read_folder(root, labels="folders").classes == ("train", "x")


def test_sidecars_without_keywords(make):
    root = make(**{"a.jpg": "", "a.xmp": packet()})
    with pytest.raises(UserError, match="has a keyword in an XMP sidecar"):
        read_folder(root)
    with pytest.raises(UserError, match="negatives= names a folder of photos, but the labels of .* come from xmp"):
        read_folder(root, negatives="x")


def test_patterns(make, tmp_path):
    make("p/y/cat/1.jpg", "p/y/cat/2.png", "p/dog/3.jpg", "p/.x/4.jpg", "q/5.jpg")
    pattern = (tmp_path / "p/**/*.jpg").relative_to(tmp_path)
    assert rows(read_folder(pattern)) == {"p/dog/3.jpg": "dog", "p/y/cat/1.jpg": "cat"}
    assert rows(read_folder((tmp_path / "q/*.jpg").relative_to(tmp_path))) == {"q/5.jpg": "q"}
    make(**{"p/dog/3.xmp": packet(["owl"])})
    found = read_folder(pattern)
    assert found.classes == ("owl",)
    assert found.labels.tolist() == [[1], [-1]]


def test_the_ending_of_a_pattern_matches_in_any_case(make, tmp_path):
    make("p/cat/1.JPG", "p/cat/2.jpg", "p/cat/3.png")
    pattern = (tmp_path / "p/**/*.jpg").relative_to(tmp_path)
    assert rows(read_folder(pattern)) == {"p/cat/1.JPG": "cat", "p/cat/2.jpg": "cat"}


def test_a_pattern_with_parts(make, tmp_path):
    make("p/train/cat/1.jpg", "p/test/dog/2.jpg")
    found = read_folder(tmp_path / "p/**/*.jpg")
    assert (found.classes, found.parts) == (("cat", "dog"), ("test", "train"))


def test_metadata_of_the_hub(make):
    root = make("train/a.jpg", "train/b.jpg", "test/c.jpg", "test/extra.jpg")
    lines = [{"file_name": "a.jpg", "tags": ["cat", "dog"]}, {"file_name": "b.jpg", "tags": []}]
    make(
        **{
            "train/metadata.jsonl": "\n".join(map(json.dumps, lines)),
            "test/metadata.csv": "file_name,labels\nc.jpg,owl\n",
        }
    )
    found = read_folder(root)
    assert found.classes == ("cat", "dog", "owl")
    assert dict(zip(found.paths, found.labels.tolist(), strict=True)) == {
        str(root / "train/a.jpg"): [1, 1, 0],
        str(root / "train/b.jpg"): [0, 0, 0],
        str(root / "test/c.jpg"): [0, 0, 1],
    }
    assert dict(zip(found.places, found.parts, strict=True)) == {
        "train/metadata.jsonl, row 1": "train",
        "train/metadata.jsonl, row 2": "train",
        "test/metadata.csv, row 2": "test",
    }
    text = f"1 image is in {root} but not in its metadata and left out, first {root / 'test/extra.jpg'}"
    assert found.findings == ((Level.LOOK, text),)


def test_one_metadata_table_on_top(make):
    root = make("train/a.jpg", "validation/b.jpg", "c.jpg")
    make(**{"metadata.csv": "file_name,cat,dog\ntrain/a.jpg,1,\nvalidation/b.jpg,0,1\nc.jpg,1,1\n"})
    found = read_folder(root)
    assert found.labels.tolist() == [[1, -1], [0, 1], [1, 1]]
    assert found.parts == ("train", "test", "")
    assert (found.findings, found.lists, found.places[0]) == ((), False, "row 2")


def test_the_separator_of_metadata(make):
    root = make("a.jpg", **{"metadata.csv": 'file_name,label\na.jpg,"cat,dog"\n'})
    assert read_folder(root, separator="comma").classes == ("cat", "dog")


def test_parquet_metadata(make):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root = make("a.jpg")
    parquet.write_table(pyarrow.table({"file_name": ["a.jpg"], "labels": [["cat"]]}), root / "metadata.parquet")
    assert read_folder(root).classes == ("cat",)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("gone", {}, "folder .*gone does not exist"),
        ("empty", {}, "empty has no image files"),
        ("empty/*.jpg", {}, r"empty/\*.jpg matches no image files"),
        ("flat", {}, "flat has no class folders with images, expected such as .*cat/1.jpg"),
        ("flat", {"labels": "metadata"}, "flat has no metadata.csv, metadata.jsonl, metadata.parquet"),
        ("flat/*.jpg", {"labels": "metadata"}, "flat has no metadata.csv"),
        ("flat", {"labels": "xmp"}, "no photo in .*flat has a keyword"),
        ("flat", {"labels": "folder"}, "labels of folder 'folder', did you mean 'folders'"),
    ],
)
def test_mistakes(make, tmp_path, path, options, message):
    make("empty/notes.txt", "flat/a.jpg")
    with pytest.raises(UserError, match=message) as caught:
        read_folder(tmp_path / path, **options)
    assert "\n" not in str(caught.value)


def test_real_files(make):
    from PIL import Image

    root = make("train/cat/x.txt", "test/dog/x.txt")
    Image.new("RGB", (4, 4), "red").save(root / "train/cat/1.png")
    Image.new("RGB", (4, 4), "blue").save(root / "test/dog/2.png")
    data = read_folder(root).resolve(Contents())
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([[1, 0]], [[0, 1]])
