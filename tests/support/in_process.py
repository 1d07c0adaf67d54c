"""Commands that run inside the test's process: many times faster than starting a program for each."""

import logging
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path

from click.testing import CliRunner

from outrider.cli.commands import run
from tests.journey.support import Person, Ran


class InProcessPerson(Person):
    """A person whose commands run in this process, with their own environment, folder and standard streams.

    What a process alone can show stays one: a terminal, a pipe, a signal, a command that is left running.
    """

    def types(
        self,
        *words: str | bytes,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Ran:
        variables = {**self.environ, **(environ or {})}
        if not _can_run_in_process(variables):
            return super().types(*words, stdin=stdin, cwd=cwd, environ=environ)
        isolated: dict[str, str | None] = {**dict.fromkeys(os.environ), **variables}
        streams = CliRunner().isolation(input=stdin or b"", env=isolated)
        with _own_logging(), chdir(cwd or self.project), streams as (out, err, _):
            code = run([os.fsdecode(word) for word in words])
            return Ran(code, out.getvalue().decode(), err.getvalue().decode())

    def starts(self, *words: str, environ: Mapping[str, str] | None = None) -> Ran:
        """Run a command to its end as a program of its own."""
        return super().types(*words, environ=environ)


def _can_run_in_process(variables: Mapping[str, str]) -> bool:
    """Not where a command kills its process, imports other modules, or cannot handle signals."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not variables.keys() & {"OUTRIDER_FAIL", "PYTHONPATH"}


@contextmanager
def _own_logging() -> Generator[None]:
    """Undo what a command does to the logging of its process."""
    root, ours = logging.getLogger(), logging.getLogger("outrider")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    raises = logging.raiseExceptions
    root.handlers.clear()
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        logging.captureWarnings(False)
        logging.raiseExceptions = raises
