"""Entry point of the `outrider` program.

`--version` imports nothing else; every other command line goes to `cli.commands`.
"""

import sys

from outrider import __version__


def main() -> None:
    """Run the command line and exit with its status."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"outrider {__version__}\n")
        return
    from outrider.cli.commands import run

    sys.exit(run(sys.argv[1:]))
