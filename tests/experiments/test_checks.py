import pytest

from mlcil.core.errors import UserError
from mlcil.experiments import checks
from mlcil.experiments.checks import check_classes, check_grid, is_read_quickly
from mlcil.training.config import RunSettings

TABLE = "path,labels,split\na.png,red,train\nb.png,green,train\nc.png,blue,test\n"


@pytest.fixture
def table(tmp_path):
    (tmp_path / "labels.csv").write_text(TABLE)
    return f"table:{tmp_path / 'labels.csv'}"


def test_the_list_is_handed_on(table):
    said = []
    found = check_classes(RunSettings(data=table, protocol="red|blue"), said.append)
    assert set(found.classes) == {"red", "green", "blue"}
    assert said == [f"reading {table}"]


def test_a_grid_reads_each_list_once(table, monkeypatch):
    calls, read = [], checks.read
    monkeypatch.setattr(checks, "read", lambda *given: calls.append(given) or read(*given))
    runs = {
        str(seed): RunSettings(data=table, protocol=protocol, seed=seed)
        for seed, protocol in enumerate(["red|blue", "blue|red", "red|blue"])
    }
    check_grid(runs, True, lambda text: None)
    assert calls == [(table, None)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"protocol": "red|pink"}, "run second: unknown class in the protocol: 'pink'"),
        ({"weights": "nowhere.pth"}, "run second: weight file nowhere.pth does not exist"),
        ({"data": "table:nowhere.csv"}, "run second: table nowhere.csv does not exist"),
        ({"order": "red"}, "run second: "),
    ],
)
def test_the_run_with_a_mistake_is_named(table, changes, says):
    good = {"data": table, "protocol": "red|blue"}
    with pytest.raises(UserError) as error:
        check_grid({"first": RunSettings(**good), "second": RunSettings(**good | changes)}, True, lambda text: None)
    assert str(error.value).startswith(says)


def test_only_a_grid_on_this_machine_needs_its_hardware(table, monkeypatch):
    def refuse(accelerator, devices):
        raise UserError("no hardware")

    monkeypatch.setattr(checks, "check_hardware", refuse)
    runs = {"only": RunSettings(data=table, protocol="red|blue")}
    check_grid(runs, False, lambda text: None)
    with pytest.raises(UserError, match="run only: no hardware"):
        check_grid(runs, True, lambda text: None)


def test_which_lists_are_read_before_torch_is_imported(tmp_path, table):
    assert is_read_quickly(table)
    assert is_read_quickly(f"{table},labels=tags")
    assert is_read_quickly("digits:train=4")
    assert not is_read_quickly(f"coco:{tmp_path},year=2017")
    with pytest.raises(UserError, match="did you mean 'coco'"):
        is_read_quickly("cooc:x")


def test_the_classes_of_digits_are_known_before_any_is_drawn(monkeypatch):
    monkeypatch.setattr(checks, "read", lambda *given: pytest.fail("read"))
    with pytest.raises(UserError, match="unknown class in the protocol: 'ten'"):
        check_classes(RunSettings(data="digits", protocol="0,ten|2"), lambda text: None)
