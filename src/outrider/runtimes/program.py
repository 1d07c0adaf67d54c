"""Where a program of somebody else's is, or what is wrong with what stands in its place."""

import os
import shutil
from pathlib import Path

from outrider.core.errors import NeedsAnotherProcess


def find_program(named: str, path: str) -> str:
    """The program of this name in these folders, or at this path. Raises NotHere with what is wrong."""
    if found := shutil.which(named, path=path):
        return found
    is_path = os.sep in named
    places = [Path(named)] if is_path else [Path(folder, named) for folder in path.split(os.pathsep) if folder]
    for place in places:
        if place.is_file():
            raise NeedsAnotherProcess(f"{place} is not executable: chmod +x {place}")
        if is_path and place.is_dir():
            raise NeedsAnotherProcess(f"{place} is a folder, not a program")
    raise NeedsAnotherProcess(f"there is no program {named}")
