"""Whether this machine has what a run is to compute on."""

from __future__ import annotations

from ..core.errors import UserError


def accelerator_here(accelerator: str) -> str:
    """The accelerator that "auto" stands for on this machine; any other stands for itself."""
    if accelerator != "auto":
        return accelerator
    import torch

    if torch.cuda.device_count():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_hardware(accelerator: str, devices: int) -> None:
    """Check that the accelerator and the devices are there; the processor serves any number of processes.

    Raises:
        UserError: they are not.
    """
    if accelerator == "cpu" or (accelerator == "auto" and devices == 1):
        return  # without importing torch, which takes seconds
    import torch

    accelerator = accelerator_here(accelerator)
    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    count = counts.get(accelerator, devices)
    if not count:
        raise UserError(f"accelerator: got {accelerator!r}, but PyTorch finds none here; leave it at auto, or use cpu")
    if devices > count:
        raise UserError(f"devices: got {devices}, but PyTorch finds {count} of {accelerator!r} here")
