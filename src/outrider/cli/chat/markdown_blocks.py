"""Splitter of streamed Markdown into finished blocks and a pending rest. Pure."""

import re

_FENCE = re.compile(r"\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)*(`{3,}(?=[^`]*$)|~{3,})")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_LIST_CONTINUATION = " \t-*+0123456789"
"""First characters of a line that may continue a list after a blank line."""
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")


class MarkdownSplitter:
    """Splits a stream of text. The blocks it returns and `pending_text`, joined, are exactly its input."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._blank_lines: list[str] = []
        """Blank lines that belong to the open list if it continues."""
        self._partial_line = ""
        self._fence = ""
        self._in_list = False

    @property
    def pending_text(self) -> str:
        """The text that is not part of a finished block yet."""
        return "".join((*self._lines, *self._blank_lines, self._partial_line))

    def feed(self, text: str) -> list[str]:
        """The blocks that this text finished."""
        head, mark, tail = (self._partial_line + text).rpartition("\n")
        whole, self._partial_line = head + mark, tail
        done: list[str] = []
        for line in whole.split("\n")[:-1]:
            self._feed_line(line + "\n", done)
        if self._blank_lines and tail and tail[0] not in _LIST_CONTINUATION:
            self._finish_block(done)
        return done

    def finish(self) -> list[str]:
        """The last blocks, at the end of the text."""
        done: list[str] = []
        line, self._partial_line = self._partial_line, ""
        if line:
            self._feed_line(line, done)
        if self._lines:
            self._finish_block(done)
        self._fence = ""
        return done

    def _feed_line(self, line: str, done: list[str]) -> None:
        if self._fence:
            self._lines.append(line)
            if _closes_fence(line, self._fence):
                self._fence = ""
                if not self._in_list:
                    self._finish_block(done)
        elif not line.strip():
            self._feed_blank_line(line, done)
        else:
            self._feed_text_line(line, done)

    def _feed_blank_line(self, line: str, done: list[str]) -> None:
        if self._in_list:
            self._blank_lines.append(line)
            return
        has_text = self._has_text
        self._lines.append(line)
        if has_text:
            self._finish_block(done)

    def _feed_text_line(self, line: str, done: list[str]) -> None:
        is_item = bool(_ITEM.match(line))
        if self._in_list and self._blank_lines:
            if is_item or line[:1].isspace():
                self._lines += self._blank_lines
                self._blank_lines = []
            else:
                self._finish_block(done)
        fence, heading = _FENCE.match(line), _HEADING.match(line)
        ends_list = self._in_list and not line[:1].isspace() and bool(heading or fence) and not is_item
        if (ends_list or (not self._in_list and (heading or fence))) and self._has_text:
            self._finish_block(done)
        if is_item and not self._has_text:
            self._in_list = True
        self._lines.append(line)
        if fence:
            self._fence = fence[1]
        elif heading and not self._in_list:
            self._finish_block(done)

    @property
    def _has_text(self) -> bool:
        return any(line.strip() for line in self._lines)

    def _finish_block(self, done: list[str]) -> None:
        done.append("".join((*self._lines, *self._blank_lines)))
        self._lines, self._blank_lines, self._in_list = [], [], False


def _closes_fence(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and not bare.strip(fence[0])


def split_blocks(text: str) -> list[str]:
    """All blocks of a complete text."""
    blocks = MarkdownSplitter()
    return [*blocks.feed(text), *blocks.finish()]
