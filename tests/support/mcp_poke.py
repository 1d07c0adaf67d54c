"""A minimal MCP server over stdin and stdout, with one tool, `poke`, which returns its argument, or an image."""

import json
import sys

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
"""One pixel, as PNG in Base64."""
_TOOL = {
    "name": "poke",
    "description": "Poke something.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}},
}


def answer(method: str, params: dict[str, object]) -> dict[str, object] | None:
    match method:
        case "initialize":
            about = {"name": "pk", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [_TOOL]}
        case "tools/call":
            arguments = params.get("arguments")
            value = arguments.get("a") if isinstance(arguments, dict) else None  # pyright: ignore
            image = [{"type": "image", "data": PIXEL, "mimeType": "image/png"}] if value == "image" else []
            return {"content": [{"type": "text", "text": f"poked {value}"}, *image]}
        case _:
            return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params") or {}) or {}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
