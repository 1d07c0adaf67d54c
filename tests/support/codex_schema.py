"""The part of Codex's protocol that we speak, as the tested version of the program describes it itself.

`python -m tests.support.codex_schema` rewrites the record, after the pinned version was changed on purpose.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tests.support.codex import codex_binary

RECORD = Path(__file__).parents[1] / "unit" / "recorded" / "codex" / "schema-0.163.0.json"
REQUESTS = {
    "initialize": "Initialize",
    "account/read": "GetAccount",
    "config/read": "ConfigRead",
    "thread/start": "ThreadStart",
    "thread/resume": "ThreadResume",
    "thread/read": "ThreadRead",
    "thread/turns/list": "ThreadTurnsList",
    "thread/inject_items": "ThreadInjectItems",
    "thread/backgroundTerminals/clean": "ThreadBackgroundTerminalsClean",
    "turn/start": "TurnStart",
    "turn/steer": "TurnSteer",
    "turn/interrupt": "TurnInterrupt",
}
"""What we ask; with `Params` and `Response` behind it, what is sent and what comes back."""
QUESTIONS = {
    "item/commandExecution/requestApproval": "CommandExecutionRequestApproval",
    "item/fileChange/requestApproval": "FileChangeRequestApproval",
    "item/permissions/requestApproval": "PermissionsRequestApproval",
    "mcpServer/elicitation/request": "McpServerElicitationRequest",
    "item/tool/call": "DynamicToolCall",
}
"""What it asks."""
NEWS = (
    "ItemStarted",
    "ItemCompleted",
    "AgentMessageDelta",
    "ReasoningSummaryTextDelta",
    "ReasoningTextDelta",
    "TurnStarted",
    "TurnCompleted",
    "ThreadTokenUsageUpdated",
    "ThreadStatusChanged",
    "Error",
    "ServerRequestResolved",
)
"""What it tells us."""
_OPAQUE = {"ResponseItem"}
_WORDS = {"description", "title", "$schema", "default", "format", "minimum", "maximum"}

Definitions = Mapping[str, Any]


def recorded() -> Definitions:
    return json.loads(RECORD.read_text())


def current_schema(binary: str) -> Definitions:
    """The schema that this program generates."""
    with tempfile.TemporaryDirectory() as folder:
        words = (binary, "app-server", "generate-json-schema", "--out", folder, "--experimental")
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        schema = json.loads(Path(folder, "codex_app_server_protocol.schemas.json").read_text())["definitions"]
    every = {**schema, **schema["v2"]}
    names = [name + end for name in (*REQUESTS.values(), *QUESTIONS.values()) for end in ("Params", "Response")]
    names += [name + "Notification" for name in NEWS]
    definitions: dict[str, Any] = {}
    while names:
        name = names.pop()
        if name not in definitions:
            definitions[name] = True if name in _OPAQUE else _bare(every[name])
            names += _references(definitions[name])
    return dict(sorted(definitions.items()))


def changes(before: Definitions, after: Definitions) -> list[str]:
    """Every difference, by name and field."""
    texts = [f"{name} is gone" for name in sorted(set(before) - set(after))]
    texts += [f"{name} is new" for name in sorted(set(after) - set(before))]
    for name in sorted(set(before) & set(after)):
        if before[name] != after[name]:
            texts += [f"{name}: {what}" for what in _differences(before[name], after[name])]
    return texts


def checked(name: str, definitions: Definitions) -> dict[str, Any]:
    """The schema of one definition, with all it refers to."""
    return {"$ref": f"#/definitions/{name}", "definitions": definitions}


def _differences(before: Any, after: Any) -> list[str]:
    fields, now = _fields(before), _fields(after)
    texts = [f"{field} is gone" for field in sorted(set(fields) - set(now))]
    texts += [f"{field} is new" for field in sorted(set(now) - set(fields))]
    texts += [f"{field} is different" for field in sorted(set(fields) & set(now)) if fields[field] != now[field]]
    return texts or ["it is different"]


def _fields(schema: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", schema).get("properties", {}) if isinstance(schema, dict) else {}


def _bare(schema: Any) -> Any:
    """The schema without descriptions, and with references that need no folders."""
    if isinstance(schema, list):
        return [_bare(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    result = {name: _bare(part) for name, part in fields.items() if name not in _WORDS or isinstance(part, dict)}
    if isinstance(reference := result.get("$ref"), str):
        result["$ref"] = "#/definitions/" + reference.rpartition("/")[2]
    return result


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from _references(part)
    elif isinstance(schema, dict):
        fields = cast("dict[str, Any]", schema)
        for name, part in fields.items():
            if name == "$ref" and isinstance(part, str):
                yield part.rpartition("/")[2]
            else:
                yield from _references(part)


def main() -> None:
    lines = [f"{json.dumps(name)}:{json.dumps(schema)}" for name, schema in current_schema(codex_binary()).items()]
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
