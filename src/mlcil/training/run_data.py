"""The data of a run as its folder knows them: the same images in the same rows, whatever became of the table since."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..data.features import KeptStem
from ..data.images import DataSet
from ..data.protocol import Protocol, Session
from ..data.sources import Found
from .config import RunSettings
from .data_record import DataRecord
from .folder import RunFolder
from .prepare import Data, Say, prepare_data, read_data


class RunData(NamedTuple):
    """The data of a run, ready to be used.

    Attributes:
        sessions: all of the protocol, also those that are still to come.
        record: what the run is given.
    """

    data: Data
    sessions: list[Session]
    record: DataRecord


def read_run_data(
    settings: RunSettings, folder: RunFolder, say: Say, found: Found | None = None
) -> tuple[DataSet, DataRecord | None]:
    """Read the data and put it into the order that the run knows; also what it knows, if it has begun.

    Raises:
        UserError: the data cannot be read, or an image is gone that a session has seen.
    """
    before, begun = folder.record(), folder.begun_sessions()
    whole = read_data(settings, say, found)
    return (before.arranged(whole, begun=begun, run=folder.path) if before else whole), before


def prepare_run_data(
    whole: DataSet,
    before: DataRecord | None,
    settings: RunSettings,
    folder: RunFolder,
    say: Say,
    stem: KeptStem | None = None,
    change: Callable[[Protocol], Protocol] = lambda one: one,
) -> RunData:
    """Open the images, and make sure that the data are what sessions have seen.

    Arguments:
        whole, before: what `read_run_data` gave.
        stem, change: as for `prepare_data`.

    Raises:
        UserError: an image cannot be read, or what a session has learned from has changed.
    """
    data = prepare_data(whole, settings, say, stem, change)
    sessions = data.protocol.sessions(settings.validation, settings.seed)
    now = DataRecord.of(data.whole, data.protocol, sessions)
    if before and (changed := before.check(now, folder.begun_sessions(), folder.path)):
        say(f"the data changed, but not what was learned from: {changed}")
    return RunData(data, sessions, now)
