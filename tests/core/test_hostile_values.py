"""Values that would spoil a message, or take all memory before there is one."""

import pytest

from mlcil.core.errors import UserError, shown, unknown_name
from mlcil.core.files import read_json
from mlcil.core.remote import RemoteError
from mlcil.data.decoding import BadImage
from mlcil.data.protocol import session_classes
from mlcil.data.xmp import BadSidecar
from mlcil.training.config import make_config, read_config

NAME = "a\r\nb\x1b[31m\u202e" + "x" * 100_000
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = LAUGHS.replace("[x,x,x,x,x,x,x,x,x]", "{x: 1}").replace("[*", "{<<: [*").replace("]\n", "]}\n")


@pytest.mark.parametrize(
    "error",
    [
        UserError(NAME),
        unknown_name("label", NAME, ["cat"]),
        BadImage(NAME, NAME),
        RemoteError(NAME, NAME),
        BadSidecar(NAME),
    ],
)
def test_an_error_is_one_line_of_bounded_length(error):
    assert str(error).isprintable()
    assert len(str(error)) < 5000


def test_a_message_keeps_ordinary_names():
    assert str(UserError("cannot read Grüße-猫.png")) == "cannot read Grüße-猫.png"


def test_a_value_that_python_refuses_to_write_is_described():
    assert shown(16**9000) == "a number of 36001 bits"
    with pytest.raises(UserError, match="seed: got a number of 36001 bits, expected 0 to"):
        make_config({"seed": 16**9000})


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"a": ' * 50_000, b"\xff"])
def test_json_that_python_cannot_hold_is_named(tmp_path, text):
    (file := tmp_path / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match="a.json is not valid JSON"):
        read_json(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "with its aliases it has more than 50000 values"),
        (MERGES, "with its aliases it has more than 50000 values"),
        ("seed: &a [*a]", "a value contains itself"),
        ("seed: " + "[" * 5000, "it is nested deeper than 20 levels"),
        ("seed: 1" + " " * 600_000, "more than 200000 bytes"),
        ("seed: 1" + ":00" * 3000, "it has a number of 17721 bits"),  # sixty to the power of 3,000
    ],
)
def test_yaml_that_grows_without_end_is_refused(tmp_path, text, words):
    (file := tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_config(file)


def test_a_grid_may_say_with_an_alias_what_it_said_before(tmp_path):
    (file := tmp_path / "grid.yaml").write_text("settings: &all {lr: 1}\nruns: {a: {<<: *all, seed: 2}, b: *all}\n")
    assert read_config(file)["runs"] == {"a": {"lr": 1, "seed": 2}, "b": {"lr": 1}}


@pytest.mark.parametrize("changes", [{"buffer": "9" * 5000}, {"buffer": f"total:{'9' * 5000}"}, {"lr": "9" * 5000}])
def test_a_setting_of_thousands_of_digits_is_refused(changes):
    with pytest.raises(UserError, match=next(iter(changes))):
        make_config({}, changes)


@pytest.mark.parametrize(("protocol", "order"), [(f"B0-C{'9' * 5000}", None), ("B0-C1", f"shuffle:{'9' * 5000}")])
def test_a_protocol_of_thousands_of_digits_is_refused(protocol, order):
    with pytest.raises(UserError, match="expected"):
        session_classes(["cat", "dog"], protocol, order)
