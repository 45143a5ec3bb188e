import pytest

from mlcil.core.words import counted, listed


@pytest.mark.parametrize(("number", "text"), [(0, "0 images are"), (1, "1 image is"), (2, "2 images are")])
def test_numbers_agree_with_their_words(number, text):
    assert counted(number, "image is", "images are") == text
    assert counted(number, "run") == ("1 run" if number == 1 else f"{number} runs")


def test_long_lists_are_cut():
    assert listed(["a", "b"]) == "a, b"
    assert listed("abcdefgh") == "a, b, c, d, e, f and 2 more"
