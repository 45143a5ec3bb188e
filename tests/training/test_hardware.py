import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.training.hardware import check_hardware


@pytest.fixture
def machine(monkeypatch):
    def build(gpus=0, has_mps=False):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)

    return build


@pytest.mark.parametrize(
    ("gpus", "accelerator", "devices"),
    [(0, "auto", 1), (0, "auto", 4), (0, "cpu", 4), (2, "auto", 2), (2, "cuda", 2), (2, "cuda", 1), (2, "cpu", 8)],
)
def test_what_is_there(machine, gpus, accelerator, devices):
    machine(gpus)
    check_hardware(accelerator, devices)


@pytest.mark.parametrize(
    ("gpus", "accelerator", "devices", "says"),
    [
        (0, "cuda", 1, "accelerator: got 'cuda', but PyTorch finds none here; leave it at auto, or use cpu"),
        (2, "mps", 1, "accelerator: got 'mps', but PyTorch finds none here; leave it at auto, or use cpu"),
        (2, "cuda", 3, "devices: got 3, but PyTorch finds 2 of 'cuda' here"),
        (2, "auto", 3, "devices: got 3, but PyTorch finds 2 of 'cuda' here"),
    ],
)
def test_what_is_not_there(machine, gpus, accelerator, devices, says):
    machine(gpus)
    with pytest.raises(UserError) as error:
        check_hardware(accelerator, devices)
    assert str(error.value) == says
