"""Write licences.md: every package of requirements.lock with its licence, as the installed packages state it.

`make docs` runs this; a test says when the page is out of date.
"""

from __future__ import annotations

import re
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
CORE = "core"
NOT_HERE = "not installed on this system"
UNKNOWN = "none stated"
COPYLEFT = "^(?!.*( OR |exception)).*GPL"  # without a way out
KINDS = {  # what licences ask beyond being named, by what their names have in them
    "copyleft": COPYLEFT,
    "copyleft for its own files": "MPL|Mozilla",
    "proprietary": "[Pp]roprietary",
    "unknown": UNKNOWN,
}
CONTAINS = "contains copyleft libraries"
# Looked up in this folder alone: a process that has imported Ray also finds the copies of packages inside of Ray.
INSTALLED = {canonicalize_name(one.name): one for one in distributions(path=[sysconfig.get_path("purelib")])}
INTRODUCTION = """# Licences

mlcil has the MIT licence. This page lists the packages of `requirements.lock` with the licences that they state, as
installed on Linux (x86-64) with Python 3.11. *core* means that every installation has the package, another word that
the extra of this name brings it, and *dev* that only development needs it. `make docs` renews the page; it is no legal
advice.

The wheel of mlcil contains none of these packages: `pip` fetches them from their own makers. Anyone who passes on an
installation, such as a container image, passes on all that is in it.

- NVIDIA's packages come with PyTorch on Linux. They are proprietary; a build of PyTorch for CPUs does without them.
- The wheels of pillow-heif contain libheif, libde265 and x265. Their own notice says that the wheels are under GPLv2
  for that reason, though the package itself is under BSD-3-Clause. Only HEIC photos need it: `mlcil[heic]`.
- numpy and scipy contain parts of GCC's runtime: libgfortran, whose exception allows that in programs of any licence,
  and libquadmath, which is under the LGPL.
- A package that states no licence in its metadata is listed as unknown, whatever its files may say.
"""


class Package(NamedTuple):
    """A package of the lock.

    Attributes:
        versions: more than one where they depend on the version of Python.
        licence: as stated.
        bundled: copyleft licences of libraries that are in it, as its licence files list them.
        needed_by: `CORE`, or the extras that bring it.
    """

    name: str
    versions: list[str]
    licence: str
    bundled: list[str]
    needed_by: list[str]

    @property
    def kind(self) -> str:
        """What the licence asks beyond being named; empty where there is nothing to say."""
        own = [kind for kind, name in KINDS.items() if re.search(name, self.licence)]
        contained = [CONTAINS for one in self.bundled if re.search(COPYLEFT, one)]
        return next(iter((*own, *contained)), "")


def packages() -> list[Package]:
    """All packages of the lock, in its order."""
    pinned: dict[str, list[Requirement]] = {}
    for line in re.findall(r"^[\w.-]+==[^\\\n]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        one = Requirement(line)
        pinned.setdefault(one.name, []).append(one)
    needed = needed_by()
    return [_package(name, every, needed.get(name, [])) for name, every in pinned.items()]


def _package(name: str, pinned: list[Requirement], needed: list[str]) -> Package:
    versions = [str(one.specifier).removeprefix("==") for one in pinned]
    if not any(one.marker is None or one.marker.evaluate() for one in pinned):  # though it may be there by chance
        return Package(name, versions, NOT_HERE, [], needed)
    installed = INSTALLED.get(name)
    if installed is None or installed.version not in versions:
        raise SystemExit(f"{name} {' or '.join(versions)} of the lock is not what is installed; call make")
    return Package(name, versions, licence_of(installed), _bundled(installed), needed)


def licence_of(installed: Distribution) -> str:
    """What the metadata state: an expression, else a short name, else a classifier."""
    stated: Any = installed.metadata
    if expression := stated.get("License-Expression"):
        return str(expression)
    name = (stated.get("License") or "").strip()
    if name and len(name) < 60 and "\n" not in name:
        return name
    every = [one for one in stated.get_all("Classifier") or [] if one.startswith("License ::")]
    return ", ".join(one.rpartition(" :: ")[2] for one in every) or UNKNOWN


def _bundled(installed: Distribution) -> list[str]:
    files = [one for one in installed.files or [] if re.search(r"\.dist-info/.*(licen|notice|copying)", str(one), re.I)]
    texts = [Path(str(one.locate())).read_text(encoding="utf-8", errors="replace") for one in files]
    return sorted({one.strip() for text in texts for one in re.findall(r"^License: *(.*GPL.*)$", text, re.MULTILINE)})


def needed_by() -> dict[str, list[str]]:
    """For each package that is installed here, `CORE` or the extras that bring it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = closure(project["dependencies"])
    found = {name: [CORE] for name in core}
    for extra, wanted in project["optional-dependencies"].items():
        own = [one for one in wanted if not one.startswith("mlcil[")]  # `dev` has all the other extras
        for name in closure(own) - core:
            found.setdefault(name, []).append(extra)
    return {name: [one for one in some if one != "dev"] or ["dev"] for name, some in found.items()}


def closure(wanted: Iterable[str]) -> set[str]:
    """The names of packages, and of all that they need here."""
    found: set[tuple[str, str]] = set()  # with the extra that is wanted of each, if any
    waiting = [part for one in wanted for part in _parts(Requirement(one))]
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += _needs(*one)
    return {name for name, _ in found}


def _parts(one: Requirement) -> list[tuple[str, str]]:
    return [(canonicalize_name(one.name), extra) for extra in ("", *one.extras)]


def _needs(name: str, extra: str) -> Iterator[tuple[str, str]]:
    for text in INSTALLED[name].requires or []:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            yield from _parts(one)


def page() -> str:
    """The text of licences.md."""
    every = packages()
    order = [*KINDS, CONTAINS]
    flagged = sorted((one for one in every if one.kind), key=lambda one: order.index(one.kind))
    stated = {one.name: "; ".join([one.licence, *(f"contains {name}" for name in one.bundled)]) for one in flagged}
    core = sum(CORE in one.needed_by for one in every)
    return "\n".join(
        [
            INTRODUCTION,
            "## What asks for more than to be named\n",
            "| kind | package | licence | needed by |\n|---|---|---|---|",
            *(f"| {one.kind} | {one.name} | {stated[one.name]} | {', '.join(one.needed_by)} |" for one in flagged),
            f"\n## All packages\n\nOf {len(every)} packages, {core} belong to the core.\n",
            "| package | version | licence | needed by |\n|---|---|---|---|",
            *(
                f"| {one.name} | {', '.join(one.versions)} | {one.licence} | {', '.join(one.needed_by) or '-'} |"
                for one in every
            ),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
