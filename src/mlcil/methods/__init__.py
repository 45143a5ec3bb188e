"""How it learns: one short file per method and the registry that names them.

`mlcil.methods` is this package and, in the public interface, also the function that lists all methods. Python binds a
package's name in its parent, so one name can be both only if the package itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Method


class _Methods(ModuleType):
    def __call__(self) -> dict[str, type[Method]]:
        """Every method by its name."""
        from .registry import all_methods

        return dict(all_methods())


sys.modules[__name__].__class__ = _Methods
