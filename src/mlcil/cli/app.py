"""The `mlcil` command: every subcommand parses, calls and prints, and imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import UserError

app = typer.Typer(
    help="Teach an image tagger new labels without the old data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_RunDirs = Annotated[list[Path], typer.Argument(help="Folders of runs.")]


def main() -> None:
    """Run the command line; a user's mistake is one line, a bug keeps its traceback."""
    try:
        app()
    except UserError as error:
        _complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        _complain("interrupted; the same command continues the run")
        sys.exit(130)


def _complain(text: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # several processes of a run say it once
        print(f"mlcil: {text}", file=sys.stderr)


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=140)  # files have no edge


def _version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(f"mlcil {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file of settings; options given here win over it.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A published row, see `mlcil presets`; needs --data.")] = None,
    method: Annotated[str | None, typer.Option(help="Method, see `mlcil methods`.")] = None,
    data: Annotated[str | None, typer.Option(help="coco:PATH, voc:PATH, table:FILE or digits.")] = None,
    images: Annotated[str | None, typer.Option(help="Folder that a table's relative image paths start from.")] = None,
    protocol: Annotated[str | None, typer.Option(help="B<base>-C<step>, joint, or class lists a,b|c,d.")] = None,
    order: Annotated[str | None, typer.Option(help="Class order: shuffle:SEED or all names with commas.")] = None,
    backbone: Annotated[str | None, typer.Option(help="A timm model, or small_conv.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight file, timm tag, pretrained, or none.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the square that images are squashed to.")] = None,
    buffer: Annotated[str | None, typer.Option(help="Exemplars kept per class, or total:N.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs per session.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all devices.")] = None,
    on_bad_image: Annotated[str | None, typer.Option(help="stop, or skip and list it.")] = None,
    devices: Annotated[int | None, typer.Option(help="GPUs or processes on this machine.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Machines.")] = None,
    strategy: Annotated[str | None, typer.Option(help="auto or ddp.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true, 16-mixed or bf16-mixed.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that prepare batches.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, any setting or option of the method; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; a used one is continued.")] = None,
) -> None:
    """Run an experiment, or continue one: the same command with the same --out goes on where it stopped."""
    given: dict[str, Any] = {
        "method": method,
        "data": data,
        "images": images,
        "protocol": protocol,
        "order": order,
        "backbone": backbone,
        "weights": weights,
        "image_size": image_size,
        "buffer": buffer,
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "on_bad_image": on_bad_image,
        "devices": devices,
        "nodes": nodes,
        "strategy": strategy,
        "precision": precision,
        "workers": workers,
    }
    changes = {key: value for key, value in given.items() if value is not None} | _assignments(set_ or [])
    from ..reports.table import to_terminal
    from ..reports.tables import session_table
    from ..training.config import make_config, read_config
    from ..training.run import run as execute

    if preset is not None and config is not None:
        raise UserError(f"got both the file {config} and the preset {preset!r}, expected one of them")
    if preset is not None:
        from ..experiments.presets import find_preset, preset_values

        values, where = preset_values(find_preset(preset), data), f"preset {preset}"
    else:
        values, where = ({}, "settings") if config is None else (read_config(config), str(config))
    made = make_config(values, changes, where)
    out = out or _default_folder(made.settings)
    console = _console()
    results = execute(made, out, console)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # further processes of the same run stay silent
        console.print(to_terminal(session_table(results)))
        console.print(f"results: {out / 'results.json'}", soft_wrap=True, highlight=False)


def _assignments(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, pairs, strict=True):
        if not key or not equals:
            raise UserError(f"--set: got {text!r}, expected key=value")
    return {key: value for key, _, value in pairs}


def _default_folder(settings: Any) -> Path:
    if settings.preset is not None:
        return Path("runs") / f"{settings.preset}-seed{settings.seed}"
    kind = settings.data.partition(":")[0]
    protocol = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in settings.protocol)[:40]
    return Path("runs") / f"{settings.method}-{kind}-{protocol}-seed{settings.seed}"


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="Show this method's options.")] = None) -> None:
    """List the methods, or the options of one."""
    from .listings import method_options, method_table

    _console().print(method_table() if name is None else method_options(name))


@app.command()
def settings() -> None:
    """List the settings that every run has."""
    from .listings import setting_table

    _console().print(setting_table())


@app.command()
def datasets() -> None:
    """List the kinds of data sets and how to name one."""
    from .listings import source_table

    _console().print(source_table())


@app.command()
def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show this preset: its settings and the published numbers.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Only those of a group, such as table1.")] = None,
) -> None:
    """List the published rows that can be run by name, or show one."""
    from .listings import preset_page, preset_table

    _console().print(preset_table(group) if name is None else preset_page(name))


@app.command()
def grid(
    file: Annotated[Path | None, typer.Argument(help="YAML file that lists the runs.")] = None,
    preset_group: Annotated[
        str | None, typer.Option(help="Published rows, such as table1; see `mlcil presets`.")
    ] = None,
    presets: Annotated[str | None, typer.Option(help="Published rows by name, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods with commas, each NAME or NAME:BUFFER.")] = None,
    protocols: Annotated[
        str, typer.Option(help="Protocols with commas, for --methods; with semicolons if one has class lists.")
    ] = "B0-C2",
    seeds: Annotated[str, typer.Option(help="Seeds with commas.")] = "0",
    jobs: Annotated[int, typer.Option(help="Runs at a time.", min=1)] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
    data: Annotated[str | None, typer.Option(help="The data set of all runs.")] = None,
    weights: Annotated[str | None, typer.Option(help="The pretrained weights of all runs.")] = None,
    devices: Annotated[int | None, typer.Option(help="GPUs or processes of each run.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value for all runs; a method's option goes to those that have it; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the grid; a used one is continued.")] = Path("runs/grid"),
    share: Annotated[bool, typer.Option(help="Train first sessions that are the same once.")] = True,
    report: Annotated[bool, typer.Option(help="Write a report into the folder at the end.")] = True,
) -> None:
    """Run many experiments, or continue them: published rows, methods by protocols, or those that a file lists."""
    from .grid import GridRequest, run_grid

    given = {"data": data, "weights": weights, "devices": devices}
    changes = {key: value for key, value in given.items() if value is not None} | _assignments(set_ or [])
    request = GridRequest(file, preset_group, presets, methods, protocols, seeds, changes)
    if not run_grid(request, out, jobs, engine, share, report, _console()):
        sys.exit(1)


@app.command()
def show(
    runs: _RunDirs,
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
        print(to_markdown(table)) if markdown else _console().print(to_terminal(table))
    for problem in found.problems:
        _complain(problem)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold them, such as a grid's.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "mlcil report",
    images: Annotated[int, typer.Option(help="Test images to show attention maps of; 0 for none.", min=0)] = 4,
) -> None:
    """Write a page about runs, with every table as Markdown, LaTeX and CSV and every figure as PNG and SVG."""
    from ..reports.report import write_report

    print(write_report(runs, out, title=title, images=images, say=_tell))


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("explained"),
    session: Annotated[
        int | None, typer.Option(help="The model after this session; the last by default.", min=1)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Tags with this score or more; by default those above the stored thresholds, or 0.8.", min=0, max=1
        ),
    ] = None,
    most: Annotated[int, typer.Option(help="So many tags at most.", min=1)] = 4,
) -> None:
    """Show where in an image the evidence for each predicted tag lies."""
    from ..reports.attention_maps import explain_files

    for picture in explain_files(run, images, out, session=session, threshold=threshold, most=most):
        print(picture)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A run, or a folder with a run per seed.")],
    second: Annotated[Path, typer.Argument(help="Another one on the same data and protocol.")],
    session: Annotated[
        int | None, typer.Option(help="After this session; the last that both have by default.", min=1)
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=100)] = 1000,
    json: Annotated[Path | None, typer.Option(help="Also write the figures here.")] = None,
) -> None:
    """Compare two runs class by class, and say whether they differ by more than noise."""
    from ..core.files import write_json
    from ..reports.comparison import compare_runs, comparison_view

    found = compare_runs([first], [second], session, resamples)
    _console().print(comparison_view(found))
    if json is not None:
        write_json(json, found.as_dict())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo's runs and page.")] = Path("runs/demo"),
) -> None:
    """See forgetting and its cure on handwritten digits: three runs, a table and a page, in two to three minutes."""
    from .demo import run_demo

    run_demo(out, _console())
