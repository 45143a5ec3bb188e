"""Multi-label class-incremental learning: teach an image tagger new labels without the old data.

    import mlcil

    mlcil.check("labels.csv").findings                               # what to fix before training
    result = mlcil.run("krt", "digits", "runs/krt", epochs=5)        # train, or continue the run in this folder
    scores = mlcil.load("runs/krt").predict(["photo.jpg"])           # use the trained model
    mlcil.report(["runs/krt"], "report")                             # write a page with tables and figures
    mlcil.compare("runs/krt", "runs/ft").as_dict()                   # is the difference more than noise?
    mlcil.diagnose("runs/krt", "runs/joint").as_dict()               # why does it lose against joint training?

`methods` and `presets` list what can be run. To write a method of your own, start from `Method` or `Rehearsal`, with
a `MethodConfig` of `option`s, then `register` it and try it with `mlcil.testing.check_method`. A mistake in the input
raises `UserError`. These names are the public interface; everything else may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from . import testing
    from .core.config import option
    from .core.errors import UserError
    from .data.review import Review
    from .evaluation.results import RunResult
    from .experiments.presets import Preset
    from .methods.base import Method, MethodConfig
    from .methods.registry import register
    from .methods.rehearsal import Rehearsal
    from .reports.comparison import RunComparison
    from .reports.diagnosis import Diagnosis
    from .serving.predictions import Prediction
    from .serving.tagger import Tagger

    def methods() -> dict[str, type[Method]]:
        """Every method by its name."""


__version__ = "0.1.0"
__all__ = [
    "Method",
    "MethodConfig",
    "Prediction",
    "Rehearsal",
    "Tagger",
    "UserError",
    "__version__",
    "check",
    "compare",
    "diagnose",
    "load",
    "methods",
    "option",
    "presets",
    "register",
    "report",
    "run",
    "testing",
]

# Imported on first use: most need torch, and the command line starts with this file. `methods` is a package that can
# be called; see its own file.
_LAZY = {
    "Method": "methods.base",
    "MethodConfig": "methods.base",
    "Prediction": "serving.predictions",
    "Rehearsal": "methods.rehearsal",
    "Tagger": "serving.tagger",
    "UserError": "core.errors",
    "option": "core.config",
    "register": "methods.registry",
}
_MODULES = ("methods", "testing")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def run(
    method: str | None = None,
    data: str | None = None,
    out: str | Path | None = None,
    *,
    preset: str | None = None,
    console: Console | None = None,
    **settings: Any,
) -> RunResult:
    """Run an experiment, or continue it where it stopped.

    Arguments:
        method: name of the method, see `methods`; "krt" if neither it nor a preset is given.
        data: the data set, such as "coco:PATH", "voc:PATH", "table:FILE" or "digits", the default.
        out: folder of the run; if it holds a run with the same settings, that run is continued. By default a folder
            below `runs` named after the experiment.
        preset: name of a published row, see `presets`; needs `data`.
        console: where to print progress; None prints nothing.
        settings: any setting of a run (`mlcil settings` lists them) or option of the method (`mlcil methods NAME`).

    Returns:
        The results, which are also in results.json.

    Raises:
        UserError: something in the settings, the data or the folder is wrong.
    """
    from .experiments.plan import default_folder, run_config
    from .training.run import run as train

    named = {key: value for key, value in (("method", method), ("data", data)) if value is not None}
    config = run_config(named | settings, preset=preset)
    return train(config, default_folder(config.settings) if out is None else Path(out), console)


def check(
    data: str,
    *,
    protocol: str | None = None,
    order: str | None = None,
    images: str | None = None,
    negatives: str = "auto",
    decode: bool = False,
) -> Review:
    """Look at a data set as a run would, and train nothing.

    Arguments:
        data: the data set, such as "labels.csv", a folder of photos, or "coco:PATH".
        protocol, order: classes of each session, as for a run; None for no protocol.
        images: the folder or URL to which the image paths in a table are relative.
        negatives: "auto", "none" or "labelled", as for a run.
        decode: decode every image, and not only look at its header.

    Returns:
        The images, the sessions, and the `findings`, the worst first.

    Raises:
        UserError: the data set cannot be read, or the protocol does not fit it.
    """
    from .data.contents import Contents, index_file
    from .data.pixels import default_cache
    from .data.review import review

    return review(data, Contents(index_file(default_cache())), images, protocol, order, negatives, decode)


def load(run: str | Path, session: int | None = None) -> Tagger:
    """Load the trained model of a run, or a tagger; neither data nor pretrained weights are needed.

    Arguments:
        run: folder of the run or of the tagger, or the URL of a tagger.
        session: of a run, take the model after this session, counted from 1; None for the last one that is finished.

    Raises:
        UserError: the folder holds neither, the session is not finished, or a file is damaged.
    """
    from .serving.loading import load as load_tagger

    return load_tagger(run, session)


def presets(group: str | None = None) -> dict[str, Preset]:
    """The published rows that can be run, by name.

    Arguments:
        group: only those of this group, such as "table1".

    Raises:
        UserError: there is no such group.
    """
    from .experiments.presets import all_presets, preset_group

    return dict(all_presets()) if group is None else {preset.name: preset for preset in preset_group(group)}


def report(
    runs: str | Path | Sequence[str | Path], out: str | Path, *, title: str = "mlcil report", images: int = 4
) -> Path:
    """Write a page about runs, with every table as Markdown, LaTeX and CSV and every figure as PNG and SVG.

    Arguments:
        runs: folders of runs, or folders that hold them, such as a grid's.
        out: folder of the report.
        title: heading of the page.
        images: number of test images with attention maps.

    Returns:
        The page, index.html.

    Raises:
        UserError: there is no run to show, or a file cannot be written.
    """
    from .reports.report import write_report

    return write_report(_paths(runs), Path(out), title=title, images=images)


def compare(
    first: str | Path | Sequence[str | Path],
    second: str | Path | Sequence[str | Path],
    *,
    session: int | None = None,
    resamples: int = 1000,
) -> RunComparison:
    """Compare two runs class by class, or two sets of runs that are paired by their seeds.

    Arguments:
        first, second: folders of runs, or folders that hold one run per seed.
        session: compare after this session; None for the last one that both have.
        resamples: number of bootstrap resamples of the test images.

    Returns:
        The difference with its confidence interval; `as_dict()` gives the plain numbers.

    Raises:
        UserError: there is nothing to compare, or the runs differ in more than the method.
    """
    from .reports.comparison import compare_runs

    return compare_runs(_paths(first), _paths(second), session, resamples)


def diagnose(run: str | Path, joint: str | Path | None = None, *, quick: bool = False) -> Diagnosis:
    """Find out why a method loses against joint training: drift, missing negatives, labels or features.

    Arguments:
        run: folder of a run with at least one finished session, of any method.
        joint: folder of a run that learned the same classes at once, on the same data; None for no such run.
        quick: leave out what needs the run's data and model, which takes minutes.

    Returns:
        The parts of the distance; `as_dict()` gives the plain numbers.

    Raises:
        UserError: a folder does not hold one run, or the joint run does not fit.
    """
    from .reports.diagnosis import diagnose_run

    return diagnose_run(Path(run), None if joint is None else Path(joint), quick)


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(one) for one in given]
