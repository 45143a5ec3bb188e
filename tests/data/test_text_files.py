import codecs

import pytest

from mlcil.core.errors import UserError
from mlcil.data.images import Level
from mlcil.data.text_files import read_text

TEXT = "path,labels\r\na.jpg,K\xfche\r\n"


@pytest.mark.parametrize(
    ("content", "guessed"),
    [
        (TEXT.encode(), None),
        (TEXT.encode("utf-8-sig"), None),
        (TEXT.encode("utf-16"), None),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), None),
        (TEXT.encode("utf-16-le"), "UTF-16"),
        (TEXT.encode("utf-16-be"), "UTF-16"),
        (TEXT.encode("cp1252"), "Windows-1252"),
    ],
)
def test_encodings(tmp_path, content, guessed):
    file = tmp_path / "t.csv"
    file.write_bytes(content)
    text, findings = read_text(file)
    assert text == TEXT
    assert [finding.level for finding in findings] == ([Level.NOTE] if guessed else [])
    assert guessed is None or f"it was read as {guessed}" in findings[0].text


def test_what_windows_1252_lacks(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\x81\xe9")
    text, findings = read_text(tmp_path / "t.csv")
    assert text == "\x81\xe9"
    assert "read as Latin-1" in findings[0].text


def test_western_signs_of_windows(tmp_path):
    (tmp_path / "t.csv").write_bytes("\u20ac \u201cx\u201d".encode("cp1252"))
    assert read_text(tmp_path / "t.csv")[0] == "\u20ac \u201cx\u201d"


@pytest.mark.parametrize("content", [b"PK\x03\x04\x00\x00", b"\xff\xfea", b"a\0b"])
def test_binary_data(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError, match="is not a text file"):
        read_text(tmp_path / "t.csv")


def test_an_empty_file(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"")
    assert read_text(tmp_path / "t.csv") == ("", ())
