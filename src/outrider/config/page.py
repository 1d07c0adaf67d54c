"""Writes docs/configuration.md from the registry: `python -m outrider.config.page > docs/configuration.md`."""

import sys
from collections.abc import Iterator
from itertools import groupby

from outrider.config.models import PROVIDERS, WIRES, ProviderPreset
from outrider.config.schema import SETTINGS, Setting, render_value

_INTRODUCTION = """\
# Configuration

<!-- Made by `python -m outrider.config.page`; a test keeps it true. -->

Everything has a default: Outrider runs with no configuration at all. What you set is looked for in this order, and the
first place that has it wins:

1. a flag of the command,
2. the environment variable of the setting (a blank one counts as unset),
3. `config.toml` in the Outrider home, which is `OUTRIDER_HOME` or else `~/.outrider`,
4. the default.

```sh run
outrider config list               # every setting, its value, and where that came from
outrider config get limits.steps
outrider config set limits.steps 80
outrider config unset limits.steps
outrider config path               # where config.toml is
```

`set` and `unset` keep the comments and the order of the file. A mistake in it is told with the file, the line or the
key, and what is allowed there.

## Keys

`model.key` is best given as a reference, so that the key itself stands in one place only:

```toml
[model]
name = "openai:gpt-5.5"
key = "env:MY_KEY"            # or "file:~/keys/openai"; others must not be able to read that file
```

A key may also stand there itself if nobody else can read `config.toml` (`config set` sees to that). To keep it out of
the shell's history, give it on standard input: `outrider config set model.key -`. No command prints a key.

`model.url` and `model.key` are for the model they stand beside and for others of the same provider; a model of another
provider, named by a flag or in a session, is not sent that key. A provider's usual variable is used for that provider's
own address only.
"""
_RULES_SECTION = """\
## Rules

What you decide beforehand about calls stands in `config.toml` too, each rule under a `[[rules]]` of its own; flags and
variables have no part in it. [Approvals](approvals.md) tells how they work.

```toml
[[rules]]
verdict = "allow"             # or "ask", or "deny"
tool = "shell"                # every tool when left out
argv = ["git", "fetch"]       # how the command begins; any command when left out
workspace = "~/src/site"      # in this folder only; in any when left out
needs = ["network"]           # what it may have: "network", "host", "codex", "read:PATH", "write:PATH"
```

`outrider config get rules` lists them.
"""
_MODELS_SECTION = """\
## Models

`model.name` (or `OUTRIDER_MODEL`) is `<provider>:<model>` or `<wire>:<model>`; `practice` needs no provider at all. The
wires are {wires}.
Another server that speaks one of them is named by its wire and `model.url`; with `model.url` set, a bare model name
speaks `openai-chat` there.

When no model is set, the first provider in this table whose variable is set is asked for the model in the last column;
without any, `practice` answers. Servers on your own machine are offered, never used unasked.

| provider | wire | address | key in | model when none is named |
|---|---|---|---|---|
"""


def render_page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _RULES_SECTION, _MODELS_SECTION.format(wires=", ".join(f"`{wire}`" for wire in WIRES))]
    parts[-1] += "\n".join(_provider_row(provider) for provider in PROVIDERS) + "\n"
    parts.extend(_settings_sections())
    return "\n".join(parts)


def _provider_row(provider: ProviderPreset) -> str:
    keys = ", ".join(f"`{key}`" for key in provider.key_variables) or "needs none"
    default = f"`{provider.default_model}`" if provider.default_model else "–"
    return f"| `{provider.name}` | `{provider.wire}` | {provider.url} | {keys} | {default} |"


def _settings_sections() -> Iterator[str]:
    yield "## Settings\n"
    for category, settings in groupby(SETTINGS, key=lambda setting: setting.category):
        rows = "\n".join(_setting_row(setting) for setting in settings)
        head = "| name | variable | default | takes | meaning |\n|---|---|---|---|---|"
        yield f"### {category}\n\n{head}\n{rows}\n"


def _setting_row(setting: Setting) -> str:
    name = f"`{setting.name}`" + (f" (or `{setting.alias}`)" if setting.alias else "")
    default = render_value(setting.default)
    shown = f"`{default}`" if default else "–"
    description = setting.description.replace("<", "&lt;").replace(">", "&gt;")
    return f"| {name} | `{setting.env_variable}` | {shown} | {setting.allowed_text} | {description} |"


if __name__ == "__main__":
    sys.stdout.write(render_page())
