"""A session that changes its runtime: images and long texts arrive, or it is said what is missing, both ways."""

import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, call, says
from outrider.testing.scripted_server.app import RecordedRequest
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.acp import World, do, tool
from tests.support.codex import codex_home, open_codex
from tests.support.mcp_poke import PIXEL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_DOT = base64.b64decode(PIXEL)
_LONG = "plum " * 2_000
_NATIVE = (says("", call("read", path="dot.png")), says("I see a dot"))


def history_of(request: RecordedRequest) -> tuple[str, Sequence[str]]:
    """The text of the history in a request of Codex to its model, and the images with it."""
    for item in request.body["input"]:
        parts: list[dict[str, Any]] = item["content"] if item.get("type") == "message" else []
        if parts and parts[0].get("text", "").startswith("[What was said and done"):
            return parts[0]["text"], [part["image_url"] for part in parts[1:]]
    raise AssertionError("there is no history")


def results_of(prompt: Prompt) -> list[Result]:
    return [result for message in prompt.messages if isinstance(message, ToolMessage) for result in message.results]


@pytest.mark.behaviour("A1")
async def test_codex_gets_the_images_of_the_native_loop_and_learns_what_was_cut(tmp_path: Path) -> None:
    async with (
        open_scripted_server(script("two dots")) as server,
        open_codex(tmp_path, server.url, ScriptedModel(*_NATIVE), runtime_name="native") as agent,
    ):
        (tmp_path / "work" / "dot.png").write_bytes(_DOT)
        with anyio.fail_after(60):
            await agent.say(f"what is it? {_LONG}", session="s", images=[_DOT])
            await agent.change(await agent.find("s"), {"runtime": "codex"})
            await agent.say("how many dots?", session="s")
    text, images = history_of(server.requests[0])
    assert images == [f"data:image/png;base64,{PIXEL}"] * 2
    asked, called, result, said = text.split("\n[End of what came before")[0].rsplit("\n", 3)
    assert asked.endswith("[image 1 of those attached]")
    assert f"[… {len(_LONG) + 12 - 4_000:,} of {len(_LONG) + 12:,} characters left out …]" in asked
    assert called == 'Agent called read: {"path":"dot.png"}'
    assert result.endswith("[image 2 of those attached]")
    assert said == "Agent: I see a dot"
    assert "The person has all of it" in text


@pytest.mark.behaviour("A3")
async def test_the_native_loop_gets_the_images_of_codex_or_learns_of_them(tmp_path: Path) -> None:
    poke = Path(__file__).parents[1] / "support" / "mcp_poke.py"
    settings = f'command = "{sys.executable}"\nargs = ["-I", "-S", "{poke}"]\ndefault_tools_approval_mode = "approve"\n'
    looks = ScriptedCall("view_image", {"path": str(tmp_path / "work" / "dot.png")})
    pokes = ScriptedCall("poke", {"a": "image"}, namespace="mcp__pk")
    native = ScriptedModel(*[says()] * 3, says("I see it too"))
    async with open_scripted_server(script(says("", looks), says("", pokes), says("a dot"))) as server:
        codex_home(tmp_path, server.url, more=f"[mcp_servers.pk]\n{settings}")
        async with open_codex(tmp_path, server.url, native) as agent:
            (tmp_path / "work" / "dot.png").write_bytes(_DOT)
            with anyio.fail_after(60):
                assert (await agent.say("look", session="s")).text == "a dot"
                await agent.change(await agent.find("s"), {"runtime": "native"})
                await agent.say("and you?", session="s")
                looked, poked = results_of(native.prompts[0])
                shown = [agent.home.blobs.get(image.blob) for image in poked.images]
    assert looked.text == f"[Codex looked at the image {tmp_path / 'work' / 'dot.png'}; only its model saw it]"
    assert (poked.text, [image.media for image in poked.images]) == ("poked image\n[image]", ["image/png"])
    assert shown == [_DOT]


@pytest.mark.parametrize("words", [(), ("blind",)])
async def test_an_acp_agent_gets_the_images_if_it_accepts_them(tmp_path: Path, words: Sequence[str]) -> None:
    world = World(tmp_path)
    (world.work / "dot.png").write_bytes(_DOT)
    config = load(world.home, {}, {"acp.command": world.command(*words), "runtime.name": "native"})
    with anyio.fail_after(60):
        async with outrider.open(config=config, model=ScriptedModel(*_NATIVE), workspace=world.work) as agent:
            await agent.say("what is it?", session="s", images=[_DOT])
            await agent.change(await agent.find("s"), {"runtime": "acp"})
            await agent.say(do(["say", "two dots"]), session="s")
    text, *images = world.received("session/prompt")[0]["prompt"]
    if words:
        assert images == []
        assert (
            text["text"].count("[an image was here, image/png: it was left out because you do not accept images]") == 2
        )
    else:
        assert images == [{"type": "image", "data": PIXEL, "mimeType": "image/png"}] * 2
        assert text["text"].count("of those attached]") == 2


async def test_the_native_loop_gets_the_images_of_an_acp_agent(tmp_path: Path) -> None:
    world, native = World(tmp_path), ScriptedModel(*[says()] * 2, says("I see it too"))
    image = {"type": "content", "content": {"type": "image", "data": PIXEL, "mimeType": "image/png"}}
    broken = {"type": "content", "content": {"type": "image", "data": "????", "mimeType": "image/png"}}
    acts = do(tool("a", "completed", kind="read", rawInput={"path": "dot.png"}, content=[image, broken]), ["say", "ok"])
    config = load(world.home, {}, {"acp.command": world.command(), "runtime.name": "acp"})
    with anyio.fail_after(60):
        async with outrider.open(config=config, model=native, workspace=world.work) as agent:
            await agent.say(acts, session="s")
            await agent.change(await agent.find("s"), {"runtime": "native"})
            await agent.say("and you?", session="s")
            (result,) = results_of(native.prompts[0])
            shown = [agent.home.blobs.get(one.blob) for one in result.images]
    assert (result.text, shown) == ("[image]\n[an image was here, which cannot be read]", [_DOT])


@pytest.mark.behaviour("A3")
async def test_the_native_loop_reads_the_arguments_that_an_agent_reported_at_last(tmp_path: Path) -> None:
    world, native = World(tmp_path), ScriptedModel(*[says()] * 2, says("I know"))
    begins = tool("a", "in_progress", kind="execute", rawInput={"cwd": "/w"})
    ends = tool("a", "completed", rawInput={"cwd": "/w", "command": "make plums"}, content=[])
    config = load(world.home, {}, {"acp.command": world.command(), "runtime.name": "acp"})
    with anyio.fail_after(60):
        async with outrider.open(config=config, model=native, workspace=world.work) as agent:
            await agent.say(do(begins, ends, ["say", "made"]), session="s")
            await agent.change(await agent.find("s"), {"runtime": "native"})
            await agent.say("what did it run?", session="s")
    calls = [call for m in native.prompts[0].messages if isinstance(m, AssistantMessage) for call in m.calls]
    assert [call.args for call in calls] == [{"cwd": "/w", "command": "make plums"}]
