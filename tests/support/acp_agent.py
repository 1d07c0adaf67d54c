"""A scripted ACP agent: the prompt contains its acts, and files in its folder record what it received and did.

    acp_agent.py FOLDER [WORD…]

Words: `forgets` (it cannot resume a session), `resumes` (without a replay), `version-2`, `dies-at-METHOD`,
`silent-at-METHOD`, `mcp`, `modes`, `options`, `quiet` (answers to its questions are no effects), `blind` (it accepts no
images), `login` (a session needs one first), `stays` (it does not exit when its stdin is closed).
A prompt ends in `do [[ACT, …], …]`, e.g. `do [["say", "hi"], ["effect", "rang"]]`.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
from drift import Drift

FOLDER, WORDS = Path(sys.argv[1]), set(sys.argv[2:])
OPTIONS = [
    {"optionId": "1", "name": "Always", "kind": "allow_always"},
    {"optionId": "2", "name": "Yes", "kind": "allow_once"},
    {"optionId": "3", "name": "No", "kind": "reject_once"},
]


def write(name: str, line: Any) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(json.dumps(line) + "\n")


def did() -> list[Any]:
    path = FOLDER / "effects"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Agent:
    def __init__(self) -> None:
        self.speaking = threading.Lock()
        self.cancelled = threading.Event()
        self.answers: dict[int, Any] = {}
        self.answered = threading.Condition()
        self.asked = 0
        self.drift = -1
        self.sent: dict[str, int] = {}
        self.methods: dict[int, str] = {}
        """Of the requests it got, by their id."""
        self.servers: dict[str, Any] = {}
        self.allowed = False
        """Whether the last permission was granted."""
        self.looks = False
        """After an interruption it checks before it repeats something, as a good agent does."""

    def send(self, **message: Any) -> None:
        name = message.get("method") or f"response {self.methods.get(message.get('id', 0))}"
        with self.speaking:
            line = json.dumps(self.differ({"jsonrpc": "2.0", **message}, name)) + "\n"
            with (FOLDER / "said").open("a") as file:
                file.write(line)
            sys.stdout.write(line)
            sys.stdout.flush()

    def differ(self, message: dict[str, Any], name: str) -> dict[str, Any]:
        """The file `drift` says which message is to be different, and how; it is removed when that is done."""
        path = FOLDER / "drift"
        if not path.exists():
            return message
        wanted = json.loads(path.read_text())
        if wanted["number"] != self.drift:
            self.drift, self.sent = wanted["number"], {}
        count = self.sent[name] = self.sent.get(name, 0) + 1
        if (name, count) != (wanted["name"], wanted["count"]):
            return message
        path.unlink()
        return Drift(tuple(wanted["path"]), wanted["how"], wanted["value"]).apply(message)

    def notify(self, session: str, update: dict[str, Any], *, is_recorded: bool = True) -> None:
        if is_recorded:
            write(f"{session}.past", update)
        self.send(method="session/update", params={"sessionId": session, "update": update})

    def ask(self, session: str, call: dict[str, Any], options: list[dict[str, str]]) -> Any:
        self.asked += 1
        number = self.asked
        params = {"sessionId": session, "toolCall": call, "options": options}
        self.send(id=number, method="session/request_permission", params=params)
        with self.answered:
            while number not in self.answers:
                self.answered.wait()
        return self.answers[number]

    def act(self, session: str, act: list[Any]) -> str:
        """Do one thing; the stop reason when it ends the prompt."""
        match act:
            case ["hang"]:
                self.cancelled.wait()
                return "cancelled"
            case ["stop", reason]:
                return reason
            case ["die", *once]:
                if not once or not (FOLDER / "died").exists():
                    (FOLDER / "died").touch()
                    print("something broke inside", file=sys.stderr, flush=True)
                    os._exit(3)
            case ["deaf"]:
                with self.speaking:
                    write("effects", "deaf")
                    time.sleep(1e6)
            case ["if-allowed", *acts]:
                return next((reason for one in acts if self.allowed and (reason := self.act(session, one))), "")
            case ["effect", name]:
                if not (self.looks and name in did()):
                    write("effects", name)
            case ["play", name, count]:
                self.play(session, name, count)
            case ["environ"]:
                write("effects", sorted(os.environ))
            case ["mcp" | "mcp-and" | "mcp-once", *_]:
                self.use_tool(session, act)
            case _:
                self.say(session, act)
        return ""

    def say(self, session: str, act: list[Any]) -> None:
        match act:
            case ["say" | "think" as how, text, *ids]:
                kind = "agent_message_chunk" if how == "say" else "agent_thought_chunk"
                block = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
                self.notify(session, {**block, "messageId": ids[0]} if ids else block)
            case ["stderr", line]:
                print(line, file=sys.stderr, flush=True)
            case ["long", count]:
                self.say(session, ["say", "x" * count])
            case ["update", update]:
                self.notify(session, update)
            case ["past", update]:
                write(f"{session}.past", update)
            case ["ask", call, *options]:
                if (FOLDER / "silent").exists():
                    return
                other = FOLDER / "instead"
                call = json.loads(other.read_text()) if other.exists() else call
                answer = self.ask(session, call, options[0] if options else OPTIONS)
                self.allowed = answer.get("outcome", {}).get("optionId") in ("1", "2")
                write("answers" if "quiet" in WORDS else "effects", answer)
            case ["until", name]:
                while not (FOLDER / name).exists():
                    time.sleep(0.02)
            case ["request", method]:
                self.send(id=f"r-{method}", method=method, params={"sessionId": session})
            case _:
                raise SystemExit(f"no such act: {act}")

    def play(self, session: str, name: str, count: int) -> None:
        """Send the messages in a file, and wait for so many answers."""
        for line in (FOLDER / name).read_text().splitlines():
            self.send(**json.loads(line.replace('"sessionId": "some text"', f'"sessionId": {json.dumps(session)}')))
        with self.answered:
            while len(self.answers) < count:
                self.answered.wait()

    def use_tool(self, session: str, act: list[Any]) -> None:
        match act:
            case ["mcp", tool, args, *ids]:
                write("tool-results", self.call_tool(session, tool, args, *ids))
            case ["mcp-and", *words]:
                threading.Thread(target=self.use_tool, args=(session, ["mcp", *words]), daemon=True).start()
                write("calling", words)
            case ["mcp-once", *words] if not self.looks:
                self.use_tool(session, ["mcp", *words])
            case _:
                pass

    def call_tool(self, session: str, tool: str, args: Any, id: str = "") -> Any:
        """Call a tool of the session's MCP server, as a client of the protocol does."""
        import urllib.request

        (server,) = self.servers[session]
        headers = {header["name"]: header["value"] for header in server["headers"]}
        headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        params = {"name": tool, "arguments": args, "_meta": {"claudecode/toolUseId": id} if id else {}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        with urllib.request.urlopen(urllib.request.Request(server["url"], body, headers)) as response:
            return json.loads(response.read())["result"]

    def prompt(self, number: int, session: str, text: str) -> None:
        self.looks = "was cut off" in text
        self.allowed = False
        _, found, acts = text.rpartition("do ")
        for act in json.loads(acts) if found else ():
            if act[0] == "error":
                self.send(id=number, error={"code": act[1], "message": act[2], "data": act[3]})
                return
            if reason := self.act(session, act):
                self.send(id=number, result={"stopReason": reason})
                return
        usage = {"totalTokens": 13, "inputTokens": 7, "outputTokens": 5, "cachedReadTokens": 1}
        self.send(id=number, result={"stopReason": "end_turn", "usage": usage})

    def answer(self, number: int, method: str, params: dict[str, Any]) -> None:
        write("received", {"method": method, "params": params})
        self.methods[number] = method
        if f"dies-at-{method}" in WORDS:
            print("it was all too much", file=sys.stderr, flush=True)
            os._exit(4)
        if f"silent-at-{method}" in WORDS:
            return
        match method:
            case "initialize":
                self.send(id=number, result=introduced())
            case "session/new" if "login" in WORDS:
                self.send(id=number, error={"code": -32000, "message": "Authentication required"})
            case "session/new":
                count = len(list(FOLDER.glob("*.past")))
                (FOLDER / f"s{count}.past").touch()
                self.servers[f"s{count}"] = params["mcpServers"]
                self.send(id=number, result={"sessionId": f"s{count}", **modes()})
            case "session/load" | "session/resume":
                self.servers[params["sessionId"]] = params["mcpServers"]
                self.load_session(number, method, params["sessionId"])
            case "session/prompt":
                text = params["prompt"][0]["text"]
                self.cancelled.clear()
                block = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": text}}
                write(f"{params['sessionId']}.past", block)
                threading.Thread(target=self.prompt, args=(number, params["sessionId"], text), daemon=True).start()
            case "session/set_mode" | "session/set_config_option":
                self.send(id=number, result={})
            case _:
                self.send(id=number, error={"code": -32601, "message": "Method not found"})

    def load_session(self, number: int, method: str, session: str) -> None:
        past = FOLDER / f"{session}.past"
        if not past.exists():
            self.send(id=number, error={"code": -32002, "message": "Resource not found"})
            return
        for line in past.read_text().splitlines() if method == "session/load" else ():
            self.notify(session, json.loads(line), is_recorded=False)
        self.send(id=number, result=modes())

    def run(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                with self.answered:
                    self.answers[message["id"]] = message.get("result") or message.get("error")
                    self.answered.notify_all()
                write("received", {"method": "answer", "params": self.answers[message["id"]]})
                write("numbered", {"id": message["id"], "answer": self.answers[message["id"]]})
            elif "id" in message:
                self.answer(message["id"], message["method"], message.get("params") or {})
            else:
                write("received", {"method": message["method"], "params": message.get("params")})
                self.cancelled.set()


def modes() -> dict[str, Any]:
    """The modes of a session, in the form that the words ask for."""
    values = ("ask", "plan")
    if "modes" in WORDS:
        return {"modes": {"currentModeId": "ask", "availableModes": [{"id": id, "name": id} for id in values]}}
    if "options" in WORDS:
        options = [{"value": value, "name": value} for value in values]
        option = {"id": "how", "category": "mode", "type": "select", "currentValue": "ask", "options": options}
        return {"configOptions": [{"id": "effort", "type": "boolean", "currentValue": True}, option]}
    return {}


def introduced() -> dict[str, Any]:
    can: dict[str, Any] = {"promptCapabilities": {"image": "blind" not in WORDS}}
    if "mcp" in WORDS:
        can["mcpCapabilities"] = {"http": True}
    if "resumes" in WORDS:
        can["sessionCapabilities"] = {"resume": {}}
    elif "forgets" not in WORDS:
        can["loadSession"] = True
    return {
        "protocolVersion": 2 if "version-2" in WORDS else 1,
        "agentCapabilities": can,
        "agentInfo": {"name": "scripted", "version": "1"},
        "authMethods": [{"id": "web", "name": "Log in on the web", "description": "run `scripted login`"}],
    }


if __name__ == "__main__":
    write("pids", os.getpid())
    Agent().run()
    if "stays" in WORDS:
        time.sleep(1e6)
