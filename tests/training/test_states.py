"""States on disk: what has not changed is written once, what only learning needs stays with the newest sessions."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mlcil import Tagger
from mlcil.core.errors import UserError
from mlcil.training import folder as folder_module
from mlcil.training.config import make_config
from mlcil.training.folder import WHOLE
from mlcil.training.run import run
from mlcil.training.states import LEARNING, load_session, load_state, save_state

from ..tiny import final_state, outcome, settings

VALUES = settings("analytic", protocol="0,1|2|3|4|5", options={"expansion": 8, "window": 0, "remember": "fingerprints"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("states") / "run"
    run(make_config(VALUES), out)
    return out


def state(folder: Path, session: int) -> Path:
    return folder / f"session-{session:02d}" / "state.safetensors"


def size_of(tensors: dict[str, Any]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors.values())


def test_a_frozen_backbone_is_on_disk_once_and_the_ledger_twice(whole: Path) -> None:
    backbone = size_of({name: one for name, one in final_state(whole).items() if "backbone" in name})
    sizes = [state(whole, number).stat().st_size for number in range(1, 6)]
    assert sizes[0] > backbone
    assert all(size < sizes[0] - 0.9 * backbone for size in sizes[1:])
    kept = [number for number in range(1, 6) if state(whole, number).with_name(LEARNING).exists()]
    assert kept == [4, 5]
    assert len(kept) == WHOLE


def test_every_session_has_the_tensors_that_it_ended_with(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    shutil.move(whole, tmp_path / "away")  # what a copy refers to is in the copy
    try:
        for number in range(1, 6):
            short = VALUES | {"protocol": "|".join(str(VALUES["protocol"]).split("|")[:number])}
            run(make_config(short), tmp_path / f"{number}")
            expected, found = (
                load_session(state(tmp_path / f"{number}", number))[0],
                load_session(state(copy, number))[0],
            )
            ledger = {name for name in expected if name.startswith("method.ledger.")}
            assert found.keys() == (expected.keys() if number > 3 else expected.keys() - ledger)
            assert all(torch.equal(found[name], expected[name]) for name in found)
    finally:
        shutil.move(tmp_path / "away", whole)


@pytest.mark.parametrize("at", [f"session-{number:02d}/{name}" for number in (1, 3) for name in (LEARNING, "state")])
def test_a_kill_between_any_two_writes_changes_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    real = folder_module.save_state

    def save_and_die(path: Path, *content: Any) -> None:
        real(path, *content)
        if path.as_posix().removesuffix(".safetensors").endswith(at.removesuffix(".safetensors")):
            raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "save_state", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run(make_config(VALUES), tmp_path / "run")
    monkeypatch.setattr(folder_module, "save_state", real)
    run(make_config(VALUES), tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def assert_same(one: Path, other: Path) -> None:
    assert outcome(one) == outcome(other)
    states = final_state(one), final_state(other)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    files = [sorted(path.relative_to(folder) for path in folder.glob("session-*/*")) for folder in (one, other)]
    assert files[0] == files[1]


def test_a_damaged_last_state_is_deleted_to_go_on_from_the_one_before(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    state(copy, 5).write_bytes(b"damaged")
    with pytest.raises(UserError, match="delete it to go on"):
        run(make_config(VALUES), copy)
    state(copy, 5).unlink()
    run(make_config(VALUES), copy)
    assert_same(copy, whole)


def test_a_session_cannot_go_on_without_what_learning_needs(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    state(copy, 5).unlink()
    state(copy, 4).with_name(LEARNING).unlink()
    with pytest.raises(UserError, match=rf"cannot go on from .*session-04.*{LEARNING} beside it is missing") as error:
        run(make_config(VALUES), copy)
    assert "\n" not in str(error.value)


def test_an_earlier_session_is_a_slim_tagger(whole: Path) -> None:
    assert [Tagger.load(whole, session=number).slim for number in (1, 3, 4, 5)] == [True, True, False, False]
    early = Tagger.load(whole, session=2)
    assert early.classes == ("0", "1", "2")
    assert early.method.thresholds() is not None


def test_a_run_whose_states_hold_everything_goes_on(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    tensors, values = load_session(state(copy, 4))
    shutil.rmtree(copy / "session-05")
    state(copy, 4).with_name(LEARNING).unlink()
    save_state(state(copy, 4), tensors, values)
    assert not Tagger.load(copy, session=4).slim
    run(make_config(VALUES), copy)
    assert outcome(copy) == outcome(whole)
    assert all(torch.equal(one, final_state(whole)[name]) for name, one in final_state(copy).items())


def test_only_what_is_the_same_to_the_bit_and_in_memory_is_left_out(tmp_path: Path) -> None:
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    first = {
        "same": image,
        "zero": torch.zeros(2),
        "order": image,
        "type": torch.ones(2),
        "gone": image,
        "nan": image / 0,
    }
    second = first | {"zero": -torch.zeros(2), "order": image.contiguous(memory_format=torch.channels_last)}
    second = {name: one for name, one in second.items() if name != "gone"} | {"type": torch.ones(2).int()}
    paths = [state(tmp_path, number) for number in (1, 2, 3)]
    save_state(paths[0], first, {})
    save_state(paths[1], second, {"one": 1}, paths[0])
    save_state(
        paths[2], second, {"two": 2}, paths[1]
    )  # names the files that hold the tensors, not those that name them
    for path in paths[1:]:
        found, _ = load_state(path)
        assert {name: one.numpy().tobytes() for name, one in found.items()} == {
            name: one.numpy().tobytes() for name, one in second.items()
        }
        assert found["order"].stride() == second["order"].stride()
        assert (found["type"].dtype, load_state(path, with_tensors=False)[0]) == (torch.int32, {})
    sizes = [path.stat().st_size for path in paths]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_file_that_is_referred_to_and_missing_is_named(tmp_path: Path) -> None:
    save_state(state(tmp_path, 1), {"one": torch.ones(3)}, {})
    save_state(state(tmp_path, 2), {"one": torch.ones(3)}, {}, state(tmp_path, 1))
    state(tmp_path, 1).unlink()
    with pytest.raises(UserError, match=r"session-02.*takes tensors from .*session-01.state.safetensors") as error:
        load_state(state(tmp_path, 2))
    assert "\n" not in str(error.value)
