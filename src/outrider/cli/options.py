"""Input of commands: the message from arguments and stdin, images from files, and the settings of a session.

Everything is bounded, and checked before the home is opened.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from outrider.app.api import check_runtime_choice
from outrider.app.runtimes import RuntimeChoice, find_program, parse_runtime
from outrider.cli.output import check_text
from outrider.config.models import choose_models
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE
from outrider.system.images import media_type

STDIN = "-"
_MAX_IMAGES = 20
_MAX_IMAGE_BYTES = 20 * 1024 * 1024
_MAX_BYTES_PER_CHARACTER = 4


def check_not_blank(value: str | None, option: str) -> str:
    """The value of an option, empty when it is not there. Raises Refused for a blank one: a variable was not set."""
    if value is not None and not value.strip():
        raise Refused(f"{option} is empty; give it a value, or leave it out")
    return check_text(value or "", option)


def read_message(words: Sequence[str], longest: int) -> str:
    """The message: the words, followed by stdin where one of them is `-`; stdin alone when there are no words."""
    text = check_text(" ".join(word for word in words if word != STDIN), "the message")
    if not words and sys.stdin.isatty():
        raise Refused('there is no message: outrider run "…", or pipe one in')
    if not words or STDIN in words:
        text = "\n\n".join(part for part in (text, _read_stdin(longest)) if part)
    if not text.strip():
        raise Refused('the message is empty: outrider run "…", or pipe one in')
    if len(text) > longest:
        raise _message_too_long(longest)
    return text


def _read_stdin(longest: int) -> str:
    most = longest * _MAX_BYTES_PER_CHARACTER
    try:
        content = sys.stdin.buffer.read(most + 1)
    except OSError as error:
        raise Refused(f"stdin cannot be read: {error.strerror}") from None
    if b"\0" in content[:8192]:
        raise Refused("stdin is not text; pass an image with --image, or put the file into the workspace")
    if len(content) > most:
        raise _message_too_long(longest)
    try:
        return content.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError as error:
        raise Refused(f"stdin is not UTF-8 text (byte {error.start + 1:,}); convert it first") from None


def _message_too_long(longest: int) -> Refused:
    return Refused(
        f"the message has more than {longest:,} characters, the maximum (limits.input); "
        "put long text into a file in the workspace and name the file"
    )


def read_images(paths: Sequence[str]) -> list[bytes]:
    """The content of these files, each checked to be an image."""
    if len(paths) > _MAX_IMAGES:
        raise Refused(f"{len(paths)} images are too many; the maximum is {_MAX_IMAGES}")
    return [_read_image(Path(path)) for path in paths]


def _read_image(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MAX_IMAGE_BYTES:
        raise Refused(f"{path} is larger than {_MAX_IMAGE_BYTES >> 20} MiB; make the image smaller")
    try:
        media_type(content)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    return content


def session_settings(config: Config, model: str, runtime: str | None, *, is_new: bool) -> Mapping[str, str]:
    """The settings that `--model` and `--runtime` give a session. A model without a runtime is for the built-in loop.

    Raises Refused for a model or runtime that cannot be used; for a new session also when the default cannot be.
    """
    check_text(model, "--model")
    choice = parse_runtime(check_text(runtime, "--runtime")) if runtime is not None else None
    if choice or model:
        check_runtime_choice(choice.settings if choice else {"runtime": NATIVE}, config.default_runtime)
    if choice and choice.name != NATIVE:
        if model and choice.model:
            raise Refused(f"--runtime {choice} already names a model; leave out --model")
        find_program(config, choice.name)
        return (parse_runtime(f"{choice.name}:{model}") if model else choice).settings
    if model:
        return model_settings(config, model)
    if is_new and not choice and config.default_runtime != NATIVE:
        find_program(config, parse_runtime(config.default_runtime).name)
    elif is_new:
        choose_models(config)
    return choice.settings if choice else {}


def model_settings(config: Config, model: str) -> Mapping[str, str]:
    """The settings of a session that uses this model with the built-in loop. Raises Refused."""
    return {"model": choose_models(config, model)[0].name, "runtime": NATIVE}


def model_or_runtime_name(runtime: RuntimeChoice, model: str) -> str:
    """What answers in a session: the model, or the runtime where it is not the built-in loop."""
    return model if runtime.name == NATIVE else str(runtime)
