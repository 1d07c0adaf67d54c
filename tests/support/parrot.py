"""A third-party runtime as a stranger would ship it: a module and a dist-info folder on the path."""

from pathlib import Path

_MODULE = '''\
"""Repeats what it is told, and says how much of the session it was given that it had not seen."""

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
        said = " / ".join(words.text for _, words in inputs)
        await turn.record(Reply(f"{said}! ({len(past)} before)", saw, model="feathers"))


@asynccontextmanager
async def open_runtime(context):
    yield Parrot()
'''


def install_parrot(folder: Path) -> str:
    """Put the plugin into this folder; the folder, to be set as PYTHONPATH."""
    marks = folder / "outrider_parrot-1.0.dist-info"
    marks.mkdir(parents=True)
    (folder / "outrider_parrot.py").write_text(_MODULE)
    (marks / "METADATA").write_text("Metadata-Version: 2.1\nName: outrider-parrot\nVersion: 1.0\n")
    (marks / "entry_points.txt").write_text("[outrider.runtimes]\nparrot = outrider_parrot:open_runtime\n")
    return str(folder)
