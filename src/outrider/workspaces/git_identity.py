"""The person's name and address in git, for the commits that commands make in a sandbox, where their home is not seen.

Commands get them as the settings file of their own home, so that what a repository sets itself comes first.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping

_SECONDS = 10.0
_MAX_VALUE = 1_000
_NAMES = ("user.name", "user.email")
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def read_identity(environ: Mapping[str, str]) -> str:
    """The name and address of the person's own settings, as the text of a settings file; empty when there are none.

    Nothing of a workspace is read or run. Blocks until git has answered.
    """
    git = shutil.which("git", path=environ.get("PATH", ""))
    if git is None:
        return ""
    words = [git, "config", "--global", "--includes", "--null", "--get-regexp", r"^user\.(name|email)$"]
    try:
        ran = subprocess.run(
            words, cwd="/", env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    values: dict[str, str] = {}
    for entry in ran.stdout.decode("utf-8", "replace").split("\0"):
        name, _, value = entry.partition("\n")
        values[name] = value
    chosen = {name: values[name] for name in _NAMES if 0 < len(values.get(name, "")) <= _MAX_VALUE}
    return "[user]\n" + "".join(map(_render, chosen.items())) if chosen else ""


def _render(setting: tuple[str, str]) -> str:
    name, value = setting
    escaped = re.sub(r'[\\"\n\t]', lambda found: _ESCAPED[found[0]], value)
    return f'\t{name.partition(".")[2]} = "{escaped}"\n'
