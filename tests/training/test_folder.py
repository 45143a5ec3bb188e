import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.core.files import read_json
from mlcil.training.config import make_config, read_config
from mlcil.training.folder import RunFolder, environment
from mlcil.training.states import load_state, save_state

CONFIG = make_config({"epochs": 3})

# Tries to open the run folder argv[1].
SECOND_PROCESS = """
import sys
from pathlib import Path
from mlcil.core.errors import UserError
from mlcil.training.config import make_config
from mlcil.training.folder import RunFolder
try:
    RunFolder(Path(sys.argv[1])).open(make_config({"epochs": 3}))
    print("opened")
except UserError as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path):
    opened = RunFolder(tmp_path / "runs" / "one")
    opened.open(CONFIG)
    yield opened
    opened.close()


def try_in_another_process(folder: RunFolder) -> str:
    command = [sys.executable, "-c", SECOND_PROCESS, str(folder.path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def refusal(folder: RunFolder, config=CONFIG) -> str:
    with pytest.raises(UserError) as caught:
        folder.open(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_folder_holds_what_was_asked(folder):
    assert make_config(read_config(folder.path / "config.yaml")) == CONFIG
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "config.yaml"]


def begin(folder):
    """Leave what a run leaves once it has learned something."""
    (folder.path / "session-01").mkdir()
    (folder.path / "session-01" / "progress.safetensors").touch()


def test_the_same_run_is_opened_again_whatever_the_machine(folder):
    begin(folder)
    folder.close()
    folder.close()  # twice does no harm
    before = (folder.path / "config.yaml").read_bytes()
    again = RunFolder(folder.path)
    again.open(make_config({"epochs": 3}, {"threads": 2, "workers": 1, "cache": "none"}))
    assert (folder.path / "config.yaml").read_bytes() == before
    again.close()


def test_before_anything_is_learned_the_configuration_may_be_corrected(folder):
    folder.close()
    folder.open(make_config({"epochs": 4}))
    assert read_config(folder.path / "config.yaml")["epochs"] == 4


def test_another_configuration_is_refused_by_its_keys_and_the_folder_is_free_again(folder):
    begin(folder)
    folder.close()
    other = RunFolder(folder.path)
    message = refusal(other, make_config({}, {"epochs": 4, "width": 64, "threads": 2}))
    assert message == (
        f"{folder.path} holds a run with another configuration (epochs: 3 -> 4; options.width: 384 -> 64); "
        "choose another --out, or repeat its own settings to continue it"
    )
    folder.open(CONFIG)  # the refused one keeps no lock


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    message = f"{tmp_path} is not empty and is no run folder; choose another --out"
    assert refusal(RunFolder(tmp_path)) == message
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_start_that_was_killed_at_once_can_be_repeated(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock.owner.removal").touch()  # on a file system without locks
    (tmp_path / ".config.yaml.def.partial").mkdir()
    (tmp_path / ".config.yaml.abc.partial").write_text("method: k")
    run = RunFolder(tmp_path)
    run.open(CONFIG)
    assert make_config(read_config(tmp_path / "config.yaml")) == CONFIG
    run.close()


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert refusal(RunFolder(tmp_path / "file")) == f"cannot use folder {tmp_path / 'file'}: File exists"
    assert refusal(RunFolder(tmp_path / "file" / "run")).startswith("cannot use folder")


def test_one_writer_at_a_time(folder):
    message = f"another process is writing to {folder.path}; wait for it or choose another --out"
    assert try_in_another_process(folder) == message
    assert refusal(RunFolder(folder.path)) == message
    assert refusal(RunFolder(folder.path), make_config({"epochs": 9})) == message
    folder.close()
    assert try_in_another_process(folder) == "opened"
    folder.open(CONFIG)


def test_finished_sessions_are_counted_without_gaps(folder):
    assert folder.finished_sessions() == 0
    save_state(folder.progress_file(1), {}, {})
    assert folder.finished_sessions() == 0
    for number in (1, 2, 4):
        save_state(folder.state_file(number), {}, {})
    assert folder.finished_sessions() == 2
    assert folder.state_file(2).relative_to(folder.path).as_posix() == "session-02/state.safetensors"
    assert folder.progress_file(12).relative_to(folder.path).as_posix() == "session-12/progress.safetensors"


def test_forgetting_drops_later_lines_and_a_torn_one(folder):
    records = [{"session": s, "epoch": e, "loss": s + e / 10} for s in (1, 2) for e in (1, 2, 3)]
    for record in records:
        folder.log(record)
    with folder.metrics.open("a") as file:
        file.write('{"session": 1, "epo')
    folder.forget_metrics(2, 2)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == records[:4]
    folder.log(records[4])  # a new line, not the torn one's end
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == records[:5]
    folder.forget_metrics(2, 0)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == records[:3]
    folder.forget_metrics(1, 0)
    assert folder.metrics.read_text() == ""


def test_forgetting_before_anything_was_written(folder):
    folder.forget_metrics(1, 0)
    assert not folder.metrics.exists()


def test_a_log_that_cannot_be_written_is_a_user_error(folder):
    folder.metrics.mkdir()
    with pytest.raises(UserError, match=r"^cannot write .*: Is a directory"):
        folder.log({"session": 1})


def test_a_file_that_cannot_be_removed_is_a_user_error(folder, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    begin(folder)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError) as caught:
        folder.drop_progress(1)
    file = folder.progress_file(1)
    assert str(caught.value) == f"cannot remove {file}: Read-only file system; repeat the command to continue"


def test_every_launch_is_remembered(folder):
    for seed in (1, 2):
        folder.log_environment({"seed": seed})
    launches = read_json(folder.path / "environment.json")["launches"]
    assert [one["seed"] for one in launches] == [1, 2]
    assert all(one["python"] for one in launches)


def test_a_state_comes_back_to_the_bit(tmp_path):
    shared = torch.randn(4, 6)
    tensors = {
        "float": torch.tensor([0.1, float("nan"), float("inf"), -0.0]),
        "double": torch.randn(3, dtype=torch.float64),
        "half": torch.randn(3).to(torch.bfloat16),
        "int8": torch.tensor([[-1, 0, 1]], dtype=torch.int8),
        "int64": torch.tensor([2**62, -1]),
        "bool": torch.tensor([True, False]),
        "empty": torch.empty(0, 5, dtype=torch.int8),
        "scalar": torch.tensor(3.0),
        "view": shared[:, 2],
        "same": shared,
        "transposed": shared.t(),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "with gradient": torch.nn.Parameter(torch.randn(2)),
    }
    values = {"sizes": [2, 3], "threshold": 0.1 + 0.2, "none": None, "nested": {"ä": [True, 1e-300]}}
    save_state(tmp_path / "new" / "state.safetensors", tensors, values)
    found, found_values = load_state(tmp_path / "new" / "state.safetensors")
    assert found_values == values
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(_bits(found[name]), _bits(tensor)), name
    for name in ("transposed", "channels_last"):  # as it lies in memory decides how later products are rounded
        assert found[name].stride() == tensors[name].stride(), name
    assert found["view"].is_contiguous()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def test_a_loaded_state_outlives_its_file(tmp_path):
    file = tmp_path / "state.safetensors"
    save_state(file, {"weight": torch.arange(1000.0)}, {})
    tensors, _ = load_state(file)
    save_state(file, {"weight": torch.zeros(10)}, {})
    file.unlink()
    tensors["weight"] += 1  # and may be changed
    assert torch.equal(tensors["weight"], torch.arange(1.0, 1001.0))


@pytest.mark.parametrize("damage", ["short", "header", "empty", "text", "missing", "no values"])
def test_a_damaged_checkpoint_is_named_in_one_line(tmp_path, damage):
    file = tmp_path / "state.safetensors"
    save_state(file, {"weight": torch.randn(1000)}, {"step": 1})
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "no values":
        from safetensors.torch import save_file

        save_file({"weight": torch.zeros(1)}, file)
    else:
        broken = {
            "short": content[:-7],
            "header": b"\xff" * 16 + content[16:],
            "empty": b"",
            "text": b"hello",
        }
        file.write_bytes(broken[damage])
    with pytest.raises(UserError) as caught:
        load_state(file)
    start = f"cannot read checkpoint {file}: No such file" if damage == "missing" else f"{file} is damaged: "
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


def test_the_environment_says_what_results_depend_on():
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert {"mlcil", "torch", "timm", "numpy", "safetensors"} <= set(found["versions"])
    assert found["python"].startswith("3.")
    assert "git_revision" in found
    revision = found["git_revision"]
    assert revision is None or len(revision.removesuffix("-dirty")) >= 40
    assert found["started"][:2] == "20"
