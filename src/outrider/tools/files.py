"""The built-in tools `read`, `write`, `edit` and `list`."""

from collections.abc import Mapping
from functools import partial
from typing import BinaryIO

from outrider.core.approvals import ApprovalRequest, argument_details
from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import ToolContext, WorkspaceItem
from outrider.core.text import plural, size
from outrider.core.types import Image, Replay
from outrider.system.images import sniff_media_type
from outrider.tools.define import in_thread, result, tool
from outrider.tools.text_files import (
    LineRange,
    TextFile,
    bom_of,
    is_already_replaced,
    parse_text,
    read_lines,
    render_text,
    replace_passage,
)

__all__ = ["edit", "list_folder", "read", "write"]
_MAX_CHARS = 28_000
"""Characters of a file in one result, less than the limit of any result."""
_MAX_ITEMS = 500
_MAX_IMAGE_SIZE = 5 * 1024 * 1024
_SNIFFED = 8_192
_KINDS = (
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive (or an office document, a jar, a wheel)"),
    (b"\x1f\x8b", "gzip-compressed"),
    (b"BZh", "bzip2-compressed"),
    (b"\xfd7zXZ\x00", "xz-compressed"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x00asm", "WebAssembly"),
    (b"OggS", "Ogg audio or video"),
    (b"ID3", "MP3 audio"),
)


@tool(replay=Replay.SAFE)
def read(context: ToolContext, path: str, offset: int = 1, limit: int = 400) -> Result:
    """Read a text file or an image. Text comes after a header that names the lines.

    path: relative to the workspace
    offset: the first line to read, counted from 1
    limit: maximum number of lines
    """
    first, limit = max(1, offset), max(1, limit)
    with context.workspace.open_read(path) as file:
        head = file.read(_SNIFFED)
        media = sniff_media_type(head)
        if media:
            return _image(context, path, file, head, media)
        if bom_of(head)[1].startswith("utf-16"):
            return _render_page(path, _line_range_of(parse_text(context.workspace.read(path)), first, limit))
        kind = next((kind for magic, kind in _KINDS if head.startswith(magic)), "")
        if kind or b"\0" in head:
            about = f"{kind or 'binary'}, {size(file.seek(0, 2))}"
            return result(f"{path} is not text: {about}", about)
        file.seek(len(bom_of(head)[0]))
        return _render_page(path, read_lines(file, first, limit, _MAX_CHARS))


@tool(replay=Replay.NEVER)
def write(context: ToolContext, path: str, content: str) -> Result:
    """Write a file: create it, or replace all of it. Missing folders are created.

    path: relative to the workspace
    content: the whole content of the file
    """
    raw = render_text(TextFile(content))
    context.workspace.write(path, raw, granted=context.granted)
    return _written(path, content, raw)


@write.requests_approval
async def _request_write(context: ToolContext, path: str, content: str) -> ApprovalRequest | None:
    return await _request(context, "write", {"path": path, "content": content})


@write.reconciles
def _reconcile_write(context: ToolContext, path: str, content: str) -> Result | None:
    try:
        raw = render_text(TextFile(content))
        return _written(path, content, raw) if context.workspace.read(path) == raw else None
    except Refused:
        return None


@tool(replay=Replay.NEVER)
def edit(context: ToolContext, path: str, old: str, new: str, all: bool = False) -> Result:
    """Replace one passage of a text file. The old text must match exactly and occur exactly once.

    path: relative to the workspace
    old: the text to replace, with enough context to be unique
    new: the text to put in its place
    all: replace every occurrence
    """
    before = context.workspace.read(path)
    if b"\0" in before[:_SNIFFED] and not bom_of(before)[1].startswith("utf-16"):
        raise Refused(f"{path} is not a text file")
    text, count = replace_passage(parse_text(before), old, new, all)
    context.workspace.write(path, render_text(text), before, context.granted)
    places = plural(count, "place")
    return result(f"edited {path} in {places}", f"edited {places}")


@edit.requests_approval
async def _request_edit(
    context: ToolContext, path: str, old: str, new: str, all: bool = False
) -> ApprovalRequest | None:
    return await _request(context, "edit", {"path": path, "old": old, "new": new, "all": all})


async def _request(context: ToolContext, tool: str, arguments: Mapping[str, object]) -> ApprovalRequest | None:
    """What a person is asked for a file that git obeys later, outside any sandbox."""
    need = await in_thread(partial(context.workspace.write_need, str(arguments["path"])))
    workspace, details = context.session.workspace, argument_details(arguments)
    return ApprovalRequest(tool, "", (need,), workspace, details=details) if need else None


@edit.reconciles
def _reconcile_edit(context: ToolContext, path: str, old: str, new: str, all: bool = False) -> Result | None:
    try:
        text = parse_text(context.workspace.read(path))
    except Refused:
        return None
    if not is_already_replaced(text, old, new):
        return None
    return result(f"{path} has the new text and no longer the old one", "edited")


@tool(replay=Replay.SAFE, name="list")
def list_folder(context: ToolContext, path: str = ".", depth: int = 1) -> Result:
    """List the content of a folder, with sizes. Folders end with a slash.

    path: relative to the workspace
    depth: number of levels, 1 to 3
    """
    listing = context.workspace.list(path, min(3, max(1, depth)))
    lines = [_render_item(item) for item in listing.items[:_MAX_ITEMS]]
    omitted = len(listing.items) - len(lines)
    if omitted or listing.cut:
        more = f"at least {omitted:,} more, since the listing is incomplete" if listing.cut else f"{omitted:,} more"
        lines.append(f"[… {more}; list a folder below this one, or use search …]")
    return result("\n".join(lines) or f"{path} is empty", plural(len(listing.items), "item"))


def _image(context: ToolContext, path: str, file: BinaryIO, head: bytes, media: str) -> Result:
    content = head + file.read(_MAX_IMAGE_SIZE + 1 - len(head))
    if len(content) > _MAX_IMAGE_SIZE:
        raise Refused(
            f"{path} is an image ({media}) larger than {size(_MAX_IMAGE_SIZE)}; make a smaller copy and read that"
        )
    about = f"{media}, {size(len(content))}"
    return result(f"{path}: {about}", about, images=(Image(context.blobs.put(content), media),))


def _line_range_of(text: TextFile, first: int, limit: int) -> LineRange:
    """Some lines of a text in memory."""
    lines, remaining, chosen = text.body.splitlines(), _MAX_CHARS, list[str]()
    for line in lines[first - 1 : first - 1 + limit]:
        cut = line if len(line) <= 8_000 else f"{line[:8_000]} [… {len(line) - 8_000:,} more characters in this line]"
        remaining -= len(cut)
        if remaining < 0 and chosen:
            break
        chosen.append(cut)
    return LineRange(chosen, first, len(lines), text.remark)


def _render_page(path: str, part: LineRange) -> Result:
    if part.total == 0:
        return result(f"{path} is empty", "empty")
    if not part.lines:
        raise Refused(f"{path} has {plural(part.total or 0, 'line')}; there is no line {part.first}")
    total = "more" if part.total is None else f"{part.total:,}"
    header = f"{path}: lines {part.first}–{part.last} of {total}" + (f", {part.remark}" if part.remark else "")
    lines = [header, *part.lines]
    if part.last != part.total:
        lines.append(f"[… continue with offset={part.last + 1} …]")
    return result("\n".join(lines), plural(len(part.lines), "line"))


def _written(path: str, content: str, raw: bytes) -> Result:
    lines = content.count("\n") + (not content.endswith("\n") and bool(content))
    return result(f"wrote {size(len(raw))} ({plural(lines, 'line')}) to {path}", f"wrote {size(len(raw))}")


def _render_item(item: WorkspaceItem) -> str:
    match item.kind:
        case "folder":
            return f"{item.path}/"
        case "file":
            return f"{item.path}  {size(item.size)}"
        case "link":
            return f"{item.path}  (link)"
        case "other":
            return f"{item.path}  (not a regular file)"
