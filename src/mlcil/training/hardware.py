"""Whether this machine has what a run is to compute on."""

from __future__ import annotations

from ..core.errors import UserError


def check_hardware(accelerator: str, devices: int) -> None:
    """Check that the accelerator and the devices are there; the processor serves any number of processes.

    Raises:
        UserError: they are not.
    """
    if accelerator == "cpu" or (accelerator == "auto" and devices == 1):
        return  # without importing torch, which takes seconds
    import torch

    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if accelerator == "auto":
        accelerator = next((name for name, count in counts.items() if count), "cpu")
    count = counts.get(accelerator, devices)
    if not count:
        raise UserError(f"accelerator: got {accelerator!r}, but PyTorch finds none here; leave it at auto, or use cpu")
    if devices > count:
        raise UserError(f"devices: got {devices}, but PyTorch finds {count} of {accelerator!r} here")
