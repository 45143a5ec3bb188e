"""The rows of the MS-COCO tables of docs/results.md, from the runs of a grid, and the tables beside the KRT paper's.

    python docs/measurements/coco_rows.py runs/results/b0 slice B0-C10 --into docs/measurements/coco.csv

The runs have the names of the paper's rows, as `mlcil presets --group coco-b0-c10` lists them; other rows have no
published numbers. A row that is in the file already is replaced; `make docs` writes the tables into the page.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from mlcil.evaluation.paired import paired_difference
from mlcil.evaluation.results import SessionResult
from mlcil.evaluation.scores import ScoredImages, load_scores, scores_file
from mlcil.experiments.presets import all_presets
from mlcil.reports.runs import RunRecord, read_run

FILE = Path(__file__).with_name("coco.csv")
JOINT = "joint"
HEADER = "row,seeds,average,last,below joint training (95 %),CF1@0.8,OF1@0.8,forgetting,minutes,order,paper: last,order"


@dataclass(frozen=True)
class Row:
    """The runs of one name with all their seeds, in the words of a table: a mean, and with several seeds ± deviation.

    Attributes:
        below: points of last mAP below joint training, with the 95 % interval over test images and seeds; empty where
            the scores were not kept.
        minutes: of one run, of processor time on one core; what is kept for all runs is computed by the first.
    """

    sample: str
    protocol: str
    name: str
    seeds: str
    average: str
    last: str
    below: str
    cf1: str
    of1: str
    forgetting: str
    minutes: str

    @property
    def mean(self) -> float:
        """The last mAP."""
        return float(self.last.split()[0])


def table(sample: str, protocol: str, file: Path = FILE) -> str:
    """The rows of a sample and protocol in Markdown, best first, beside the paper's, and how well the orders agree."""
    rows = sorted((one for one in read_rows(file) if (one.sample, one.protocol) == (sample, protocol)), key=_place)
    known = {row.name: row.mean for row in rows}
    theirs = {name: last for name, last in published(protocol).items() if name in known}
    ours, paper = _ranks({name: known[name] for name in theirs}), _ranks(theirs)
    lines = [HEADER.split(","), ["---", *["---:"] * 11]]
    for row in rows:
        cells = [row.name, row.seeds, row.average, row.last, row.below, row.cf1, row.of1, row.forgetting, row.minutes]
        last = f"{theirs[row.name]:.1f}" if row.name in theirs else ""
        lines.append([*cells, ours.get(row.name, ""), last, paper.get(row.name, "")])
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    if len(theirs) > 2:
        agreement = spearmanr([known[name] for name in theirs], [*theirs.values()]).statistic
        text += f"\nRank correlation with the paper over {len(theirs)} rows: {agreement:.2f}\n"
    return text


def published(protocol: str) -> dict[str, float]:
    """The last mAP of each row of the paper's table."""
    folder = f"coco-{protocol.lower()}/"
    found = {name.removeprefix(folder): one.published for name, one in all_presets().items() if name.startswith(folder)}
    return {name: one.last_map for name, one in found.items() if one is not None and one.last_map is not None}


def read_rows(file: Path) -> list[Row]:
    """The rows of a file; none if it is not there."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [Row(**cells) for cells in csv.DictReader(lines)]


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    """Write the rows to a file."""
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([one.name for one in fields(Row)])
        writer.writerows(sorted(map(astuple, rows)))


def rows_of(grid: Path, joint: Path, sample: str, protocol: str) -> list[Row]:
    """The rows of a grid whose runs are finished; `joint` holds the runs of joint training, one for each seed."""
    found: dict[str, list[RunRecord]] = {}
    for results in sorted(grid.glob("*/seed-*/results.json")):
        run = read_run(results.parent)
        if run.result.finished:
            found.setdefault(results.parent.parent.name, []).append(run)
    return [row_of(sample, protocol, name, runs, joint) for name, runs in found.items()]


def row_of(sample: str, protocol: str, name: str, runs: Sequence[RunRecord], joint: Path) -> Row:
    """One row."""
    last = [run.result.sessions[-1] for run in runs]
    is_joint = len(runs[0].result.sessions) == 1
    minutes = np.mean([sum(one["processor_seconds"] for one in run.evaluations) for run in runs]) / 60
    return Row(
        sample,
        protocol,
        name,
        seeds=str(len(runs)),
        average="-" if is_joint else spread([run.result.average_map for run in runs]),
        last=spread([one.map for one in last]),
        below="" if is_joint else below(runs, joint),
        cf1=spread(metric(last, "CF1@0.8")),
        of1=spread(metric(last, "OF1@0.8")),
        forgetting="-" if is_joint else spread(metric(last, "forgetting")),
        minutes=f"{minutes:.1f}",
    )


def below(runs: Sequence[RunRecord], joint: Path) -> str:
    """How far the runs are below joint training with the same seeds, or with the seeds that there are."""
    references = sorted(joint.glob("seed-*"))
    if not references:
        return ""
    pairs = [(last_scores(run.path), last_scores(_same_seed(run.path, references))) for run in runs]
    found = paired_difference(pairs)
    return f"{found.difference:.1f} ({found.interval.low:.1f} to {found.interval.high:.1f})"


def last_scores(run: Path) -> ScoredImages:
    """The test scores of a run after its last session."""
    return load_scores(scores_file(run, len(read_run(run).result.sessions)))


def metric(sessions: Sequence[SessionResult], name: str) -> list[float]:
    """A metric of each session, in percent as results.json has it."""
    return [float(one.metrics[name]) for one in sessions if one.metrics.get(name) is not None]


def spread(values: Sequence[float]) -> str:
    """The mean, and with several values their sample deviation."""
    if not values:
        return "-"
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{deviation}"


def _same_seed(run: Path, references: Sequence[Path]) -> Path:
    return next((one for one in references if one.name == run.name), references[0])


def _ranks(values: Mapping[str, float]) -> dict[str, str]:
    """The place of each name, the highest value first."""
    return {name: str(place) for place, name in enumerate(sorted(values, key=lambda one: -values[one]), 1)}


def _place(row: Row) -> tuple[float, str]:
    return -row.mean, row.name


def main() -> None:
    """Renew the rows of a file and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("sample", help="of the data, in a word")
    parser.add_argument("protocol", help="B0-C10 or B40-C10")
    parser.add_argument("--joint", type=Path, help="the runs of joint training; those of the grid unless given")
    parser.add_argument("--into", type=Path, required=True, help="the file of rows")
    asked = parser.parse_args()
    new = rows_of(asked.grid, asked.joint or asked.grid / JOINT, asked.sample, asked.protocol)
    names = {(row.sample, row.protocol, row.name) for row in new}
    kept = [row for row in read_rows(asked.into) if (row.sample, row.protocol, row.name) not in names]
    write_rows(asked.into, [*kept, *new])
    print(table(asked.sample, asked.protocol, asked.into))


if __name__ == "__main__":
    main()
