"""The rows of a grid beside those of the KRT paper, and whether the paper's order holds; for docs/results.md.

    python docs/measurements/paper_order.py runs/results/b0 coco-b0-c10

The grid's runs have the names of the paper's rows, as `mlcil presets --group coco-b0-c10` lists them; other rows follow
without published numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from mlcil.evaluation.results import SessionResult
from mlcil.experiments.presets import Published, all_presets
from mlcil.reports.runs import RunRecord, read_run


class Row(NamedTuple):
    """The runs of one name with all their seeds, and what the paper says of them."""

    name: str
    runs: Sequence[RunRecord]
    published: Published | None

    @property
    def last(self) -> float:
        """Mean over the seeds of the last mAP."""
        return float(np.mean([run.result.sessions[-1].map for run in self.runs]))

    def cells(self) -> list[str]:
        """Average and last mAP, CF1 and OF1 at the threshold of the paper, forgetting, and minutes of a run."""
        last = [run.result.sessions[-1] for run in self.runs]
        is_joint = len(self.runs[0].result.sessions) == 1
        average = "-" if is_joint else spread([run.result.average_map for run in self.runs])
        columns = [spread([one.map for one in last]), *(spread(metric(last, name)) for name in ("CF1@0.8", "OF1@0.8"))]
        forgetting = "-" if is_joint else spread(metric(last, "forgetting"))
        minutes = np.mean([sum(one["session_seconds"] for one in run.evaluations) for run in self.runs]) / 60
        return [average, *columns, forgetting, f"{minutes:.1f}"]


def metric(sessions: Sequence[SessionResult], name: str) -> list[float]:
    """A metric of each session, in percent as results.json has it."""
    return [float(one.metrics[name]) for one in sessions if one.metrics.get(name) is not None]


def spread(values: Sequence[float]) -> str:
    """The mean, and with several values their sample deviation."""
    if not values:
        return "-"
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{deviation}"


def rows_of(grid: Path, folder: str) -> list[Row]:
    """The rows of a grid whose runs are finished, best last mAP first."""
    presets = {
        name.split("/")[1]: one.published for name, one in all_presets().items() if name.startswith(f"{folder}/")
    }
    found: dict[str, list[RunRecord]] = {}
    for results in sorted(grid.glob("*/seed-*/results.json")):
        run = read_run(results.parent)
        if run.result.finished:
            found.setdefault(results.parent.parent.name, []).append(run)
    rows = [Row(name, runs, presets.get(name)) for name, runs in found.items()]
    return sorted(rows, key=lambda row: -row.last)


def main() -> None:
    """Print the table and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("folder", help="of presets, such as coco-b0-c10")
    asked = parser.parse_args()
    rows = rows_of(asked.grid, asked.folder)
    known = [row for row in rows if row.published and row.published.last_map is not None]
    theirs = {row.name: row.published.last_map for row in known if row.published}
    rank = {name: place for place, name in enumerate(sorted(theirs, key=lambda name: -(theirs[name] or 0)), 1)}
    print("| row | seeds | average | last | CF1@0.8 | OF1@0.8 | forgetting | minutes | order | paper: last | order |")
    print("| --- |" + " ---: |" * 10)
    order = 0
    for row in rows:
        order += row.name in rank
        paper = [f"{theirs[row.name]:.1f}", str(rank[row.name])] if row.name in rank else ["", ""]
        place = str(order) if row.name in rank else ""
        print(f"| {' | '.join([row.name, str(len(row.runs)), *row.cells(), place, *paper])} |")
    if len(known) > 2:
        agreement = spearmanr([row.last for row in known], [theirs[row.name] for row in known]).statistic
        print(f"\nRank correlation with the paper over {len(known)} rows: {agreement:.2f}")


if __name__ == "__main__":
    main()
