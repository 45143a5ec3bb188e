"""Serving a tagger over HTTP: load, put together, run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UserError
from ..core.remote import is_url


@dataclass(frozen=True)
class ServeOptions:
    """What a server does and who may ask it; see `mlcil serve --help`."""

    host: str
    port: int
    token: str | None
    allowed: Sequence[str] = ()
    photoprism: bool = False
    label_studio: bool = False
    data_root: Path | None = None
    label_studio_host: str | None = None


def run_serve(source: str, options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve a tagger until Ctrl-C.

    Raises:
        UserError: the extra is missing, the address cannot be used, or there is no such tagger.
    """
    with _extra():
        from ..web import running, tagger_server
    running.check_address(options.host, options.token)
    listening = running.listen(options.host, options.port)  # a port that is taken shows before the tagger is loaded
    from ..serving.tagger import Tagger

    more = tagger_server.More(options.photoprism, options.label_studio, options.data_root, options.label_studio_host)
    access = tagger_server.access_of(
        options.host, listening.getsockname()[1], options.token, options.allowed, secrets.token_urlsafe(24)
    )
    running.run(tagger_server.make_tagger_app(Tagger.load(source), access, more), options.host, listening, say)


def run_teach(
    source: str, photos: Sequence[str], work: Path | None, options: ServeOptions, say: Callable[[str], None]
) -> None:
    """Teach a tagger by marks until Ctrl-C.

    Arguments:
        photos: files, folders and patterns.
        work: the folder for marks; None for one beside the tagger.

    Raises:
        UserError: the extra is missing, the address cannot be used, there is no such tagger or photo, or the tagger
            cannot learn by marks.
    """
    with _extra():
        from ..web import running, tagger_server, teach_server
    running.check_address(options.host, options.token)
    from ..serving.photo_lists import list_photos
    from ..serving.tagger import Tagger
    from ..teaching.workbench import Workbench

    paths = list_photos(photos)
    if work is None and is_url(source):
        raise UserError(f"{source} is a URL; give --work, a local folder for the marks")
    folder = work or Path(source).resolve().with_name(f"{Path(source).resolve().name}.teach")
    listening = running.listen(options.host, options.port)
    words = Path(photos[0]).resolve().name if len(photos) == 1 else f"{len(photos)} places"
    bench = Workbench(Tagger.load(source), paths, folder, words)
    access = tagger_server.access_of(
        options.host, listening.getsockname()[1], options.token, options.allowed, secrets.token_urlsafe(24)
    )
    say(f"{len(paths):,} photos; marks are kept in {folder}")
    running.run(teach_server.make_teach_app(bench, access), options.host, listening, say)


@contextmanager
def _extra() -> Iterator[None]:
    """Say which packages a server needs, if one of them is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn", "h11", "python_multipart"):
            raise
        raise UserError("the server needs the extra: pip install 'mlcil[serve]'") from None
