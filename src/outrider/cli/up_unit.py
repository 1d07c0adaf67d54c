"""A systemd unit for `outrider up`."""

from collections.abc import Sequence
from pathlib import Path

from outrider.cli.up_detach import outrider_argv

_UNIT = """\
# mkdir -p ~/.config/systemd/user
# outrider up --print-unit > ~/.config/systemd/user/outrider.service
# systemctl --user enable --now outrider; loginctl enable-linger

[Unit]
Description=Outrider
After=network.target

[Service]
Type=exec
ExecStart={command}
Environment={home}
# Commands that the agent started go on while Outrider restarts.
KillMode=process
TimeoutStopSec=30
Restart=always
RestartSec=1
# Something must be changed first; starting again does not help.
RestartPreventExitStatus=2
UMask=0077

[Install]
WantedBy=default.target"""


def render_unit(home: Path, options: Sequence[str]) -> str:
    """The unit that serves this home with these options."""
    command = " ".join(_systemd_quote(word) for word in (*outrider_argv(), "up", *options))
    return _UNIT.format(command=command, home=_systemd_quote(f"OUTRIDER_HOME={home}").replace("$$", "$"))


def _systemd_quote(word: str) -> str:
    """As systemd reads it back: `%` and `$` would be replaced, quotes and backslashes read as such."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != word or any(c.isspace() or c in "';" for c in word) else word
