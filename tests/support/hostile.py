"""The hostile commands of hostile.txt, by section."""

from pathlib import Path

SECTIONS = ("reading", "writing", "kernel", "network", "ruinous")


def hostile(section: str) -> list[str]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    part = text.partition(f"\n[{section}]\n")[2].partition("\n\n[")[0]
    return [line for line in part.splitlines() if line]
