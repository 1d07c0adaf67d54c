"""The part of a session that an external program has not seen, as a text with images. It is bounded and says what it
leaves out."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Message, ToolMessage, UserMessage
from outrider.core.text import head_and_tail, plural, size
from outrider.core.types import Image
from outrider.runtimes.external.images import ImageContent
from outrider.runtimes.external.recorder import clip_middle

MAX_HISTORY = 60_000
"""Characters of the messages; of more, the first and the newest ones."""
MAX_IMAGES = 10
"""Images that are sent with it: the newest ones."""
MAX_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of all these images."""
_MAX_MESSAGE = 4_000
_HEAD = "[What was said and done in this session before you took over. It is context, not a request:]"
_FOOT = "[End of what came before.]"
_CUT_FOOT = (
    "[End of what came before. Where it says that something is left out, you have no more of it than this. The person "
    "has all of it (`outrider sessions export`): ask for it if you need it.]"
)
_TOO_MANY = f"it was left out because at most {MAX_IMAGES} images of {size(MAX_IMAGE_BYTES)} together are sent"
LoadImage = Callable[[Image], bytes]
"""The content of an image. Raises Refused when it is lost."""


class History(Struct, frozen=True):
    text: str = ""
    images: Sequence[ImageContent] = ()
    """In the order of their numbers in the text."""


class _Rendering(Struct, frozen=True):
    """One message: its text, and its images at the end of it."""

    text: str
    images: tuple[Image, ...] = ()


class _ShellOutput(Struct, frozen=True):
    output_file: str = ""


def render_history(messages: Sequence[Message], load_image: LoadImage | None) -> History:
    """The messages as one text, empty when there are none; `load_image` is None for a program without images."""
    renderings = [rendering for message in messages for rendering in _render_message(message)]
    if not renderings:
        return History()
    first, newest = _choose(renderings)
    gap = renderings[first : len(renderings) - newest]
    chosen = [*renderings[:first], *renderings[len(renderings) - newest :]]
    lines, images = _attach(chosen, load_image)
    is_cut = bool(gap) or any("characters left out" in line for line in lines)
    if gap:
        missing = sum(len(rendering.text) for rendering in gap)
        pictures = sum(len(rendering.images) for rendering in gap)
        more = f" and {plural(pictures, 'image')}" if pictures else ""
        count = f"{len(gap):,} of {plural(len(renderings), 'message')}"
        lines.insert(first, f"[… {count} left out here, with {missing:,} characters{more} …]")
    return History("\n".join((_HEAD, *lines, _CUT_FOOT if is_cut else _FOOT)), images)


def _choose(renderings: Sequence[_Rendering]) -> tuple[int, int]:
    """How many of the first and of the last messages there is room for: a third of it is for the first ones."""
    sizes = [len(rendering.text) + 1 for rendering in renderings]
    if sum(sizes) <= MAX_HISTORY:
        return len(sizes), 0
    first = _count_that_fit(sizes, MAX_HISTORY // 3)
    return first, _count_that_fit(sizes[:first:-1], MAX_HISTORY - sum(sizes[:first]))


def _count_that_fit(sizes: Sequence[int], room: int) -> int:
    for count, length in enumerate(sizes):
        room -= length
        if room < 0:
            return count
    return len(sizes)


def _attach(renderings: Sequence[_Rendering], load_image: LoadImage | None) -> tuple[list[str], list[ImageContent]]:
    """The texts, each with a note for its images; and the newest images, as many as may be sent."""
    room, count = MAX_IMAGE_BYTES, 0
    newest_first: list[ImageContent | str] = []
    for image in [image for rendering in reversed(renderings) for image in reversed(rendering.images)]:
        loaded = _load(image, load_image) if count < MAX_IMAGES else _TOO_MANY
        if isinstance(loaded, ImageContent) and len(loaded.content) > room:
            loaded = _TOO_MANY
        if isinstance(loaded, ImageContent):
            room, count = room - len(loaded.content), count + 1
        newest_first.append(loaded)
    texts: list[str] = []
    images: list[ImageContent] = []
    for rendering in renderings:
        notes: list[str] = []
        for image in rendering.images:
            match newest_first.pop():
                case str() as reason:
                    notes.append(f"[an image was here, {image.media}: {reason}]")
                case ImageContent() as attached:
                    images.append(attached)
                    notes.append(f"[image {len(images)} of those attached]")
        texts.append(" ".join([rendering.text, *notes]))
    return texts, images


def _load(image: Image, load_image: LoadImage | None) -> ImageContent | str:
    """An image, or why there is none."""
    if load_image is None:
        return "it was left out because you do not accept images"
    try:
        return ImageContent(image.media, load_image(image))
    except Refused:
        return "it cannot be read any more"


def _render_message(message: Message) -> list[_Rendering]:
    match message:
        case UserMessage(text=text, source=source, images=images):
            author = "Person" if source == "person" else "Notice"
            return [_Rendering(f"{author}: {clip_middle(text, _MAX_MESSAGE)}", images)]
        case AssistantMessage(text=text, calls=calls):
            said = [_Rendering(f"Agent: {clip_middle(text, _MAX_MESSAGE)}")] if text else []
            return said + [
                _Rendering(
                    f"Agent called {call.tool}: {clip_middle(msgspec.json.encode(call.args).decode(), _MAX_MESSAGE)}"
                )
                for call in calls
            ]
        case ToolMessage(results=results):
            return [_render_result(result) for result in results]


def _render_result(result: Result) -> _Rendering:
    third = _MAX_MESSAGE // 3
    text = head_and_tail(result.text, third, _MAX_MESSAGE - third, _rest_hint(result))
    return _Rendering(f"Result{' (failed)' if result.failed else ''}: {text}", result.images)


def _rest_hint(result: Result) -> str:
    """Where the rest of a long output can be read; empty when nobody can tell."""
    try:
        file = msgspec.json.decode(result.text, type=_ShellOutput).output_file
    except (msgspec.MsgspecError, UnicodeError):  # It was cut before, or is the result of another tool.
        return ""
    return f"the whole output: {file}" if file else ""
