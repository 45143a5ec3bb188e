"""What can be checked about runs before any of them starts, most of it without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.errors import UserError
from ..data.protocol import session_classes
from ..data.published import BENCHMARKS
from ..data.sources import SOURCES, Found, kind_of, read
from ..models.weight_files import weight_file
from ..training.config import RunSettings
from ..training.hardware import check_hardware

Say = Callable[[str], None]


def check_run(settings: RunSettings, is_local: bool = True) -> None:
    """Check that the hardware and the file of weights that a run asks for are there.

    Arguments:
        is_local: whether it uses the hardware of this machine.

    Raises:
        UserError: one of them is not.
    """
    if is_local:
        check_hardware(settings.accelerator, settings.devices)
    weight_file(settings.weights)


def check_weights(settings: RunSettings) -> None:
    """Check that pretrained weights that have to be fetched can be; imports torch.

    Raises:
        UserError: they cannot.
    """
    if settings.weights is not None and weight_file(settings.weights) is None:
        from ..models.weights import check_fetchable

        check_fetchable(settings.backbone, settings.weights)


def check_classes(settings: RunSettings, say: Say) -> Found:
    """Read the list of a data set, check that it has the classes of the protocol, and return it.

    Raises:
        UserError: the list cannot be read, or the protocol or the order does not fit its classes.
    """
    if fixed := SOURCES[kind_of(settings.data)].classes:
        session_classes(fixed, settings.protocol, settings.order)
    say(f"reading {settings.data}")
    found = read(settings.data, settings.images)
    session_classes(found.classes, settings.protocol, settings.order)
    return found


def is_read_quickly(data: str) -> bool:
    """Whether reading the list of a data set is quicker than importing torch.

    A table is, and so is finding out that there is nothing; a folder of annotations is not.
    """
    return kind_of(data) not in BENCHMARKS


def check_grid(runs: Mapping[str, RunSettings], is_local: bool, say: Say) -> None:
    """Check what the runs of a grid share; each list is read once.

    Arguments:
        runs: the settings of each run by its name.
        is_local: whether they use the hardware of this machine.

    Raises:
        UserError: something is wrong; the message names the first run that has it.
    """
    lists: dict[tuple[str, str | None], tuple[str, ...]] = {}
    checked = set()
    for name, settings in runs.items():
        data = settings.data, settings.images
        shared = (
            *data,
            settings.protocol,
            settings.order,
            settings.backbone,
            settings.weights,
            settings.accelerator,
            settings.devices,
        )
        if shared in checked:
            continue
        checked.add(shared)
        try:
            check_run(settings, is_local)
            check_weights(settings)
            if data in lists:
                session_classes(lists[data], settings.protocol, settings.order)
            else:
                lists[data] = check_classes(settings, say).classes
        except UserError as error:
            raise UserError(f"run {name}: {error}") from error
