"""What a person wants said: from arguments, from stdin, from picture files; bounded, checked.

What `--model` and `--runtime` mean: the settings of a session, checked before anything is opened.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def read_message(words: Sequence[str], longest: int) -> str:
    """The message: the words as they stand, with stdin after them where one is `-`; stdin alone when there are none."""
    said = " ".join(word for word in words if word != STDIN)
    check_text(said, "the message")
    if words and STDIN not in words:
        text = said
    else:
        if not words and sys.stdin.isatty():
            raise Refused('there is nothing to do: outrider run "…", or pipe the message in')
        text = "\n\n".join(part for part in (said, _read_stdin(longest)) if part)
    if not text.strip():
        raise Refused('the message is empty: outrider run "…", or pipe it in')
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
        raise Refused("what came on stdin is not text; give a picture with --image, or put the file into the workspace")
    if len(content) > most:
        raise _message_too_long(longest)
    try:
        return content.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError as error:
        raise Refused(f"what came on stdin is not UTF-8 text (byte {error.start + 1:,}); convert it first") from None


def _message_too_long(longest: int) -> Refused:
    return Refused(
        f"the message has more than {longest:,} characters, the most that is taken (limits.input); "
        "put long material into a file of the workspace and name the file"
    )


def read_images(paths: Sequence[str]) -> list[bytes]:
    """The pictures in these files, each checked to be one."""
    if len(paths) > _MAX_IMAGES:
        raise Refused(f"{len(paths)} pictures are too many; at most {_MAX_IMAGES} are taken at once")
    return [_read_image(Path(path)) for path in paths]


def _read_image(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MAX_IMAGE_BYTES:
        raise Refused(f"{path} is longer than {_MAX_IMAGE_BYTES >> 20} MiB; make the picture smaller")
    try:
        media_type(content)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None
    return content


def session_settings(config: Config, model: str, runtime: str | None, *, is_new: bool) -> Mapping[str, str]:
    """What to set for the session. A model belongs to the runtime that is named with it, and else to our own loop.

    Raises Refused for what cannot be used; for a new session, also when nothing is named and the default cannot be.
    """
    check_text(model, "--model")
    wanted = parse_runtime(check_text(runtime, "--runtime")) if runtime is not None else None
    if wanted and wanted.name != NATIVE:
        if model and wanted.model:
            raise Refused(f"--runtime {wanted} names a model already; leave out --model")
        find_program(config, wanted.name)
        return (parse_runtime(f"{wanted.name}:{model}") if model else wanted).settings
    if model:
        return model_settings(config, model)
    if is_new and not wanted and config.runtime.name != NATIVE:
        find_program(config, parse_runtime(config.runtime.name).name)
    elif is_new:
        choose_models(config)
    return wanted.settings if wanted else {}


def model_settings(config: Config, model: str) -> Mapping[str, str]:
    """What to set for a session that is to use this model, which our own loop asks. Raises Refused."""
    return {"model": choose_models(config, model)[0].name, "runtime": NATIVE}


def model_or_runtime_name(carrier: RuntimeChoice, model: str) -> str:
    """What answers in a session: the model, or the runtime where that is another than our own."""
    return model if carrier.name == NATIVE else str(carrier)
