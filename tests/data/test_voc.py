import tarfile

import pytest

from mlcil.core.errors import UserError
from mlcil.data.protocol import make_protocol
from mlcil.data.voc import CLASSES, read_voc


def make_lists(folder, trainval, test):
    """Lists of a small VOC folder; `trainval` and `test` map a class to the lines of its list."""
    main = folder / "ImageSets" / "Main"
    main.mkdir(parents=True)
    for split, lists in (("trainval", trainval), ("test", test)):
        for name, lines in lists.items():
            (main / f"{name}_{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


TRAINVAL = {"dog": ["000002 -1", "000001  1"], "cat": ["000001  0", "000002  1"]}
TEST = {"dog": ["000009  1"], "cat": ["000009 -1"]}


def instance(name, difficult=0):
    part = "<part><name>head</name></part>"
    return f"<object><name>{name}</name><difficult>{difficult}</difficult>{part}</object>"


def make_xml(folder, **objects):
    """A VOC folder without class lists: image a1 for training and b1 for testing."""
    main = folder / "ImageSets" / "Main"
    main.mkdir(parents=True)
    (folder / "Annotations").mkdir()
    for split, name in (("trainval", "a1"), ("test", "b1")):
        (main / f"{split}.txt").write_text(f"{name}\n")
        inside = "".join(objects.get(name, []))
        (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{inside}</annotation>")
    return folder


@pytest.mark.parametrize("place", ["VOCdevkit/VOC2007", "VOC2007", "."])
def test_root_may_be_any_of_three_folders(tmp_path, place):
    folder = make_lists(tmp_path / place, TRAINVAL, TEST)
    data = read_voc(tmp_path)
    assert data.train.classes == ("cat", "dog")
    assert data.train.paths == tuple(str(folder / "JPEGImages" / f"00000{number}.jpg") for number in (1, 2))
    assert data.train.labels.tolist() == [[0, 1], [1, 0]]
    assert data.test.labels.tolist() == [[0, 1]]


def test_year_chooses_the_folder(tmp_path):
    make_lists(tmp_path / "VOC2007", TRAINVAL, TEST)
    make_lists(tmp_path / "VOC2012", {"cow": ["1 1"]}, {"cow": ["2 1"]})
    assert read_voc(tmp_path, year="2012").train.classes == ("cow",)


def test_difficult_in_lists(tmp_path):
    make_lists(tmp_path, TRAINVAL, TEST)
    assert read_voc(tmp_path, difficult="unknown").train.labels.tolist() == [[-1, 1], [1, 0]]
    with pytest.raises(UserError, match="difficult 'maybe'. Allowed: absent, unknown"):
        read_voc(tmp_path, difficult="maybe")


@pytest.mark.parametrize(("difficult", "value"), [("absent", 0), ("unknown", -1)])
def test_xml_where_there_are_no_lists(tmp_path, difficult, value):
    objects = [instance("dog", 1), instance("cat", 1), instance("cat", 0), instance("cat", 1)]
    make_xml(tmp_path, a1=objects, b1=[instance("tvmonitor")])
    data = read_voc(tmp_path, difficult=difficult)
    assert data.train.classes == CLASSES == tuple(sorted(CLASSES))
    labels = dict(zip(CLASSES, data.train.labels[0].tolist(), strict=True))
    assert labels == dict.fromkeys(CLASSES, 0) | {"cat": 1, "dog": value}
    assert data.test.labels[0].sum() == data.test.labels[0, -1] == 1


def test_xml_stands_in_for_missing_test_lists(tmp_path):
    make_xml(tmp_path, b1=[instance("dog")])
    for name in ("cat", "dog"):
        (tmp_path / "ImageSets" / "Main" / f"{name}_trainval.txt").write_text("a1 1\n")
    assert read_voc(tmp_path).test.labels.tolist() == [[0, 1]]


def test_wrong_folders_and_lists(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        read_voc(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no ImageSets/Main in"):
        read_voc(tmp_path)
    make_lists(tmp_path, TRAINVAL, {})
    with pytest.raises(UserError, match=r"test.txt does not exist"):
        read_voc(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["000001 2", "000002 1"],
            r"cat_trainval.txt, line 1: got '000001 2', expected an image id and 1, 0 or -1",
        ),
        (["000001 1"], "must list the same images"),
        ([""], "lists no image"),
    ],
)
def test_wrong_lines(tmp_path, lines, message):
    make_lists(tmp_path, TRAINVAL | {"cat": lines}, TEST)
    with pytest.raises(UserError, match=message):
        read_voc(tmp_path)


def test_wrong_xml(tmp_path):
    make_xml(tmp_path, a1=[instance("unicorn")])
    with pytest.raises(UserError, match=r"a1.xml: 'unicorn'"):
        read_voc(tmp_path)
    (tmp_path / "Annotations" / "a1.xml").write_text("<annotation>")
    with pytest.raises(UserError, match="is not valid XML"):
        read_voc(tmp_path)
    (tmp_path / "Annotations" / "a1.xml").unlink()
    with pytest.raises(UserError, match=r"a1.xml does not exist"):
        read_voc(tmp_path)
    (tmp_path / "ImageSets" / "Main" / "trainval.txt").write_text("\n")
    with pytest.raises(UserError, match="lists no image"):
        read_voc(tmp_path)


@pytest.fixture
def real_lists(shared, tmp_path):
    archive = shared / "data" / "voc2007_ImageSets.tar.gz"
    if not archive.is_file():
        pytest.skip("needs shared/data/voc2007_ImageSets.tar.gz, the image lists of PASCAL VOC 2007")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


def test_counts_of_the_real_lists(real_lists):
    data = read_voc(real_lists)
    assert data.train.classes == CLASSES
    assert (len(data.train), len(data.test)) == (5011, 4952)
    expected = {
        "B0-C4": ([985, 1409, 1091, 2322, 805], [892, 2235, 3186, 4497, 4952]),
        "B10-C2": ([2868, 620, 532, 2180, 325, 517], [2729, 3186, 3634, 4497, 4652, 4952]),
    }
    for text, (train, test) in expected.items():
        protocol = make_protocol(data, text)
        sessions = protocol.sessions()
        assert [len(session.indices) for session in sessions] == train
        assert [len(protocol.test_rows(session.stop)) for session in sessions] == test


def test_difficult_labels_of_the_real_lists(real_lists):
    data = read_voc(real_lists, difficult="unknown")
    assert [(part.labels == -1).sum() for part in data] == [607, 619]
