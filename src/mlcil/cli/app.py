"""The `mlcil` command: every subcommand parses, calls and prints, and imports what it needs when it runs."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UserError, one_line
from ..core.interruption import explain_with, install, is_first_process
from ..core.output import escape_what_cannot_be_shown
from .console import make_console
from .options import with_settings
from .photo_commands import COMMANDS

app = typer.Typer(
    help="Teach an image tagger new labels without the old data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)
# What the system may refuse for a file that somebody has named, and nobody but them can do something about.
_REFUSALS = {errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}


for command in COMMANDS:  # of people with photos, who look at the list first
    app.command()(command)


def main() -> None:
    """Run the command line; a user's mistake is one line, a bug keeps its traceback."""
    install()
    escape_what_cannot_be_shown()
    try:
        app()
    except UserError as error:
        _print_error(str(error))
        sys.exit(2)
    except OSError as error:
        if error.filename is None or error.errno not in _REFUSALS:
            raise
        _print_error(one_line(f"cannot use {error.filename}: {error.strerror}"))
        sys.exit(2)


def _print_error(text: str) -> None:
    if is_first_process():
        print(f"mlcil: {text}", file=sys.stderr)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from .. import __version__

        print(f"mlcil {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand not in ("run", "grid"):  # these say more
        explain_with(lambda: "interrupted")


@app.command(no_args_is_help=True)
@with_settings()
def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="YAML file of settings; the options below override it.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Published row to run, see `mlcil presets`; needs --data.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; if it holds one, that run is continued.")] = None,
    *,
    changes: dict[str, str],
) -> None:
    """Run an experiment, or continue one: the same command with the same --out resumes where it stopped."""
    from .run import run_experiment

    run_experiment(changes, config, preset, out, make_console())


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="Data set, such as labels.csv, a folder of photos, or coco:PATH.")],
    protocol: Annotated[
        str | None, typer.Option(help="Classes of each session: read the data as `mlcil run`, and say what each sees.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="Class order, as for `mlcil run`.")] = None,
    images: Annotated[str | None, typer.Option(help="Folder to which the image paths in a table are relative.")] = None,
    negatives: Annotated[str, typer.Option(help="auto, none or labelled, as for `mlcil run`.")] = "auto",
    decode: Annotated[bool, typer.Option(help="Decode every image, and not only look at its header.")] = False,
) -> None:
    """Say what a data set holds, what a protocol would make of it, and what to fix first."""
    from .check import check_data

    if not check_data(data, images, protocol, order, negatives, decode, make_console()):
        sys.exit(1)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="Method to show the options of.")] = None) -> None:
    """List the methods, or the options of one method."""
    from .listings import method_options, method_table

    make_console().print(method_table() if name is None else method_options(name))


@app.command()
def settings() -> None:
    """List the settings that every run has."""
    from .listings import setting_table

    make_console().print(setting_table())


@app.command()
def datasets() -> None:
    """List the kinds of data sets and how to refer to one."""
    from .listings import source_table

    make_console().print(source_table())


@app.command()
def presets(
    name: Annotated[
        str | None, typer.Argument(help="Preset to show, with its settings and the published numbers.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="List only the presets of this group, such as table1.")] = None,
) -> None:
    """List the published rows that can be run by name, or show one."""
    from .listings import preset_page, preset_table

    make_console().print(preset_table(group) if name is None else preset_page(name))


@app.command()
@with_settings(without=("method", "protocol", "seed", "engine", "jobs"))
def grid(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="YAML file that lists the runs.")] = None,
    only: Annotated[str | None, typer.Option(help="Run only these runs of the file, separated by commas.")] = None,
    preset_group: Annotated[
        str | None, typer.Option(help="Run the published rows of a group such as table1; see `mlcil presets`.")
    ] = None,
    presets: Annotated[str | None, typer.Option(help="Run these published rows, separated by commas.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Run these methods, separated by commas, each NAME or NAME:BUFFER.")
    ] = None,
    protocols: Annotated[
        str,
        typer.Option(help="Protocols for --methods, separated by commas, or by semicolons if one lists class names."),
    ] = "B0-C2",
    seeds: Annotated[str, typer.Option(help="Random seeds, separated by commas.")] = "0",
    jobs: Annotated[int, typer.Option(help="Number of runs at a time.", min=1)] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
    out: Annotated[Path, typer.Option(help="Folder of the grid; if it holds one, that grid is continued.")] = Path(
        "runs/grid"
    ),
    share: Annotated[bool, typer.Option(help="Train identical first sessions once and share them.")] = True,
    report: Annotated[bool, typer.Option(help="Write a report into the folder at the end.")] = True,
    *,
    changes: dict[str, str],
) -> None:
    """Run many experiments, or continue them.

    They are published rows, methods by protocols, or the runs that a file lists. The settings below hold for all runs
    and override those of a preset, a file or a method. An option of a method goes to the methods that have it.
    """
    from .grid import requested_runs, run_grid

    runs = requested_runs(file, only, preset_group, presets, methods, protocols, seeds, changes)
    if not run_grid(runs, out, jobs, engine, share, report, make_console()):
        sys.exit(1)


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    markdown: Annotated[bool, typer.Option(help="Print the tables as Markdown.")] = False,
) -> None:
    """Print the sessions of a run, or the tables that compare several runs."""
    from ..reports.collect import collect
    from ..reports.table import to_markdown, to_terminal
    from ..reports.tables import comparison_tables, session_table

    found = collect(runs)
    results = [run.result for group in found.groups for run in group.runs]
    tables = [session_table(results[0])] if len(results) == 1 else comparison_tables(found)
    for table in tables:
        print(to_markdown(table)) if markdown else make_console().print(to_terminal(table))
    for problem in found.problems:
        _print_error(problem)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold them, such as a grid's.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "mlcil report",
    images: Annotated[int, typer.Option(help="Number of test images with attention maps.", min=0)] = 4,
) -> None:
    """Write a page about runs, with every table as Markdown, LaTeX and CSV and every figure as PNG and SVG."""
    from ..reports.report import write_report

    print(write_report(runs, out, title=title, images=images, say=lambda text: print(text, file=sys.stderr)))


@app.command()
def explain(
    run: Annotated[str, typer.Argument(metavar="TAGGER", help="Folder of a tagger or of a run, or URL of a tagger.")],
    images: Annotated[list[str], typer.Argument(help="Image files, or URLs of them.")],
    out: Annotated[Path, typer.Option(help="Folder of the drawings.")] = Path("explained"),
    session: Annotated[
        int | None, typer.Option(help="Use the model after this session. [default: the last]", min=1)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Lowest score of a tag. [default: the thresholds stored with the model, else 0.8]", min=0, max=1
        ),
    ] = None,
    most: Annotated[int, typer.Option(help="Maximum number of tags of a photo.", min=1)] = 10,
    json: Annotated[
        Path | None, typer.Option(help="Also write tags, scores and places to this file; - prints them instead.")
    ] = None,
) -> None:
    """Tag photos, and draw where in each of them the evidence for its tags is."""
    from .explain import explain_photos

    if not explain_photos(run, images, out, session, threshold, most, json):
        sys.exit(1)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a run, or a folder with one run per seed.")],
    second: Annotated[Path, typer.Argument(help="Another one, with the same data and protocol.")],
    session: Annotated[
        int | None, typer.Option(help="Compare after this session. [default: the last that both have]", min=1)
    ] = None,
    resamples: Annotated[int, typer.Option(help="Number of bootstrap resamples.", min=100)] = 1000,
    json: Annotated[Path | None, typer.Option(help="Also write the numbers to this file.")] = None,
) -> None:
    """Compare two runs class by class, and say whether they differ by more than noise."""
    from ..core.files import write_json
    from ..reports.comparison import compare_runs, comparison_view

    found = compare_runs([first], [second], session, resamples)
    make_console().print(comparison_view(found))
    if json is not None:
        write_json(json, found.as_dict())


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of a run with at least one finished session, of any method.")],
    joint: Annotated[
        Path | None, typer.Option(help="Folder of a run that learned the same classes at once, on the same data.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what needs the run's data and model, which takes minutes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write diagnosis.json and diagnosis.md into this folder.")
    ] = None,
) -> None:
    """Say why a method loses against joint training: drift, missing negatives, labels or features."""
    from .diagnose import diagnose_and_print

    diagnose_and_print(run, joint, quick, out, make_console())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("runs/demo"),
) -> None:
    """See forgetting and its cure on handwritten digits: three runs and a page, in two to three minutes."""
    explain_with(lambda: "interrupted; the same command goes on from there")
    from .demo import run_demo

    run_demo(out, make_console())
