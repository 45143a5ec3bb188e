"""A training step queues its work on the device and never waits for an answer.

There may be no GPU to see a wait on, so it is told by kind: an operation whose result the host needs to know, a value
read by the host, or a copy from the host that is not asked to return at once.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mlcil
from mlcil.data.loading import Batch
from mlcil.methods.base import Method
from mlcil.methods.finetune import FineTuning
from mlcil.methods.registry import all_methods
from mlcil.training import checks
from mlcil.training.loop import SessionTraining
from mlcil.training.run import run

from .test_checks import CASES

SOURCE, TORCH = Path(mlcil.__file__).parent, Path(torch.__file__).parent
TINY = {"epochs": 1, "batch_size": 24, "data": "digits:train=24,test=8,size=16", "checkpoint_seconds": 300.0}
READS = {Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__}
SETTINGS = {"clip_norm": 1.0, "ema": 0.9, "micro_batch": 3, "precision": "bf16-mixed"}

ALLOWED: dict[str, dict[str, str]] = {
    # A memory that takes images during training keeps what the model says of them at that moment, on the host.
    "derpp reservoir": {
        "memory/logits.py put: tolist": "the images' numbers, of all processes",
        "memory/logits.py put: cpu": "their logits",
    },
}
"""What a step of a method waits for, each as FILE FUNCTION: OPERATION, and why."""


class Waits:
    """Collects what would make the host wait, while it is on.

    Attributes:
        found: each as FILE FUNCTION: OPERATION, the file and function of ours that it happened in.
        host: where tensors lie that are on the host whatever the device: a batch's image numbers.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.host: set[int] = set()
        self.is_on = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.is_on = True
        with _Operations(self), _Calls(self):
            yield
        self.is_on = False

    def note(self, operation: str) -> None:
        if self.is_on:
            self.found.add(f"{_place()}: {operation}")


class _Operations(TorchDispatchMode):
    """What every operation comes down to, in the backward pass as well."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in ("index", "index_put", "index_put_"):
            if any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]):
                self.waits.note("index by a mask")
        elif {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
            self.waits.note(name)
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """What leaves no trace in the operations where device and host are the same."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if (func in READS and args[0].data_ptr() not in self.waits.host) or (
            func is Tensor.to and _is_blocking_copy(args, given)
        ):
            self.waits.note(func.__name__)
        elif func is Tensor.new_tensor or (func in (torch.tensor, torch.as_tensor) and given.get("device") is not None):
            self.waits.note("values from the host")
        elif func in (Tensor.__getitem__, Tensor.__setitem__) and _is_of_host(args[1]):
            self.waits.note("index from the host")
        return func(*args, **given)


def _is_blocking_copy(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    names_device = any(isinstance(one, str | torch.device) for one in (*args[1:], given.get("device")))
    # What torch itself moves, as for the norm of all gradients, is on the device already.
    is_own = TORCH in Path(sys._getframe(2).f_code.co_filename).parents
    return names_device and not is_own and not given.get("non_blocking")


def _is_of_host(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, list | np.ndarray) for one in parts)


def _place() -> str:
    """The innermost of our own functions on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if SOURCE in file.parents:
            return f"{file.relative_to(SOURCE)} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"


def steps_of(method: type[Method], values: dict[str, Any], folder: Path) -> tuple[set[str], list[int]]:
    """What the steps of a tiny run wait for, and the session of each step."""
    waits, sessions, real = Waits(), [], SessionTraining._step

    def step(self: SessionTraining, parts: list[tuple[Batch, float]], *given: Any) -> None:
        sessions.append(self.number)
        waits.host = {one.indices.data_ptr() for batch, _ in parts for one in (batch, *batch.replay)}
        # Adam counts its steps in tensors that lie on the host, and reads them: no device is asked.
        hooks = [
            self.optimiser.register_step_pre_hook(lambda *_: setattr(waits, "is_on", False)),
            self.optimiser.register_step_post_hook(lambda *_: setattr(waits, "is_on", True)),
        ]
        with waits.watching():
            real(self, parts, *given)
        for hook in hooks:
            hook.remove()

    with checks._known(method), patch.object(SessionTraining, "_step", step):
        run(checks._config(method, {**values, **TINY}), folder / "run")
    return waits.found, sessions


@pytest.mark.parametrize("name", [*all_methods(), "derpp reservoir"])
def test_a_step_waits_for_nothing(name: str, tmp_path: Path) -> None:
    method, values = CASES[name]
    waits, sessions = steps_of(method, values, tmp_path)
    assert waits == set(ALLOWED.get(name, {}))
    # All but one train in a later session too, if they have one; `analytic` has no step at all.
    assert (2 in sessions) == (not method.is_joint and name != "analytic")


def test_no_setting_makes_a_step_wait(tmp_path: Path) -> None:
    method, values = CASES["krt"]
    waits, sessions = steps_of(method, {**values, **SETTINGS}, tmp_path)
    assert waits == set()
    assert 2 in sessions


class Waiting(FineTuning):
    """Reads its loss in every step."""

    name = "waiting"

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        return terms if terms["classification"] > 0 else {}


def test_a_method_that_waits_is_noticed(tmp_path: Path) -> None:
    waits, _ = steps_of(Waiting, {}, tmp_path)
    assert waits == {"training/loop.py _step: _local_scalar_dense"}


WAITING: dict[str, Callable[[Tensor], Any]] = {
    "_local_scalar_dense": lambda x: float(x.sum()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: (x > 0).nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "_unique2": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "index by a mask": lambda x: x[x > 0],
    "index from the host": lambda x: x[[0, 1]],
    "values from the host": lambda x: torch.tensor([1.0], device=x.device),
    "to": lambda x: x.to("cpu"),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("operation", WAITING)
def test_every_kind_of_wait_is_noticed(operation: str) -> None:
    values, waits = torch.tensor([1.0, 2.0, 0.0]), Waits()
    with waits.watching():
        WAITING[operation](values)
    assert operation in {one.partition(": ")[2] for one in waits.found}


def test_what_stays_on_the_device_is_no_wait() -> None:
    values, waits = torch.tensor([1.0, 2.0, 0.0], requires_grad=True), Waits()
    with waits.watching():
        chosen = torch.where(values > 0, values, 0.0)[values.detach().argsort()][1:].double()
        chosen = chosen.to(torch.float32).to("cpu", non_blocking=True)
        chosen.masked_fill(chosen > 1, 3.0).clamp(min=0).mean().backward()
    assert not waits.found
