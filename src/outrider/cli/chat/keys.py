"""The keys of the chat that differ from those of any line editor."""

from collections.abc import Callable

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys


def key_bindings(buffer: Buffer, interrupt: Callable[[], None]) -> KeyBindings:
    """Enter sends, Alt-Enter and Ctrl-J begin a new line, Ctrl-C stops, Ctrl-D on an empty line leaves."""
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
    def begin_line(event: KeyPressEvent) -> None:
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

    _ = (send, begin_line, stop, leave, pause)
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
