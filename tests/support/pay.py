"""A third-party tool: a module and a dist-info folder on the path, found by its entry point."""

from pathlib import Path

_MODULE = '''\
"""Pays, and records outside of Outrider that it did."""

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
    """Install the plugin in this folder; the value for PYTHONPATH."""
    metadata = folder / "outrider_pay-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "outrider_pay.py").write_text(_MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outrider-pay\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[outrider.tools]\npay = outrider_pay:pay\n")
    return str(folder)


def bills_paid(workspace: Path) -> list[str]:
    """Every payment that really happened, in order."""
    payments = workspace / "paid"
    return payments.read_text().split() if payments.exists() else []
