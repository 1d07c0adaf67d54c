"""The practice model's own words, and how it quotes those of others."""

import re

PLUG_IN = (
    "To use a real model: set `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`, or `outrider config set model ollama:llama3.2`."
)
INTRODUCTION = "_This is the built-in practice model: a few rules, no language model._"
ABOUT = (
    "I am Outrider's built-in practice model. I am no language model: I follow a few fixed rules, "
    "so that you can try Outrider without a key and without a network. "
    "What I do with files and commands is real, and what I say about them comes from them."
)
EXAMPLES = """I understand plain requests like these, also several joined by "then":

- `list the files` · `what is in src?` · `how many files are in src`
- `read README.md` · `show lines 10-20 of app.py` · `how many lines has app.py`
- `find TODO in src` · `where is main defined`
- `write notes.txt saying hello` · `append bye to notes.txt` · `replace hello with hi in notes.txt`
- `summarise README.md` (its headings and first sentences)
- `run ls -la` · `run make in the background and tell me` · `what is running?`
- `show the output of task t-abc123` · `wait for the last task` · `kill task t-abc123`"""


def code(text: str) -> str:
    """The text as inline code, whatever is in it."""
    flat = " ".join(text.split()) or " "
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    return f"{ticks} {flat} {ticks}" if "`" in flat else f"`{flat}`"


def fenced(lines: list[str], kind: str = "") -> str:
    """The lines as a code block that nothing in them can close."""
    longest = max((len(run) for line in lines for run in re.findall(r"`{3,}", line)), default=2)
    fence = "`" * (longest + 1)
    return "\n".join([f"{fence}{kind}", *lines, fence])


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def clipped(text: str, longest: int = 120) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[:longest] + " …"
