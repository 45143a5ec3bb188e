import tarfile

import pytest

from mlcil.core.errors import UserError
from mlcil.data.protocol import make_protocol
from mlcil.data.voc import read_voc


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


def test_wrong_folders_and_lists(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        read_voc(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no ImageSets/Main in"):
        read_voc(tmp_path)
    folder = make_lists(tmp_path, {}, {})
    with pytest.raises(UserError, match=r"Main has no class lists such as dog_trainval.txt"):
        read_voc(tmp_path)
    (folder / "ImageSets" / "Main" / "dog_trainval.txt").write_text("1 1")
    with pytest.raises(UserError, match=r"dog_test.txt does not exist"):
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
    assert data.train.classes[:3] == ("aeroplane", "bicycle", "bird")
    assert len(data.train.classes) == 20
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
    assert [(part.labels == -1).sum() for part in data[:2]] == [607, 619]


def test_a_list_that_is_not_text_is_named(tmp_path):
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "dog_trainval.txt").write_bytes(b"a\xe4 2\n")
    with pytest.raises(UserError, match="dog_trainval.txt, line 1"):
        read_voc(tmp_path)
