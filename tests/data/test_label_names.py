import pytest

from mlcil.data.images import Level
from mlcil.data.label_names import find_joined, find_look_alikes, find_values


def texts(findings):
    assert all(finding.level == Level.LOOK for finding in findings)
    return [finding.text for finding in findings]


def test_two_labels_in_one():
    assert texts(find_joined({"cat,dog": 16, "cat": 3}, ";")) == [
        "16 images have the label 'cat,dog'; labels are separated by ';', so this is one label; "
        "add separator=comma to the data set's name if it is two"
    ]
    assert texts(find_joined({"a|b": 1, "c|d": 1, "a;b": 5}, ";")) == [
        "1 image has the label 'a|b', and another label contains '|'; labels are separated by ';', so this is one "
        "label; add separator=pipe to the data set's name if it is two"
    ]
    assert "separator=semicolon" in texts(find_joined({"cat;dog": 1}, ","))[0]


def test_blanks_and_slashes_are_part_of_ordinary_names():
    assert find_joined({"traffic light": 9, "traffic": 2, "car/truck": 3, "car": 1}, ";") == []
    assert "separator=blank" in texts(find_joined({"cat dog": 9, "cat": 2, "dog": 3}, ";"))[0]
    assert "separator=slash" in texts(find_joined({"cat/dog": 9, "cat": 2, "dog": 3}, ";"))[0]


def test_spellings():
    counts = {"Dog": 7, "dog": 120, "fire-truck": 1, "fire truck": 1, "Fire_Truck": 1, "cafe\u0301": 2, "caf\xe9": 3}
    assert texts(find_look_alikes(counts)) == [
        "labels that differ only by case, blanks, hyphens or underscores: 'Dog' (7 images) and 'dog' (120 images); "
        "'Fire_Truck' (1 image) and 'fire truck' (1 image) and 'fire-truck' (1 image); "
        "'cafe\u0301' (2 images) and 'caf\xe9' (3 images); use one spelling if they are one class"
    ]


@pytest.mark.parametrize(
    ("rare", "common"),
    [("biycle", "bicycle"), ("bicyycle", "bicycle"), ("bicicle", "bicycle"), ("dogs", "dog"), ("ogre", "gre")],
)
def test_one_letter(rare, common):
    (text,) = texts(find_look_alikes({rare: 2, common: 10}))
    assert f"by one letter: '{rare}' (2 images) and '{common}' (10 images)" in text
    assert find_look_alikes({rare: 3, common: 10}) == []  # too many to be a slip


@pytest.mark.parametrize("names", [("class1", "class2"), ("a", "b"), ("ab", "ba"), ("abcd", "bcde"), ("cat", "dog")])
def test_names_that_differ(names):
    assert find_look_alikes(dict(zip(names, (1, 100), strict=True))) == []


def test_long_lists_are_cut():
    counts = {name: 1 for number in range(7) for name in (f"Name{number}", f"name{number}")}
    (text,) = texts(find_look_alikes(counts))
    assert "'name4' (1 image); 2 more; use" in text


def test_labels_that_may_be_from_another_column():
    assert texts(find_values({"cat": 9, "2024-03-01 00:00:00": 1, "True": 2, "1,5": 1})) == [
        "labels that look like values: '2024-03-01 00:00:00' (1 image); 'True' (2 images); '1,5' (1 image); "
        "are they from another column?"
    ]
    assert "'0' (3 images); '1' (4 images)" in texts(find_values({"0": 3, "1": 4}))[0]
    assert find_values({str(digit): 5 for digit in range(10)}) == []  # digits may be what it is about
    assert find_values({"cat": 9, "yes-man": 1, "route 66": 2}) == []


def test_a_label_that_means_no_label_is_named():
    (finding,) = find_look_alikes({"cat": 5, "None": 80})
    assert finding.level == Level.LOOK
    assert finding.text.startswith("'None' (80 images) is taken as a class; leave the label cell empty")
