"""The demo: forgetting and its cure on handwritten digits."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ..reports.collect import collect
from ..reports.report import write_report
from ..reports.table import to_terminal
from ..reports.tables import comparison_tables
from ..training.config import make_config
from ..training.run import run

SETTINGS = {
    "data": "digits:train=2000,test=600,size=32",
    "protocol": "B6-C2",
    "image_size": 32,
    "base_epochs": 12,
    "epochs": 8,
    "batch_size": 32,
    "base_lr": 3e-3,
    "lr": 2e-3,
    "augment": "none",
}
KRT_OPTIONS = {"width": 64, "labels_per_image": 2.5, "token_weight": 20}
METHODS = {"ft": {}, "krt": KRT_OPTIONS, "joint": {}}


def run_demo(out: Path, console: Console) -> Path:
    """Run fine-tuning, KRT and joint training, print their tables, and write the page, which is returned."""
    began, last = time.monotonic(), {}
    for name, options in METHODS.items():
        console.rule(name)
        config = make_config(SETTINGS | {"method": name, "options": options})
        last[name] = run(config, out / name, console).last_map or 0.0
    text = _explain(last)
    runs = [out / name for name in METHODS]
    page = write_report(runs, out, "mlcil: forgetting and its cure", text, ["mlcil demo"], images=2)
    for table in comparison_tables(collect(runs)):
        console.print(to_terminal(table))
    console.print(text, soft_wrap=True, highlight=False)
    console.print(f"page: {page} ({time.monotonic() - began:.0f} s)", soft_wrap=True, highlight=False)
    return page


def _explain(last: dict[str, float]) -> str:
    return (
        "The first session teaches six digits, and each later one teaches two more, from images labelled for these "
        "two only. Fine-tuning (ft) takes the old digits, which are not labelled, for absent and forgets them: it ends "
        f"at {last['ft']:.1f} mAP over all ten digits. KRT lets the old model restore the missing labels and holds its "
        f"knowledge in place: it ends at {last['krt']:.1f}. Training on all labels at once (joint) reaches "
        f"{last['joint']:.1f}."
    )
