"""What `--model` and `--runtime` mean: the settings of a session, checked before anything is opened."""

from collections.abc import Mapping

from outrider.app.runtimes import RuntimeChoice, find_program, parse_runtime
from outrider.cli.plain import check_text
from outrider.config.choose import choose_models
from outrider.config.load import Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE


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
