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
    from ..reports.table import run_table
    from ..training.config import make_config, read_config
    from ..training.run import run as execute

    values = {} if config is None else read_config(config)
    made = make_config(values, changes, "settings" if config is None else str(config))
    out = out or _default_folder(made.settings)
    console = _console()
    results = execute(made, out, console)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # further processes of the same run stay silent
        console.print(run_table(results))
        console.print(f"results: {out / 'results.json'}", soft_wrap=True, highlight=False)


def _assignments(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, pairs, strict=True):
        if not key or not equals:
            raise UserError(f"--set: got {text!r}, expected key=value")
    return {key: value for key, _, value in pairs}


def _default_folder(settings: Any) -> Path:
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
def show(
    runs: _RunDirs,
    page: Annotated[Path | None, typer.Option(help="Also write an HTML page here.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print the comparison as Markdown instead.")] = False,
) -> None:
    """Print the table of a run, or compare several."""
    from ..evaluation.results import load_results
    from ..reports.page import write_page
    from ..reports.table import comparison_table, run_table, to_markdown

    results = [load_results(one) for one in runs]
    if markdown:
        print(to_markdown(results))
    else:
        _console().print(run_table(results[0]) if len(results) == 1 else comparison_table(results))
    if page is not None:
        names = ", ".join(str(one) for one in runs)
        print(write_page(results, page, "mlcil runs", f"The runs {names}."))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo's runs and page.")] = Path("runs/demo"),
) -> None:
    """See forgetting and its cure on handwritten digits: three runs, a table and a page, in about two minutes."""
    from .demo import run_demo

    run_demo(out, _console())
