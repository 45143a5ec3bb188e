"""The commands of people with photos; each parses, calls and prints, and imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UserError
from ..core.interruption import explain_with
from ..data.class_lists import parse
from .console import make_console
from .options import assignments

ENGINE_HELP = "Who looks at the photos: local for processes of this machine, ray for a Ray cluster."
Source = Annotated[str, typer.Argument(help="Folder of a tagger or of a run, or URL of a tagger.")]
JOBS_HELP = "Number of processes; with ray, 0 is as many as the cluster has room for."


def learn(
    data: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="Photos and their labels; see `mlcil datasets`."),
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for the tagger.")] = Path("tagger"),
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="PATH", help="Tagger that learns more; it stays as it is. [default: a new one]"),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels of the table to learn, separated by commas. [default: all]")
    ] = None,
    check: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Table of known labels, to measure what has changed.")
    ] = None,
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="Give a label another name.")] = None,
    method: Annotated[str | None, typer.Option(help="Method of a new tagger. [default: analytic]")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Backbone of a new tagger, a timm model. [default: the best at hand]")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Weights of a new tagger: a file, a timm tag, or none. [default: pretrained]")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Folder or URL to which the paths in the table are relative.")
    ] = None,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "local",
    jobs: Annotated[int, typer.Option(help=JOBS_HELP, min=0)] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="<key=value>", help="Any setting, or an option of the method.")
    ] = None,
) -> None:
    """Start a tagger, or teach one more labels without the photos that it learned from before.

    Every row of the table was looked at for the labels of that table: a row without one of them is its negative. A
    label -x says that the photo does not show x. A photo that comes back keeps the labels that it was given.
    """
    explain_with(lambda: "interrupted; no tagger was changed, and the same command goes on from there")
    from ..serving.learning import LearnOptions
    from .tagging import check_free, run_learn

    chosen = None if labels is None else tuple(name for part in parse(labels) for name in part)
    check_free(out)
    work = out.with_name(f".{out.name}.learning")
    settings = {"engine": engine, "jobs": jobs, **assignments(set_ or [])}
    options = LearnOptions(images, chosen, check, method, backbone, weights, settings, work)
    run_learn(data, source, out, options, rename or [], make_console())


def predict(
    tagger: Source,
    photos: Annotated[list[str], typer.Argument(help="Photos, folders, patterns, URLs, or - to read a list of them.")],
    out: Annotated[Path | None, typer.Option(help="File to write: .csv, .jsonl or .parquet. [default: print]")] = None,
    top: Annotated[int | None, typer.Option(help="Give this many labels to each photo.", min=1)] = None,
    threshold: Annotated[float | None, typer.Option(help="One threshold for all labels.", min=0, max=1)] = None,
    precision: Annotated[
        float | None, typer.Option(help="Take thresholds by which this part of the tags is right.", min=0, max=1)
    ] = None,
    xmp: Annotated[bool, typer.Option("--xmp", help="Also write the tags into XMP sidecars.")] = False,
    xmp_remove: Annotated[
        bool,
        typer.Option("--xmp-remove", help="Only take out of the sidecars what --xmp wrote."),
    ] = False,
    adobe_names: Annotated[
        bool, typer.Option("--adobe-names", help="Call new sidecars photo.xmp and not photo.jpg.xmp.")
    ] = False,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "local",
    jobs: Annotated[int, typer.Option(help=JOBS_HELP, min=0)] = 1,
) -> None:
    """Tag photos; the same command with the same --out goes on where it was interrupted."""
    kept = "the same command goes on from there" if out else "nothing is kept; give --out to be able to go on"
    explain_with(lambda: f"interrupted; {kept}")
    from ..core.pools import make_pool
    from ..serving.photo_lists import list_photos
    from ..serving.predicting import Wish
    from .tagging import remove_sidecars, run_predict, write_sidecars

    paths = list_photos(photos, sys.stdin, has_sidecars=xmp or xmp_remove)
    if xmp_remove:
        all_done = remove_sidecars(paths, make_console())
    else:
        if out is None and (engine != "local" or jobs != 1):
            raise UserError("--engine and --jobs need --out, a file for what the processes find")
        wish, console = Wish(top, threshold, precision), make_console()
        outcomes = run_predict(tagger, paths, wish, out, lambda: make_pool(engine, jobs), console)
        bad = 0 if xmp else sum(one.error is not None for one in outcomes)
        all_done = write_sidecars(outcomes, adobe_names, console) if xmp else not bad
    if not all_done:
        sys.exit(1)


def inspect(tagger: Source) -> None:
    """Say what a tagger knows, how well, and what it learned from."""
    from .tagging import run_inspect

    run_inspect(tagger, make_console())


def forget(
    tagger: Annotated[str, typer.Argument(help="Folder or URL of a tagger.")],
    out: Annotated[Path, typer.Option(help="New folder for the tagger without them.")],
    label: Annotated[list[str] | None, typer.Option(help="Label to forget; may be repeated.")] = None,
    step: Annotated[list[int] | None, typer.Option(help="Step to take back, see `mlcil inspect`.")] = None,
) -> None:
    """Write a tagger without some labels or steps, as if they had never been."""
    from .tagging import run_forget

    run_forget(tagger, label or [], step or [], out, make_console())


def merge(
    first: Annotated[str, typer.Argument(help="Folder or URL of a tagger.")],
    second: Annotated[str, typer.Argument(help="Folder or URL of another one with the same backbone.")],
    out: Annotated[Path, typer.Option(help="New folder for the tagger that knows both.")],
) -> None:
    """Write two taggers as one, exactly as if one had learned from all photos."""
    from .tagging import run_merge

    run_merge(first, second, out, make_console())


def thresholds(
    tagger: Source,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="<label=value>", help="Choose a threshold, or auto for the tagger's own."),
    ] = None,
    precision: Annotated[
        float | None, typer.Option(help="Choose thresholds by which this part of the tags is right.", min=0, max=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the tagger with these thresholds.")] = None,
) -> None:
    """Print the thresholds of a tagger, or write it with others."""
    from .tagging import run_thresholds

    run_thresholds(tagger, set_ or [], precision, out, make_console())


def tagger(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="New folder for the tagger.")],
    session: Annotated[
        int | None, typer.Option(help="Take the model after this session. [default: the last]", min=1)
    ] = None,
    slim: Annotated[bool, typer.Option("--slim", help="Leave out what only further learning needs.")] = False,
) -> None:
    """Make a tagger of any run of any method: a folder that needs neither its data nor its weight file."""
    from ..serving.tagger import Tagger

    print(Tagger.load(run, session).save(out, slim=slim))


def evaluate(
    tagger: Source,
    data: Annotated[str, typer.Argument(metavar="TABLE", help="Photos and their labels; see `mlcil datasets`.")],
    out: Annotated[
        Path | None, typer.Option(help="New folder for the figures and a page that shows mistakes. [default: print]")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Folder or URL to which the paths in the table are relative.")
    ] = None,
) -> None:
    """Measure how well a tagger does on photos whose labels are known, and show its mistakes.

    Every row of the table was looked at for the labels of that table: a row without one of them is its negative. A
    label -x says that the photo does not show x.
    """
    from .evaluation import run_evaluate

    if not run_evaluate(tagger, data, images, out, make_console()):
        sys.exit(1)


def export(
    tagger: Source,
    onnx: Annotated[Path | None, typer.Option(help="ONNX file to write, with a script that uses it beside it.")] = None,
    slim: Annotated[
        Path | None, typer.Option(help="New folder for a tagger without what only further learning needs.")
    ] = None,
) -> None:
    """Write a tagger for other programs: as an ONNX model, or without its sums."""
    from .tagging import run_export

    run_export(tagger, onnx, slim, make_console())


def serve(
    tagger: Source,
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="MLCIL_TOKEN", help="Secret that every request must have. [default: none]")
    ] = None,
    photoprism: Annotated[bool, typer.Option("--photoprism", help="Also label photos for PhotoPrism.")] = False,
    label_studio: Annotated[bool, typer.Option("--label-studio", help="Also be a backend of Label Studio.")] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of images that Label Studio names by path. [default: none]")
    ] = None,
    label_studio_host: Annotated[
        str | None, typer.Option(metavar="URL", help="Label Studio to fetch images from. [default: none]")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name of this machine; may be repeated.")
    ] = None,
) -> None:
    """Tag photos over HTTP: a page to drop photos on, and an interface for programs."""
    from .console import say
    from .serving import ServeOptions, run_serve

    options = ServeOptions(host, port, token, allow_host or (), photoprism, label_studio, data_root, label_studio_host)
    console = make_console()
    run_serve(tagger, options, lambda line: say(console, line))


def teach(
    tagger: Annotated[str, typer.Argument(help="Folder of a closed-form tagger; it stays as it is.")],
    photos: Annotated[list[str], typer.Argument(help="Photos, folders or patterns to teach with.")],
    work: Annotated[
        Path | None, typer.Option(help="Folder for marks and thumbnails. [default: beside the tagger, TAGGER.teach]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8001,
    token: Annotated[
        str | None, typer.Option(envvar="MLCIL_TOKEN", help="Secret that every request must have. [default: none]")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name of this machine; may be repeated.")
    ] = None,
) -> None:
    """Teach labels by clicking: a page that shows photos, learns from every mark, and saves a new tagger.

    Every mark is on disk at once, and the same command goes on from there.
    """
    from .console import say
    from .serving import ServeOptions, run_teach

    console = make_console()
    options = ServeOptions(host, port, token, allow_host or ())
    run_teach(tagger, photos, work, options, lambda line: say(console, line))


COMMANDS = (learn, predict, inspect, forget, merge, thresholds, tagger, export, evaluate, serve, teach)
