"""A third-party tool as a stranger would ship it: a module and a dist-info folder on the path, found by entry point."""

from pathlib import Path

_MODULE = '''\
"""Pays, and writes down outside of Outrider that it did."""

from pathlib import Path

from outrider import tool
from outrider.tools.define import Replay, ToolContext


@tool(replay=Replay.NEVER)
async def pay(context: ToolContext, bill: str) -> str:
    """Pay a bill.

    bill: which one
    """
    with Path(context.workspace.root, "paid").open("a") as file:
        file.write(bill + "\\n")
    return f"paid {bill}"
'''


def install_pay(folder: Path) -> str:
    """Put the plugin into this folder; the folder, to be set as PYTHONPATH."""
    marks = folder / "outrider_pay-1.0.dist-info"
    marks.mkdir(parents=True)
    (folder / "outrider_pay.py").write_text(_MODULE)
    (marks / "METADATA").write_text("Metadata-Version: 2.1\nName: outrider-pay\nVersion: 1.0\n")
    (marks / "entry_points.txt").write_text("[outrider.tools]\npay = outrider_pay:pay\n")
    return str(folder)


def bills_paid(workspace: Path) -> list[str]:
    """Every payment that really happened, in order."""
    book = workspace / "paid"
    return book.read_text().split() if book.exists() else []
