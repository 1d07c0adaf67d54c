"""Chat UI for a terminal that can move its cursor: the prompt, live lines above it, the status line below it.

One prompt_toolkit application runs as long as the chat. Output is printed above it without leaving raw mode, so that no
key is lost. The input history is bounded, and only its owner can read it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.containers import ConditionalContainer, HSplit, ScrollOffsets, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.layout import Layout
from prompt_toolkit.layout.menus import CompletionsMenuControl
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_term_environment_variable
from prompt_toolkit.widgets import SearchToolbar

from outrider.cli.chat.display import DisplayItem
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.session_view import StyledLine
from outrider.cli.chat.ui import ChatController

_MAX_HISTORY_BYTES = 1_000_000
_MAX_HISTORY_ENTRIES = 1_000


class InputHistory(History):
    """One JSON string per line, oldest first. A file that cannot be read or written is ignored."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return []
        lines = content.splitlines()[-_MAX_HISTORY_ENTRIES:]
        if len(content) > _MAX_HISTORY_BYTES:
            self._rewrite(lines)
        texts: list[str] = []
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # A line truncated by a crash.
                texts.append(msgspec.json.decode(line, type=str))
        return reversed(texts)

    def store_string(self, string: str) -> None:
        with suppress(OSError), os.fdopen(self._open(os.O_APPEND), "ab") as file:
            file.write(msgspec.json.encode(string.encode(errors="replace").decode()) + b"\n")

    def _rewrite(self, lines: list[bytes]) -> None:
        recent = b"\n".join(lines)[-_MAX_HISTORY_BYTES // 2 :].partition(b"\n")[2]
        with suppress(OSError), os.fdopen(self._open(os.O_TRUNC), "wb") as file:
            file.write(recent + b"\n")

    def _open(self, flags: int) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600)


def key_bindings(buffer: Buffer, interrupt: Callable[[], None]) -> KeyBindings:
    """The keys of the chat: Enter sends, Alt-Enter and Ctrl-J insert a line, Ctrl-C stops, Ctrl-D leaves."""
    keys = KeyBindings()
    is_typing = has_focus(buffer)
    is_empty = Condition(lambda: not buffer.text)

    @keys.add(Keys.Enter, filter=is_typing)
    def send(event: KeyPressEvent) -> None:
        state = buffer.complete_state
        if state and state.current_completion:
            buffer.apply_completion(state.current_completion)
        buffer.validate_and_handle()

    @keys.add(Keys.Escape, Keys.Enter, filter=is_typing)
    @keys.add(Keys.ControlJ, filter=is_typing)
    def insert_line(event: KeyPressEvent) -> None:
        buffer.newline(copy_margin=False)

    @keys.add(Keys.ControlC, filter=is_typing)
    @keys.add(Keys.SIGINT)
    def stop(event: KeyPressEvent) -> None:
        interrupt()

    @keys.add(Keys.ControlD, filter=is_typing & is_empty)
    def leave(event: KeyPressEvent) -> None:
        event.app.exit()

    _add_completion(keys, buffer)

    @keys.add(Keys.ControlZ)
    def pause(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    _ = (send, insert_line, stop, leave, pause)
    return keys


def _add_completion(keys: KeyBindings, buffer: Buffer) -> None:
    is_typing = has_focus(buffer)

    @keys.add(Keys.ControlI, filter=is_typing)
    def complete(event: KeyPressEvent) -> None:
        if buffer.complete_state:
            buffer.complete_next()
        elif buffer.text.startswith("/"):
            buffer.start_completion(insert_common_part=True)
        else:
            buffer.insert_text("    ")

    @keys.add(Keys.BackTab, filter=is_typing)
    def complete_back(event: KeyPressEvent) -> None:
        buffer.complete_previous()

    _ = (complete, complete_back)


_STYLE = Style.from_dict(
    {
        "prompt": "bold ansicyan",
        "dim": "fg:ansibrightblack",
        "call": "ansigreen",
        "queued": "ansicyan",
        "ask": "bold ansiyellow",
        "status": "fg:ansibrightblack",
        "completion-menu": "noinherit",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": "fg:ansibrightblack",
        "completion-menu.meta.completion.current": "reverse",
        "search-toolbar": "fg:ansibrightblack",
    }
)
_REFRESH_INTERVAL = 0.05
"""Minimum seconds between two redraws."""


class TerminalUI:
    """A `ChatUI` on prompt_toolkit."""

    def __init__(self, renderer: TerminalRenderer, history: Path | None) -> None:
        self._renderer = renderer
        self._controller: ChatController | None = None
        self._changed = anyio.Event()
        self._output = _TerminalOutput.from_pty(
            sys.stdout, term=get_term_environment_variable(), default_color_depth=ColorDepth.from_env()
        )
        self._buffer = Buffer(
            history=InputHistory(history) if history else InMemoryHistory(),
            multiline=True,
            completer=_SlashCompleter(self),
            complete_while_typing=Condition(lambda: self._buffer.text.startswith("/")),
            enable_history_search=False,
            accept_handler=self._accept,
        )
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=key_bindings(self._buffer, self._interrupt),
            style=_STYLE,
            include_default_pygments_style=False,
            output=self._output,
            erase_when_done=True,
        )

    def show(self, items: Iterable[DisplayItem]) -> None:
        text = self._renderer.render(items, self._width, self._output.get_size().rows)
        if not text:
            return
        if self._app.is_running:
            self._app.renderer.erase()
        self._output.enable_autowrap()
        self._output.write_raw(text)
        self._output.flush()
        self._app.invalidate()

    def restore_input(self, text: str) -> None:
        draft = self._buffer.text
        self._buffer.set_document(Document(f"{text}\n{draft}" if draft else text))

    def invalidate(self) -> None:
        self._changed.set()

    def exit(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    async def run(self, controller: ChatController) -> None:
        self._controller = controller
        async with anyio.create_task_group() as group:
            group.start_soon(self._refresh_loop)
            with suppress(EOFError, OSError):  # The terminal was closed.
                await self._app.run_async()
            group.cancel_scope.cancel()

    async def _refresh_loop(self) -> None:
        while True:
            await anyio.sleep(_REFRESH_INTERVAL)
            with anyio.move_on_after(1 if self._controller and self._controller.is_working else None):
                await self._changed.wait()
            self._changed = anyio.Event()
            self._app.invalidate()

    @property
    def _width(self) -> int:
        return self._output.get_size().columns

    def suggestions(self, line: str) -> Iterable[tuple[str, str]]:
        return self._controller.suggestions(line) if self._controller else ()

    def _accept(self, buffer: Buffer) -> bool:
        if self._controller and buffer.text.strip():
            self._controller.submit(buffer.text)
        return False

    def _interrupt(self) -> None:
        if self._controller and self._controller.interrupt(is_empty=not self._buffer.text):
            self._buffer.reset()

    def _layout(self) -> Layout:
        search = SearchToolbar(forward_search_prompt="search forward: ", backward_search_prompt="search history: ")
        prompt = Window(
            BufferControl(self._buffer, search_buffer_control=search.control, preview_search=True),
            height=lambda: Dimension(min=1, max=max(3, self._output.get_size().rows // 2)),
            wrap_lines=True,
            dont_extend_height=True,
            get_line_prefix=lambda number, wrapped: [("class:prompt", "› " if number == wrapped == 0 else "  ")],
        )
        live = Window(FormattedTextControl(self._live_text), dont_extend_height=True, wrap_lines=False)
        status = Window(
            FormattedTextControl(self._status_text), height=1, dont_extend_height=True, style="class:status"
        )
        menu = Window(
            CompletionsMenuControl(),
            height=Dimension(min=1, max=8),
            scroll_offsets=ScrollOffsets(1, 1),
            dont_extend_height=True,
        )
        rows = [
            Window(height=1, dont_extend_height=True),
            ConditionalContainer(live, Condition(lambda: bool(self._live_lines()))),
            prompt,
            ConditionalContainer(menu, has_completions),
            search,
            status,
        ]
        return Layout(HSplit(rows, align=VerticalAlign.TOP), focused_element=prompt)

    def _live_lines(self) -> Sequence[StyledLine]:
        size = self._output.get_size()
        return self._controller.live_lines(size.columns - 1, max(2, size.rows // 3)) if self._controller else ()

    def _live_text(self) -> StyleAndTextTuples:
        lines: StyleAndTextTuples = []
        for style, text in self._live_lines():
            lines += [(style, text), ("", "\n")]
        return lines

    def _status_text(self) -> StyleAndTextTuples:
        return [("", self._controller.status(self._width - 1) if self._controller else "")]


class _SlashCompleter(Completer):
    def __init__(self, ui: TerminalUI) -> None:
        self._ui = ui

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        line = document.text_before_cursor
        name, space, argument = line.partition(" ")
        last_word = argument.lstrip() if space else name
        for word, description in self._ui.suggestions(line):
            yield Completion(word, start_position=-len(last_word), display_meta=description)


class _TerminalOutput(Vt100_Output):
    """A terminal without cursor position requests: a late response would end up in the input of the next program."""

    @property
    def responds_to_cpr(self) -> bool:
        return False
