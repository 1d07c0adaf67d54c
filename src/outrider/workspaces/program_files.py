"""The files that Outrider itself runs from: its code, its packages and its interpreter.

A workspace may contain them, when Outrider is installed in a virtual environment of a project. A change to them would
change the sandbox, so commands and file tools may read them and never write them.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache

import outrider
from outrider.core.errors import Refused
from outrider.workspaces.held_paths import FileIdentity, HeldPath, hold_path


@cache
def program_folders() -> tuple[str, ...]:
    """The folders that this process was started and imported from, resolved."""
    package = os.path.dirname(os.path.realpath(outrider.__file__))
    folders = [
        os.path.dirname(package),  # also where a module could be added, such as sitecustomize
        sysconfig.get_path("stdlib"),
        os.path.dirname(os.path.realpath(sys.executable)),
    ]
    if sys.prefix != sys.base_prefix:
        folders.append(sys.prefix)
    return tuple(dict.fromkeys(map(os.path.realpath, folders)))


class _Folder:
    """One of them, with the folders above it."""

    def __init__(self, held: HeldPath) -> None:
        self.path = held.path
        self.identity = held.identity
        self.above = held.above

    def below(self, folder: FileIdentity) -> str:
        """Its path below a folder that is above it, by whatever name that one was opened."""
        names = [name for name in self.path.split("/") if name]
        return "/".join(names[self.above.index(folder) :])


class ProgramFiles:
    """Finds Outrider's program in a workspace, or in what a command asks to write, by what the folders are."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._paths = folders

    def below(self, root: HeldPath) -> tuple[str, ...]:
        """The parts of a workspace that belong to the program, relative to it. Raises Refused when all of it does."""
        return tuple(each.below(root.identity) for each in self._folders_outside(root) if root.identity in each.above)

    def check_writable(self, granted: HeldPath) -> None:
        """Raises Refused for a file or folder outside the workspace that belongs to the program, or contains it."""
        for each in self._folders_outside(granted):
            if granted.identity in each.above:
                raise Refused(f"{granted.path} contains the program of Outrider ({each.path}), which stays as it is")

    def _folders_outside(self, held: HeldPath) -> list[_Folder]:
        """All of them. Raises Refused when this is inside one of them."""
        folders = self._folders()
        for each in folders:
            if each.identity == held.identity or each.identity in held.above:
                raise Refused(f"{held.path} is a part of the program of Outrider ({each.path}), which stays as it is")
        return folders

    def _folders(self) -> list[_Folder]:
        folders: list[_Folder] = []
        for path in filter(os.path.isdir, self._paths):
            held = hold_path(path)
            held.close()
            folders.append(_Folder(held))
        return folders
