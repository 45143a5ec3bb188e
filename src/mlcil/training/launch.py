"""Starting the processes of a run."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

import torch

from ..core.allocation import keep_freed_memory
from ..core.interruption import end_with_me
from .config import RunSettings
from .hardware import check_hardware

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def launch(settings: RunSettings) -> Fabric:
    """Start the processes of a run, or join them.

    Raises:
        UserError: this machine does not have the hardware.
    """
    from lightning_fabric import Fabric  # with the compiler of PyTorch, which takes seconds to import

    check_hardware(settings.accelerator, settings.devices)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    fabric = Fabric(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=settings.strategy,  # type: ignore[arg-type]
        precision=settings.precision,  # type: ignore[arg-type]
    )
    end_with_me(getattr(fabric.strategy.launcher, "procs", ()))  # filled by the launch
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave_process_group)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    return fabric


def _leave_process_group() -> None:
    """End the threads that exchange tensors: a process that ends with them alive may be aborted."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
