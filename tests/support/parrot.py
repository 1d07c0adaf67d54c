"""A third-party runtime as a package would install it: a module and a dist-info folder on the path."""

from pathlib import Path

_MODULE = '''\
"""Repeats the message, and says how many messages of the session it had not seen."""

from contextlib import asynccontextmanager

from outrider.core.events import Bound, Reply, Started
from outrider.core.types import RuntimeTraits


class Parrot:
    traits = RuntimeTraits("parrot", steers=False, takes_client_tools=False)

    async def started_entry(self, turn):
        return Started("parrot")

    async def run(self, turn):
        state = turn.state()
        bound = state.threads.get("parrot")
        past = turn.transcript().after(bound.saw if bound else 0)
        inputs = turn.transcript().unseen()
        saw = inputs[-1][0]
        await turn.record(Bound("parrot", "perch-1", f"t-{saw}", saw))
        text = " / ".join(message.text for _, message in inputs)
        await turn.record(Reply(f"{text}! ({len(past)} before)", saw, model="feathers"))


@asynccontextmanager
async def open_runtime(context):
    yield Parrot()
'''


def install_parrot(folder: Path) -> str:
    """Install the plugin into this folder; returns the folder, for PYTHONPATH."""
    metadata = folder / "outrider_parrot-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "outrider_parrot.py").write_text(_MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outrider-parrot\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[outrider.runtimes]\nparrot = outrider_parrot:open_runtime\n")
    return str(folder)
