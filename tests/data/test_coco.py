import json
import tarfile

import pytest

from mlcil.core.errors import UserError
from mlcil.data.coco import read_coco
from mlcil.data.protocol import make_protocol

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "traffic light"}, {"id": 90, "name": "cat"}]


def part(files, instances, categories=CATEGORIES):
    """An annotation file; `instances` are (image id, category id, is crowd)."""
    return {
        "images": [{"id": number, "file_name": name} for number, name in files.items()],
        "annotations": [
            {
                "image_id": image,
                "category_id": category,
                "iscrowd": crowd,
                "segmentation": [[0, 1]],
                "bbox": [0],
            }
            for image, category, crowd in instances
        ],
        "categories": categories,
    }


TRAIN = part({11: "b.jpg", 5: "a.jpg", 8: "c.jpg"}, [(11, 7, 0), (11, 7, 0), (11, 3, 0), (5, 90, 1), (5, 7, 0)])
TEST = part({1: "z.jpg"}, [(1, 90, 0)])


def make(root, year="2014", train=TRAIN, test=TEST):
    (root / "annotations").mkdir(exist_ok=True)
    for name, content in ((f"train{year}", train), (f"val{year}", test)):
        (root / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))
        (root / name).mkdir(exist_ok=True)
    return root


def test_labels_classes_and_paths(tmp_path):
    data = read_coco(make(tmp_path))
    assert data.train.classes == data.test.classes == ("cat", "dog", "traffic light")
    assert data.train.paths == tuple(str(tmp_path / "train2014" / name) for name in ("a.jpg", "b.jpg", "c.jpg"))
    # The crowd of cats on a.jpg does not count; c.jpg has nothing at all.
    assert data.train.labels.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert data.test.labels.tolist() == [[1, 0, 0]]
    assert (data.train.split, data.test.split) == ("train", "test")


def test_2014_comes_first_and_year_chooses(tmp_path):
    make(tmp_path, "2014")
    make(tmp_path, "2017")
    assert "train2014" in read_coco(tmp_path).train.paths[0]
    assert "train2017" in read_coco(tmp_path, year="2017").train.paths[0]


def test_2017_is_found_alone(tmp_path):
    assert "val2017" in read_coco(make(tmp_path, "2017")).test.paths[0]


@pytest.mark.parametrize("where", ["root", "annotations", "absolute"])
def test_other_annotation_files(tmp_path, where):
    make(tmp_path)
    folder = tmp_path if where == "root" else tmp_path / "annotations"
    (folder / "instances_mine.json").write_text(json.dumps(TEST))
    (tmp_path / "mine").mkdir()
    name = str(folder / "instances_mine.json") if where == "absolute" else "instances_mine.json"
    assert read_coco(tmp_path, train=name).train.paths == (str(tmp_path / "mine" / "z.jpg"),)


def test_images_may_lie_elsewhere(tmp_path):
    images = tmp_path / "photographs"
    images.mkdir()
    for name in ("a.jpg", "z.jpg"):
        (images / name).touch()
    data = read_coco(make(tmp_path), images=images)
    assert data.train.paths[0] == str(images / "a.jpg")


def test_images_folder_may_hold_the_usual_folders(tmp_path):
    images = tmp_path / "photographs"
    (images / "train2014").mkdir(parents=True)
    (images / "val2014").mkdir()
    assert read_coco(make(tmp_path), images=images).test.paths == (str(images / "val2014" / "z.jpg"),)


def test_missing_things_are_named(tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        read_coco(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no COCO annotation file .*instances_train2014.json or .*2017.json"):
        read_coco(tmp_path)
    make(tmp_path)
    with pytest.raises(UserError, match=r"no COCO annotation file .*instances_train2017.json;"):
        read_coco(tmp_path, year="2017")
    with pytest.raises(UserError, match=r"nothing.json"):
        read_coco(tmp_path, test="nothing.json")
    with pytest.raises(UserError, match="gone does not exist"):
        read_coco(tmp_path, images=tmp_path / "gone")
    (tmp_path / "train2014").rmdir()
    with pytest.raises(UserError, match=r"no image folder for instances_train2014.json"):
        read_coco(tmp_path)


def test_unknown_year(tmp_path):
    with pytest.raises(UserError, match="unknown COCO year '2015'"):
        read_coco(tmp_path, year="2015")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": []}, "missing entry 'categories'"),
        ([1, 2], "not a COCO annotation file"),
        (TRAIN | {"images": []}, "has no images"),
        (TRAIN | {"categories": []}, "has no categories"),
        (TRAIN | {"images": [{"id": 1}]}, "missing entry 'file_name'"),
        (TRAIN | {"annotations": [{"image_id": 5}]}, "missing entry 'category_id'"),
        (TRAIN | {"annotations": [3]}, "not a COCO annotation file"),
        (TRAIN | {"annotations": [{"image_id": 5, "category_id": 1}]}, "category_id 1, which"),
        (TRAIN | {"annotations": [{"image_id": 4, "category_id": 7}]}, "image_id 4, which"),
        (TRAIN | {"categories": [*CATEGORIES, {"id": 1, "name": "owl"}]}, "only one has: owl"),
        (TRAIN | {"categories": [*CATEGORIES, {"id": 1, "name": "dog"}]}, "stand twice: dog"),
    ],
)
def test_what_is_not_coco(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read_coco(make(tmp_path, train=content))
    assert "\n" not in str(caught.value)


def test_what_is_not_json(tmp_path):
    make(tmp_path)
    (tmp_path / "annotations" / "instances_val2014.json").write_text("{")
    with pytest.raises(UserError, match=r"instances_val2014.json is not valid JSON"):
        read_coco(tmp_path)


@pytest.fixture
def real_slice(shared, tmp_path):
    archive = shared / "data" / "coco2014-subset.tar"
    if not archive.is_file():
        pytest.skip("needs shared/data/coco2014-subset.tar, a slice of MS-COCO 2014")
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.name.endswith(".json")]
        tar.extractall(tmp_path, members=members, filter="data")
    root = tmp_path / "coco2014-subset"
    (root / "train2014").mkdir()
    (root / "val2014").mkdir()
    return read_coco(root)


def test_counts_of_the_real_slice(real_slice):
    assert (len(real_slice.train), len(real_slice.test), len(real_slice.train.classes)) == (6000, 2000, 80)
    expected = {
        "B0-C20": ([3071, 2912, 4218, 2744], [979, 1482, 1881, 2000]),
        "B0-C10": (
            [1403, 2109, 2088, 1338, 3739, 1397, 1338, 1586],
            [442, 979, 1296, 1482, 1823, 1881, 1910, 2000],
        ),
        "B40-C10": ([4511, 3739, 1397, 1338, 1586], [1482, 1823, 1881, 1910, 2000]),
        "B40-C5": (
            [4511, 765, 3557, 745, 748, 699, 745, 840, 789],
            [1482, 1538, 1823, 1848, 1881, 1901, 1910, 1970, 2000],
        ),
    }
    for text, (train, test) in expected.items():
        protocol = make_protocol(real_slice, text)
        sessions = protocol.sessions()
        assert [len(session.indices) for session in sessions] == train
        assert [len(protocol.test_rows(session.stop)) for session in sessions] == test


def test_an_infinite_number_is_named(tmp_path):
    (tmp_path / "annotations").mkdir()
    text = '{"categories": [{"id": Infinity, "name": "a"}], "images": [], "annotations": []}'
    for part in ("train", "val"):
        (tmp_path / "annotations" / f"instances_{part}2014.json").write_text(text)
    with pytest.raises(UserError, match="is not a COCO annotation file: bad or missing entry"):
        read_coco(tmp_path)
