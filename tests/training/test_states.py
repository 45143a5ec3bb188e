"""States on disk: what has not changed is written once, what only learning needs stays with the newest sessions."""

import errno
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from mlcil import Tagger
from mlcil.core.checksums import DamagedFileError
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


@pytest.mark.parametrize("name", ["state", "learning", "progress"])
def test_a_damaged_newest_state_is_set_aside_and_learned_again(whole: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    file = state(copy, 5).with_name(f"{name}.safetensors")
    if name == "progress":  # of a session that was interrupted
        state(copy, 5).rename(file)
    file.write_bytes(flipped(file, file.stat().st_size // 2))
    console = Console(file=io.StringIO(), width=1000)
    run(make_config(VALUES), copy, console)
    (said,) = [line for line in console.file.getvalue().splitlines() if "is damaged" in line]
    aside = file.with_name(f"{file.name}.damaged")
    assert said.startswith(f"{file} is damaged: ")
    assert said.endswith(f"renamed to {aside.name}, and session 5 is learned again from its start")
    aside.unlink()
    state(copy, 5).with_name("state.safetensors.damaged").unlink(missing_ok=True)
    assert_same(copy, whole)


def test_damaged_and_missing_scores_are_computed_again(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    files = [state(copy, number).with_name("scores.safetensors") for number in (2, 5)]
    sound = [file.read_bytes() for file in files]
    files[0].write_bytes(flipped(files[0], len(sound[0]) - 3))
    files[1].unlink()
    run(make_config(VALUES), copy)
    assert [file.read_bytes() for file in files] == sound
    files[0].with_name("scores.safetensors.damaged").unlink()
    assert_same(copy, whole)


def test_damage_to_a_state_that_later_ones_need_is_named_and_left(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    state(copy, 1).write_bytes(flipped(state(copy, 1), state(copy, 1).stat().st_size // 2))
    files = sorted(copy.rglob("*"))
    with pytest.raises(
        UserError, match=r"session-01/state.safetensors is damaged: .*session-05.*or rename it and all later ones"
    ) as error:
        run(make_config(VALUES), copy)
    assert "\n" not in str(error.value)
    assert sorted(copy.rglob("*")) == files
    state(copy, 1).rename(copy / "away")
    with pytest.raises(UserError, match=r"has no state of session 1, but session-05 has one; put it back, or move"):
        run(make_config(VALUES), copy)  # which would overwrite the others
    for number in range(2, 6):
        shutil.rmtree(copy / f"session-{number:02d}")
    run(make_config(VALUES), copy)
    (copy / "away").unlink()
    assert_same(copy, whole)


def test_damage_to_the_header_of_a_state_that_no_later_one_needs_stops_nothing(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    shutil.rmtree(copy / "session-05")
    state(copy, 3).write_bytes(flipped(state(copy, 3), 200))
    damaged, console = state(copy, 3).read_bytes(), Console(file=io.StringIO(), width=1000)
    run(make_config(VALUES), copy, console)
    assert "session-03/state.safetensors is damaged: " in console.file.getvalue()
    assert "its result is taken from results.json" in console.file.getvalue()
    assert state(copy, 3).read_bytes() == damaged
    assert outcome(copy) == outcome(whole)


def test_logs_that_are_damaged_stop_nothing(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    shutil.rmtree(copy / "session-05")
    metrics = copy / "metrics.jsonl"
    odd = ['{"session": "one", "epoch": 1}', '{"ses', f'{{"session": {"9" * 5000}}}', '{"a": ' + "[" * 10**5, "[1]"]
    metrics.write_text("\n".join([*odd, metrics.read_text(), '{"session": 1}', "[1]\n"]))
    (copy / "environment.json").write_text('{"launc')
    run(make_config(VALUES), copy)
    assert outcome(copy) == outcome(whole)
    assert (copy / "environment.json.damaged").read_text() == '{"launc'


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("unable to mmap 9 bytes: Cannot allocate memory (12)"), r"unable to mmap .*"),  # torch's
    ],
)
def test_a_state_that_the_system_does_not_give_is_not_damaged(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, text: str
) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))

    def refuse(*given: Any, **options: Any) -> None:
        raise problem

    monkeypatch.setattr("safetensors.safe_open", refuse)
    with pytest.raises(UserError, match=rf"cannot read checkpoint .*session-05.*: {text}$"):
        run(make_config(VALUES), copy)
    assert state(copy, 5).exists()


def test_a_session_cannot_go_on_without_what_learning_needs(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    state(copy, 5).unlink()
    state(copy, 4).with_name(LEARNING).unlink()
    with pytest.raises(UserError, match=rf"cannot go on from .*session-04.*{LEARNING} beside it is missing") as error:
        run(make_config(VALUES), copy)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["method", "result"])
@pytest.mark.parametrize("session", [3, 5])
def test_a_state_that_says_less_than_it_has_to_is_named(whole: Path, tmp_path: Path, name: str, session: int) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    tensors, values = load_state(state(copy, session))
    save_state(state(copy, session), tensors, values | {name: None})
    if name == "result" or session == 5:  # of an earlier session nothing but the result is needed
        with pytest.raises(UserError, match=rf"session-0{session}.*does not fit the run's config.yaml: .*None"):
            run(make_config(VALUES), copy)
    else:
        run(make_config(VALUES), copy)
        assert outcome(copy) == outcome(whole)


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


def flipped(file: Path, at: int) -> bytes:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    return bytes(data)


def test_a_flipped_byte_of_a_state_is_noticed(tmp_path: Path) -> None:
    file, image = state(tmp_path, 1), torch.arange(6.0).reshape(1, 2, 3)
    tensors = {"image": image, "half": image.bfloat16(), "none": torch.empty(0, 2), "one": torch.tensor(True)}
    save_state(file, tensors, {"step": 1})
    assert torch.equal(load_state(file)[0]["half"], tensors["half"])
    sound = file.read_bytes()
    for at in range(0, len(sound), 7):
        file.write_bytes(flipped(file, at))
        with pytest.raises(DamagedFileError) as error:
            load_state(file)
        assert (error.value.file, "\n" in str(error.value)) == (file, False)
        file.write_bytes(sound)


def test_a_state_belongs_to_its_session_and_equal_states_are_equal_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save_state(state(tmp_path / folder, 1), {"one": torch.ones(3)}, {"step": 1})
    assert state(tmp_path / "a", 1).read_bytes() == state(tmp_path / "b", 1).read_bytes()
    (tmp_path / "a" / "session-01").rename(tmp_path / "a" / "session-02")
    with pytest.raises(DamagedFileError, match="session-01/state.safetensors under another name"):
        load_state(state(tmp_path / "a", 2), with_tensors=False)


def test_a_tensor_is_not_taken_from_a_state_that_was_replaced(tmp_path: Path) -> None:
    one, two = state(tmp_path, 1), state(tmp_path, 2)
    save_state(one, {"same": torch.ones(3)}, {})
    save_state(two, {"same": torch.ones(3), "new": torch.zeros(1)}, {}, one)
    save_state(one, {"same": torch.zeros(3)}, {})
    with pytest.raises(DamagedFileError, match="tensor same does not have its checksum; .* takes tensors from it"):
        load_state(two)
    one.write_bytes(b"damaged")  # then nothing is taken from it
    save_state(two, {"same": torch.ones(3)}, {}, one)
    assert load_state(two)[0]["same"].equal(torch.ones(3))


def test_a_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    for metadata in ({"mlcil": '{"values": {"step": 1}, "orders": {}}'}, {"values": '{"step": 1}', "orders": "{}"}):
        save_file({"one": torch.ones(3)}, tmp_path / "old", metadata)
        tensors, values = load_state(tmp_path / "old")
        assert (values, tensors["one"].tolist()) == ({"step": 1}, [1, 1, 1])
        save_state(state(tmp_path, 2), {"one": torch.ones(3)}, {}, tmp_path / "old")
        assert load_state(tmp_path / "old", with_tensors=False) == ({}, {"step": 1})
