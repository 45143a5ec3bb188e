"""Several processes over gloo do what one does with the same global batch."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import yaml
from lightning_fabric import Fabric
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.loading import PixelFeed, Preparation
from mlcil.data.pixels import MemoryPixels
from mlcil.methods.base import Method, TrainingSet
from mlcil.training import run as running
from mlcil.training.config import make_config
from mlcil.training.inference import TrainingInference, gather_rows, on_first
from mlcil.training.run import run

from ..tiny import final_state, outcome, settings

PROCESSES, MOST = 3, 8
SESSIONS = {"train": {"a": 7, "b": 1}, "test": {"a": 4, "b": 1}}  # images of each class


def losses(folder: Path) -> list[dict[str, float]]:
    """The mean losses of each epoch."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [one["losses"] for one in lines if "losses" in one]


def test_two_processes_equal_one(tmp_path: Path) -> None:
    # A ViT has no batch statistics, so that the two can be compared; and batches that two processes cannot share alike.
    small = {"epochs": 1, "buffer": "2", "batch_size": 7}
    values = settings("krt", backbone="test_vit", image_size=32, accelerator="cpu", **small)
    run(make_config(values), tmp_path / "one")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "mlcil", "run", str(file), "--devices", "2", "--strategy", "ddp"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "two")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    one, two = outcome(tmp_path / "one"), outcome(tmp_path / "two")
    for a, b in zip(one["sessions"], two["sessions"], strict=True):
        assert a["test_images"] == b["test_images"]
        assert a["metrics"]["mAP"] == pytest.approx(b["metrics"]["mAP"], abs=1.0)
        for key, value in a["notes"].items():
            assert b["notes"][key] == pytest.approx(value, abs=2e-3)
    for a, b in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert a == pytest.approx(b, rel=0.02, abs=1e-3)
    states = final_state(tmp_path / "one"), final_state(tmp_path / "two")
    assert states[0].keys() == states[1].keys()
    grown = [key for key in states[0] if key.startswith(("method.tagger.heads.2.", "method.tagger.attention.kr.2"))]
    assert len(grown) == 5  # token, norm and linear layer of the newest session
    for key, value in states[0].items():
        # Attention ignores its key bias: that gradient is mere rounding, which Adam blows up.
        if value.numel() and not key.endswith("qkv.bias"):
            apart = (states[1][key].float() - value.float()).square().mean().sqrt().item()
            assert apart < 4e-4, f"{key}: {apart}"  # parameters moved by some 5e-3; unsynchronised ones part by as much


def exchanges(fabric: Fabric) -> dict[str, Any]:
    """What this process gets of 1, 2, ... images that all of them look at; image i is of the colour i."""
    pixels = np.broadcast_to(np.arange(MOST, dtype=np.uint8)[:, None, None, None], (MOST, 8, 8, 3))
    loader = PixelFeed(MemoryPixels(pixels, 8), Preparation((0.0,) * 3, (1.0,) * 3))
    together = TrainingInference(torch.nn.Identity(), fabric, loader, batch_size=2)
    found: dict[str, Any] = {"order": [], "total": [], "rows": []}
    for count in range(1, MOST + 1):
        rows = np.arange(count)[::-1].copy()
        colours = together(lambda images: images.amax((2, 3)) * 255, rows)  # (n, 3)
        found["order"].append(colours[:, 1].round().astype(int).tolist())
        chosen = TrainingSet(rows, np.zeros((count, 1), np.int8))
        found["total"].append(together.total(lambda batch: 2.0 ** batch.indices.sum(), chosen).item())
        mine = torch.arange(count)[fabric.global_rank :: fabric.world_size]
        found["rows"].append(sorted(gather_rows(mine, fabric).tolist()))
    try:
        on_first(fabric, refuse)
    except UserError as error:
        found["refused"] = str(error)
    return found


def refuse() -> None:
    raise UserError("this folder is not ours")


def few_images(folder: Path) -> dict[str, Any]:
    """Settings of a run whose second session has two images, one an exemplar: fewer than there are processes."""
    lines, rng = ["path,labels,split"], np.random.default_rng(0)
    for split, classes in SESSIONS.items():
        for name, count in classes.items():
            for number in range(count):
                file = folder / f"{split}-{name}-{number}.png"
                Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(file)
                lines.append(f"{file.name},{name},{split}")
    (folder / "table.csv").write_text("\n".join(lines))
    made_up = {"data": f"table:{folder / 'table.csv'}", "protocol": "a|b", "cache": None}
    return settings("krt", buffer="1", epochs=1, ema=0.5, accelerator="cpu", **made_up)


def run_as_one_of_many(values: dict[str, Any], out: Path) -> dict[str, Any]:
    """Results of a run as this process has them, and what its method has learned."""
    kept: list[Method] = []

    def keep(*given: Any) -> Any:
        made = real(*given)
        kept.append(made[0])
        return made

    real = running.prepare_method
    with patch.object(running, "prepare_method", keep):
        results = asdict(run(make_config(values, {"devices": PROCESSES, "strategy": "ddp"}), out))
    state, digest = kept[0].state(), hashlib.sha256()
    for name, tensor in sorted(state.tensors.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    for session in results["sessions"]:
        del session["train_seconds"]
    return {"results": results, "tensors": digest.hexdigest(), "values": state.values}


def as_one_of_many(folder: Path) -> None:
    """What each process does."""
    fabric = Fabric(accelerator="cpu", devices=PROCESSES, strategy="ddp")
    fabric.launch()
    found = {"exchanges": exchanges(fabric)}
    found |= run_as_one_of_many(json.loads((folder / "settings.json").read_text()), folder / "run")
    (folder / f"process-{fabric.global_rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What three processes found, each for itself."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "settings.json").write_text(json.dumps(few_images(folder)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    done = subprocess.run(
        [*command, "-m", "tests.training.test_distributed", str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"process-{rank}.json").read_text()) for rank in range(PROCESSES)]


def test_every_process_gets_each_image_once_and_in_order(processes: list[dict[str, Any]]) -> None:
    for one in processes:
        assert one["exchanges"]["order"] == [list(range(count))[::-1] for count in range(1, MOST + 1)]
        assert one["exchanges"]["rows"] == [list(range(count)) for count in range(1, MOST + 1)]


def test_a_sum_over_batches_counts_each_image_once(processes: list[dict[str, Any]]) -> None:
    # Batches of two of each process's every third image, from the last one down; a process without images adds nothing.
    wanted = []
    for count in range(1, MOST + 1):
        shares = [list(range(count))[::-1][rank::PROCESSES] for rank in range(PROCESSES)]
        batches = [share[start : start + 2] for share in shares for start in range(0, len(share), 2)]
        wanted.append(sum(2.0 ** sum(batch) for batch in batches))
    assert [one["exchanges"]["total"] for one in processes] == [wanted] * PROCESSES


def test_what_one_process_refuses_ends_all(processes: list[dict[str, Any]]) -> None:
    assert [one["exchanges"]["refused"] for one in processes] == ["this folder is not ours"] * PROCESSES


def test_processes_agree_on_model_buffer_threshold_and_results(processes: list[dict[str, Any]]) -> None:
    # Evaluation mixes the scores of all processes: they must belong to one model, batch statistics and all.
    first = processes[0]
    assert all(one["tensors"] == first["tensors"] for one in processes)
    assert all(one["values"] == first["values"] for one in processes)
    assert all(one["results"] == first["results"] for one in processes)
    sessions = first["results"]["sessions"]
    assert [one["images"] for one in sessions] == [7, 1 + 1]  # the second with an exemplar
    assert [one["test_images"] for one in sessions] == [4, 5]
    assert sessions[1]["notes"]["exemplars"] == 2
    assert 0 < sessions[1]["notes"]["threshold"] < 1


if __name__ == "__main__":
    as_one_of_many(Path(sys.argv[1]))
