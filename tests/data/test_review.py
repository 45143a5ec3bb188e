import numpy as np

from mlcil.data.contents import FileFacts
from mlcil.data.images import DataSet, LabelledImages, Level
from mlcil.data.protocol import make_protocol
from mlcil.data.review import count_labels, review_files, review_protocol


def data_of(train, test, classes):
    def part(labels, split):
        matrix = np.array(labels, np.int8)
        return LabelledImages(tuple(f"{split}/{row}.jpg" for row in range(len(matrix))), matrix, classes, split)

    return DataSet(part(train, "train"), part(test, "test"))


def findings(train, test, text, classes=("cat", "dog", "owl"), has_negatives=True):
    data = data_of(train, test, classes)
    protocol = make_protocol(data, text, None, has_negatives)
    return review_protocol(data, protocol, protocol.sessions())


def test_labels_are_counted():
    counts = count_labels(np.array([[1, 0], [1, -1], [0, -1]], np.int8))
    assert [column.tolist() for column in counts] == [[2, 0], [1, 1], [0, 2]]


PLENTY = [*[[1, 0, 0]] * 10, *[[0, 1, 0]] * 10, *[[0, 0, 0]] * 3]


def test_sound_data_have_no_findings():
    assert findings(PLENTY, PLENTY, "cat,dog", ("cat", "dog", "owl"))[:1] == [
        (Level.LOOK, "left out by the protocol: 'owl' (0 images)")
    ]
    two = [row[:2] for row in PLENTY]
    assert findings(two, two, "cat|dog", ("cat", "dog")) == []


def test_classes_that_the_protocol_leaves_out_are_named_with_counts():
    classes = ("Dog", "cat", "cat,dog", "dog")
    train = [*[[0, 1, 0, 1]] * 10, *[[0, 0, 1, 0]] * 9, *[[1, 0, 0, 0]] * 4, [0, 0, 0, 0], [0, 1, 0, 0]]
    test = [*[[0, 0, 1, 0]] * 7, *[[1, 0, 0, 0]] * 3, [0, 1, 0, 1], [0, 0, 0, 0]]
    found = findings(train, test, "cat|dog", classes)
    assert (Level.LOOK, "left out by the protocol: 'cat,dog' (16 images), 'Dog' (7)") in found
    (note,) = [text for level, text in found if level == Level.NOTE]
    assert note.startswith("in no session: 13 images for training")


def test_a_class_with_only_positives_is_named():
    (finding,) = findings([[1], [1]] * 5, [[1], [0]], "cat", ("cat",))
    assert finding.level == Level.FIX_FIRST
    assert "session 1 has no image without cat and teaches nothing else" in finding.text


def test_few_images_are_named():
    few = [*[[1, 0]] * 3, *[[0, 1]] * 10, [0, 0]]
    (finding,) = findings(few, few, "cat|dog", ("cat", "dog"))
    assert finding == (Level.LOOK, "session 1 has fewer than 10 training images of cat (3)")


def test_what_cannot_be_measured_is_named():
    found = findings([row[:2] for row in PLENTY], [[1, 0], [1, 0]], "cat|dog", ("cat", "dog"))
    texts = [text for _, text in found]
    assert "every test image after session 1 shows cat, so its AP would always be 100 and is left out" in texts
    assert "no test image that session 2 is measured on shows dog" in texts


def test_files_that_cannot_be_read_come_with_their_reason():
    good = FileFacts(b"a", None, 640, 480, "JPEG", 9)
    facts = [good, good._replace(problem="truncated"), good._replace(problem="truncated"), good._replace(width=20)]
    found = review_files(["a", "b", "c", "d"], facts)
    assert found == [
        (Level.FIX_FIRST, "2 images cannot be read (truncated): b, c"),
        (Level.LOOK, "smaller than 64 pixels: 1 image, d"),
    ]
