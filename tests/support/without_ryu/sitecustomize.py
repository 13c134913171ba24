"""First in PYTHONPATH, this hides Ryu from Python and the programs it starts: ``make os-ken``."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = ("ryu",)


class _Paths(PathFinder):
    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        return (
            None
            if fullname in HIDDEN
            else super().find_spec(fullname, path, target)
        )


sys.meta_path[sys.meta_path.index(PathFinder)] = _Paths
