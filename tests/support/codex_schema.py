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
    """As this very program describes it."""
    with tempfile.TemporaryDirectory() as folder:
        words = (binary, "app-server", "generate-json-schema", "--out", folder, "--experimental")
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        found = json.loads(Path(folder, "codex_app_server_protocol.schemas.json").read_text())["definitions"]
    every = {**found, **found["v2"]}
    wanted = [name + end for name in (*REQUESTS.values(), *QUESTIONS.values()) for end in ("Params", "Response")]
    wanted += [name + "Notification" for name in NEWS]
    kept: dict[str, Any] = {}
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = True if name in _OPAQUE else _bare(every[name])
            wanted += _references(kept[name])
    return dict(sorted(kept.items()))


def changes(before: Definitions, after: Definitions) -> list[str]:
    """What is new, gone or different, by name and field."""
    found = [f"{name} is gone" for name in sorted(set(before) - set(after))]
    found += [f"{name} is new" for name in sorted(set(after) - set(before))]
    for name in sorted(set(before) & set(after)):
        if before[name] != after[name]:
            found += [f"{name}: {what}" for what in _differences(before[name], after[name])]
    return found


def checked(name: str, definitions: Definitions) -> dict[str, Any]:
    """The schema of one definition, with all it refers to."""
    return {"$ref": f"#/definitions/{name}", "definitions": definitions}


def _differences(before: Any, after: Any) -> list[str]:
    fields, now = _fields(before), _fields(after)
    found = [f"{field} is gone" for field in sorted(set(fields) - set(now))]
    found += [f"{field} is new" for field in sorted(set(now) - set(fields))]
    found += [f"{field} is different" for field in sorted(set(fields) & set(now)) if fields[field] != now[field]]
    return found or ["it is different"]


def _fields(schema: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", schema).get("properties", {}) if isinstance(schema, dict) else {}


def _bare(schema: Any) -> Any:
    """Without words for people, and with references that need no folders."""
    if isinstance(schema, list):
        return [_bare(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    kept = {name: _bare(part) for name, part in fields.items() if name not in _WORDS or isinstance(part, dict)}
    if isinstance(reference := kept.get("$ref"), str):
        kept["$ref"] = "#/definitions/" + reference.rpartition("/")[2]
    return kept


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
