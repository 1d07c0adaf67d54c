"""A scripted app-server of Codex over real stdio, with faults where the script has them.

It is a program: `tests.support.scripted_codex` writes its script and reads the requests it got.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import tomllib
import uuid
from pathlib import Path
from typing import Any

from tests.support.fake_codex_parts import Json, Threads, Wire

_CORE = ("HOME", "PATH", "LANG", "TMPDIR")
_ABORTED = "<turn_aborted"
_RESPONSES = ("run", "patch", "tool")
"""Steps that end a reply of the model, so that its tokens are reported."""


class Turn:
    """A turn that is being played."""

    def __init__(self, thread: str, number: int, params: Json) -> None:
        self.thread = thread
        self.id = f"turn-{number + 1}-{uuid.uuid4().hex[:8]}"
        self.params = params
        self.steers: list[Json] = []
        self.answers: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.is_over = threading.Event()
        self.made = 0

    def name(self, kind: str) -> str:
        """An id that no other item of the thread has."""
        self.made += 1
        return f"{kind}-{self.made}-{self.id}"


class Server:
    """Responds to requests; every turn is played in a thread of its own."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self._folder = folder
        self._script: Json = json.loads((folder / "script.json").read_text())
        lives = len((folder / "lives").read_text().split())
        self._faults: Json = self._script["faults"] if lives <= self._script["faulty_lives"] else {}
        self._threads = Threads(folder / "threads")
        self._wire = Wire(folder, self._faults)
        self._turns: dict[str, Turn] = {}
        self._folders: dict[str, str] = {}
        """Where each thread works."""
        self._asked = -1
        self._open: dict[str, queue.SimpleQueue[Json | None]] = {}
        """Where responses are expected, by the JSON of their id."""
        self._environ = {name: os.environ[name] for name in _CORE if name in os.environ} | _set_by(settings)

    def run(self) -> None:
        for line in sys.stdin.buffer:
            with (self._folder / "received").open("ab") as file:
                file.write(line)
            message = json.loads(line)
            if "method" not in message:
                self._open.pop(json.dumps(message["id"]), queue.SimpleQueue()).put(message)
            elif "id" in message:
                self._answer(message)
        self._end_commands()

    def _answer(self, message: Json) -> None:
        method, number = message["method"], message["id"]
        params: Json = message.get("params") or {}
        self._wire.meet(f"got {method}")
        if method in self._faults.get("ignores", []):
            return
        refused = self._faults.get("refuses", {}).get(method) or self._refusal(method, params)
        if refused:
            self._wire.put({"id": number, "error": {"code": -32600, "message": refused}}, f"response {method}")
            return
        turn = self._new_turn(params) if method == "turn/start" else None
        self._wire.put({"id": number, "result": self._result(method, params, turn)}, f"response {method}")
        self._wire.meet(f"answered {method}")
        if turn:
            threading.Thread(target=self._play, args=(turn,), daemon=True).start()
        elif method == "turn/interrupt":
            self._interrupt(self._turns[params["threadId"]])
        elif method == "thread/backgroundTerminals/clean":
            self._end_commands()

    def _refusal(self, method: str, params: Json) -> str:
        method_handler = getattr(self, "on_" + method.replace("/", "_"), None)
        if method_handler is None:
            return f"Invalid request: unknown variant `{method}`"
        thread = params.get("threadId", "")
        if method == "thread/resume":
            if self._threads.read(thread) is None:
                return f"no rollout found for thread id {thread}"
            if not self._threads.own(thread):
                return f"thread {thread} already has an active writer"
        if method in ("turn/steer", "turn/interrupt") and (
            thread not in self._turns or self._turns[thread].is_over.is_set()
        ):
            return "no active turn to steer" if method == "turn/steer" else "no active turn to interrupt"
        return ""

    def _result(self, method: str, params: Json, turn: Turn | None) -> Json:
        if turn:
            return {"turn": {"id": turn.id, "items": [], "status": "inProgress", "error": None}}
        return getattr(self, "on_" + method.replace("/", "_"))(params)

    def on_initialize(self, _: Json) -> Json:
        agent = f"outrider/{self._script['version']} (Scripted 1.0; x86_64) unknown (outrider; dev)"
        return {"userAgent": agent, "codexHome": str(self._folder), "platformFamily": "unix", "platformOs": "linux"}

    def on_account_read(self, _: Json) -> Json:
        return {"account": {"type": "apiKey"}, "requiresOpenaiAuth": True}

    def on_thread_start(self, params: Json) -> Json:
        thread = str(uuid.uuid4())
        self._threads.own(thread)
        self._folders[thread] = params["cwd"]
        rest = {"model": "scripted", "modelProvider": "local", "cwd": params.get("cwd", ""), "approvalPolicy": "never"}
        spelled: Json = {
            "thread.id": {"thread": {**self._thread(thread), "id": thread}},
            "thread.sessionId": {"thread": {"sessionId": thread, "turns": []}},
            "sessionId": {"sessionId": thread},
            "threadId": {"threadId": thread},
        }
        return {**rest, **spelled[self._script["spelling"]]}

    def on_thread_resume(self, params: Json) -> Json:
        self._folders[params["threadId"]] = params.get("cwd", "")
        return {"thread": self._thread(params["threadId"], not params.get("excludeTurns")), "model": "scripted"}

    def on_thread_read(self, params: Json) -> Json:
        return {"thread": self._thread(params["threadId"], bool(params.get("includeTurns")))}

    def on_thread_turns_list(self, params: Json) -> Json:
        turns = self._threads.read(params["threadId"]) or []
        ordered = turns if params.get("sortDirection") == "asc" else turns[::-1]
        return {"data": ordered[: params.get("limit") or None], "nextCursor": None}

    def on_thread_inject_items(self, params: Json) -> Json:
        if self._threads.read(params["threadId"]) is None:
            (self._folder / "threads" / f"{params['threadId']}.json").write_text("[]")
        return {}

    def on_turn_start(self, _: Json) -> Json:
        return {}

    def on_turn_steer(self, params: Json) -> Json:
        turn = self._turns[params["threadId"]]
        turn.steers.append(params)
        return {"turnId": turn.id}

    def on_turn_interrupt(self, _: Json) -> Json:
        return {}

    def on_thread_backgroundTerminals_clean(self, _: Json) -> Json:  # noqa: N802 (named as the method is)
        return {}

    def _thread(self, thread: str, is_whole: bool = False) -> Json:
        turn = self._turns.get(thread)
        is_active = turn is not None and not turn.is_over.is_set()
        status: Json = {"type": "active", "activeFlags": []} if is_active else {"type": "idle"}
        turns = (self._threads.read(thread) or []) if is_whole else []
        return {"id": thread, "path": "", "status": status, "turns": turns, "cliVersion": self._script["version"]}

    def _new_turn(self, params: Json) -> Turn:
        thread = params["threadId"]
        number = len([turn for turn in self._threads.read(thread) or [] if turn["items"]])
        turn = self._turns[thread] = Turn(thread, number, params)
        self._threads.write(thread, turn.id, None)
        scripted = self._script["turns"]
        turn.params["steps"] = scripted[number] if number < len(scripted) else [{"say": "ok"}]
        return turn

    def _notify(self, turn: Turn, method: str, **params: Any) -> None:
        self._wire.notify(method, threadId=turn.thread, turnId=turn.id, **params)
        if self._wire.is_silent:
            turn.is_over.wait()

    def _item(self, turn: Turn, item: Json, **ended: Any) -> None:
        """Start and complete an item."""
        self._notify(turn, "item/started", item=item, startedAtMs=1)
        self._ended(turn, {**item, **ended})

    def _ended(self, turn: Turn, item: Json) -> None:
        self._threads.write(turn.thread, turn.id, item)
        self._notify(turn, "item/completed", item=item, completedAtMs=1)

    def _user_message(self, turn: Turn, params: Json) -> None:
        content = params["input"]
        who = params.get("clientUserMessageId")
        self._item(turn, {"type": "userMessage", "id": turn.name("user"), "clientId": who, "content": content})

    def _play(self, turn: Turn) -> None:
        self._status(turn)
        self._wire.notify("turn/started", threadId=turn.thread, turn=self._turn(turn, "inProgress"))
        self._user_message(turn, turn.params)
        for step in turn.params["steps"]:
            while turn.steers:
                self._user_message(turn, turn.steers.pop(0))
            if turn.is_over.is_set():
                return
            ((kind, value),) = [pair for pair in step.items() if hasattr(self, f"do_{pair[0]}")]
            getattr(self, f"do_{kind}")(turn, value, step)
            if kind in _RESPONSES or step is turn.params["steps"][-1]:
                self._used(turn)
        while turn.steers:
            self._user_message(turn, turn.steers.pop(0))
        self._finish(turn, "completed")

    def _status(self, turn: Turn, *flags: str) -> None:
        self._wire.notify(
            "thread/status/changed", threadId=turn.thread, status={"type": "active", "activeFlags": flags}
        )

    def _turn(self, turn: Turn, status: str, error: Json | None = None) -> Json:
        return {"id": turn.id, "items": [], "itemsView": "summary", "status": status, "error": error}

    def _finish(self, turn: Turn, status: str, error: Json | None = None) -> None:
        if not turn.is_over.is_set():
            self._threads.write(turn.thread, turn.id, None, status)
            turn.is_over.set()
            self._wire.is_silent = False
            self._wire.notify("thread/status/changed", threadId=turn.thread, status={"type": "idle"})
            self._wire.notify("turn/completed", threadId=turn.thread, turn=self._turn(turn, status, error))

    def _interrupt(self, turn: Turn) -> None:
        self._finish(turn, "interrupted")
        turn.answers.put(None)

    def _end_commands(self) -> None:
        for turn in self._turns.values():
            for process in list(turn.running.values()):
                os.killpg(process.pid, signal.SIGKILL)

    def do_say(self, turn: Turn, text: str, step: Json) -> None:
        item: Json = {"type": "agentMessage", "id": turn.name("msg"), "text": "", "phase": step.get("phase")}
        self._notify(turn, "item/started", item=item, startedAtMs=1)
        size = step.get("chunk", 8)
        for at in range(0, len(text), size):
            self._notify(turn, "item/agentMessage/delta", itemId=item["id"], delta=text[at : at + size])
        self._ended(turn, {**item, "text": text})
        if text.startswith(_ABORTED):
            turn.is_over.wait()

    def do_think(self, turn: Turn, text: str, _: Json) -> None:
        item: Json = {"type": "reasoning", "id": turn.name("rs"), "summary": [], "content": []}
        self._notify(turn, "item/started", item=item, startedAtMs=1)
        self._notify(turn, "item/reasoning/summaryTextDelta", itemId=item["id"], delta=text, summaryIndex=0)
        self._ended(turn, {**item, "summary": [text]})

    def _used(self, turn: Turn) -> None:
        count = self._threads.count_response(turn.thread)
        usage = {"total": _tokens(count), "last": _tokens(1), "modelContextWindow": 258_400}
        self._notify(turn, "thread/tokenUsage/updated", tokenUsage=usage)

    def do_run(self, turn: Turn, command: str, step: Json) -> None:
        cwd = step.get("cwd") or self._folders[turn.thread]
        details: Json = {"command": command, "cwd": cwd, "commandActions": [], "source": "agent"}
        pid = None if step.get("asks") else "1"
        item: Json = {
            "type": "commandExecution",
            "id": turn.name("call"),
            "status": "inProgress",
            "processId": pid,
            **details,
        }
        if step.get("asks"):
            self._status(turn, "waitingOnApproval")
        self._notify(turn, "item/started", item=item, startedAtMs=1)
        if step.get("asks"):
            asked: Json = {"itemId": item["id"], "kind": "command", "reason": "may I", "startedAtMs": 1, **details}
            answer = self._ask(turn, "item/commandExecution/requestApproval", asked)
            self._notify(turn, "serverRequest/resolved", requestId=self._asked)
            self._status(turn)
            if answer.get("decision") not in ("accept", "acceptForSession"):
                if not turn.is_over.is_set():
                    self._ended(turn, {**item, "status": "declined", "aggregatedOutput": None, "exitCode": None})
                return
        words = ("/bin/sh", "-c", command)
        environ = {**self._environ, "CODEX_THREAD_ID": turn.thread}
        process = turn.running[item["id"]] = subprocess.Popen(
            words, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        out = process.communicate()[0].decode()
        del turn.running[item["id"]]
        code = process.returncode if process.returncode >= 0 else -1
        status = "failed" if code else "completed"
        self._ended(turn, {**item, "status": status, "aggregatedOutput": out, "exitCode": code, "durationMs": 1})

    def do_ask(self, turn: Turn, method: str, step: Json) -> None:
        """Send these requests, all about one item if there is one. It runs nothing."""
        item: Json = {**step["item"], "id": turn.name("call"), "status": "inProgress"} if "item" in step else {}
        if item:
            self._notify(turn, "item/started", item=item, startedAtMs=1)
        of_item: Json = {"itemId": item["id"], "startedAtMs": 1} if item else {}
        for request in step["requests"]:
            self._ask(turn, method, {**of_item, **request})
        if item:
            self._ended(turn, {**item, "status": "completed", "exitCode": 0, "aggregatedOutput": ""})

    def do_patch(self, turn: Turn, changes: Json, _: Json) -> None:
        file_changes = [{"path": path, "kind": {"type": "add"}, "diff": text} for path, text in changes.items()]
        item: Json = {"type": "fileChange", "id": turn.name("call"), "changes": file_changes, "status": "inProgress"}
        for path, text in changes.items():
            Path(self._folders[turn.thread], path).write_text(text)
        self._item(turn, item, status="completed")

    def do_tool(self, turn: Turn, name: str, step: Json) -> None:
        called = {"tool": name, "arguments": step.get("args", {}), "namespace": None}
        item: Json = {"type": "dynamicToolCall", "id": turn.name("call"), "status": "inProgress", **called}
        self._notify(turn, "item/started", item=item, startedAtMs=1)
        answer = self._ask(turn, "item/tool/call", {"callId": item["id"], **called})
        ended = {"status": "completed" if answer.get("success") else "failed", "success": bool(answer.get("success"))}
        self._ended(turn, {**item, **ended, "contentItems": answer.get("contentItems"), "durationMs": 1})

    def do_fail(self, turn: Turn, error: Json, _: Json) -> None:
        full_error = {"codexErrorInfo": "other", "additionalDetails": None, **error}
        self._notify(turn, "error", willRetry=False, error=full_error)
        self._finish(turn, "failed", full_error)

    def do_retry(self, turn: Turn, message: str, _: Json) -> None:
        error = {"message": "Reconnecting... 1/5", "codexErrorInfo": "other", "additionalDetails": message}
        self._notify(turn, "error", willRetry=True, error=error)

    def do_send(self, turn: Turn, message: Json, _: Json) -> None:
        """Any message, with the ids of this turn."""
        params = {"threadId": turn.thread, "turnId": turn.id, **message.get("params", {})}
        self._wire.put({**message, "params": params})

    def do_meet(self, _turn: Turn, moment: str, _: Json) -> None:
        self._wire.meet(moment)

    def _ask(self, turn: Turn, method: str, params: Json) -> Json:
        """The response to a request; empty when the turn ends before it."""
        self._asked += 1
        asked = {"threadId": turn.thread, "turnId": turn.id, **params}
        self._wire.meet(f"before {method}")
        message = self._wire.differ({"method": method, "id": self._asked, "params": asked}, method)
        self._open[json.dumps(message.get("id"))] = turn.answers
        self._wire.send(message)
        self._wire.meet(method)
        answer = turn.answers.get()
        self._wire.meet(f"answered {method}")
        return (answer or {}).get("result") or {}


def _tokens(responses: int) -> Json:
    """The tokens of this many responses of the model."""
    spent = {"totalTokens": 15 * responses, "inputTokens": 10 * responses, "outputTokens": 5 * responses}
    return {**spent, "reasoningOutputTokens": 0, "cachedInputTokens": 0, "cacheWriteInputTokens": 0}


def _set_by(settings: list[str]) -> dict[str, str]:
    """The variables that settings on the command line add to the environment of commands."""
    variables: dict[str, str] = {}
    for setting in settings:
        if setting.startswith("shell_environment_policy.set"):
            variables |= tomllib.loads(setting)["shell_environment_policy"]["set"]
    return variables


def main() -> None:
    folder, *words = sys.argv[1:]
    if "app-server" not in words:
        print("codex-cli", json.loads(Path(folder, "script.json").read_text())["version"])
        return
    with Path(folder, "lives").open("a") as file:
        file.write(f"{os.getpid()}\n")
    Server(Path(folder), [words[n + 1] for n, word in enumerate(words) if word == "-c"]).run()
    os._exit(0)


if __name__ == "__main__":
    main()
