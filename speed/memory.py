"""The most memory that a training step needs: KRT against its backbone alone, and as sessions grow.

Peak resident memory of a process of its own, less what it held before the model was made. `make speed` runs this.
"""

from __future__ import annotations

import multiprocessing
import resource
from typing import Any

from measure import Ratio, report
from step import backbone_step, grown, literal_step, made_up, our_step

from mlcil.core.allocation import keep_freed_memory
from mlcil.training.optimiser import make_optimiser

NET, BATCH = "tresnet_m", 16


def student_step(net: str, batch: int, sessions: int) -> Any:
    """The backbone alone: one network, no teacher."""
    keep_freed_memory()
    method, data = grown(net, sessions), made_up(batch, sessions)
    method.teacher = None
    optimiser = make_optimiser(method.tagger, 1e-4, 1e-4)
    backbone = method.tagger.backbone

    def step() -> None:
        backbone(data.images).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def _peak(pipe: Any, factory: Any, arguments: tuple[Any, ...]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job = factory(*arguments)
    for _ in range(3):
        job()
    pipe.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def peak(factory: Any, *arguments: Any) -> float:
    """Megabytes that three steps needed at most."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_peak, args=(theirs, factory, arguments))
    process.start()
    found = float(ours.recv())
    process.join()
    return found


def main() -> None:
    """Print megabytes and ratios."""
    megabytes = {
        "backbone alone": peak(student_step, NET, BATCH, 2),
        "both backbones": peak(backbone_step, NET, BATCH, 2),
        "krt, session 2": peak(our_step, NET, BATCH, 2),
        "krt, session 8": peak(our_step, NET, BATCH, 8),
        "krt, session 32": peak(our_step, NET, BATCH, 32),
        "literal, session 8": peak(literal_step, NET, BATCH, 8),
    }
    eight = megabytes["krt, session 8"]
    report(
        "memory",
        f"Peak memory of a step, TResNet-M, {BATCH} images of 224 px",
        [
            *(Ratio(name, value, unit="MB") for name, value in megabytes.items()),
            Ratio("krt in session 8 / backbone alone", eight / megabytes["backbone alone"]),
            Ratio("krt in session 32 / session 2", megabytes["krt, session 32"] / megabytes["krt, session 2"]),
        ],
    )


if __name__ == "__main__":
    main()
