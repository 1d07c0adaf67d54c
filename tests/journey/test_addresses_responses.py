"""What a response says of itself, and where it is found later, when a notice arrived while its client ran a tool."""

from pathlib import Path
from typing import Any

import pytest

from outrider.testing.scripted_model import call, says
from tests.support.surfaces import SURFACES, Scene, Surface, open_surfaces

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("B2")]
RING: dict[str, Any] = {"type": "function", "name": "ring", "parameters": {"type": "object"}}


async def respond(scene: Scene, **more: object) -> dict[str, Any]:
    body = {"model": "outrider", "conversation": scene.name, "tools": [RING], **more}
    answer = await scene.home.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("source", [SURFACES["terminal chat"], SURFACES["stored response"]], ids=lambda one: one.name)
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_a_notice_changes_neither_whether_a_response_is_stored_nor_where_it_is_found(
    tmp_path: Path, source: Surface, is_stored: bool
) -> None:
    async with open_surfaces(tmp_path) as home:
        scene = home.scene("s")
        task = await scene.start_task(source)
        scene.add_replies(says("", call("ring")), says("It rang."))
        first = await respond(scene, input="ring", store=is_stored)
        (called,) = first["output"]
        await task.report()
        output = {"type": "function_call_output", "call_id": called["call_id"], "output": "ding dong"}
        second = await respond(scene, input=[output], store=is_stored)
        found = [(await home.client.get(f"/v1/responses/{one['id']}")).status_code for one in (first, second)]
    assert [one["store"] for one in (first, second)] == [is_stored] * 2
    assert found == [200 if is_stored else 404] * 2
    assert second["output"][0]["content"][0]["text"] == "It rang."


async def test_a_background_response_stays_one_when_a_notice_arrives_in_its_turn(tmp_path: Path) -> None:
    async with open_surfaces(tmp_path) as home:
        scene = home.scene("s")
        task = await scene.start_task(SURFACES["Python"])
        turn = await scene.begin_turn(SURFACES["background response"], "while the model replies", says("Done."))
        await task.report()
        id = f"resp_{(await scene.session()).id}_{turn.entry.seq}"
        before = (await home.client.get(f"/v1/responses/{id}")).json()
        turn.release()
        await scene.until_idle()
        after = (await home.client.get(f"/v1/responses/{id}")).json()
    assert [(one["background"], one["store"], one["status"]) for one in (before, after)] == [
        (True, True, "in_progress"),
        (True, True, "completed"),
    ]
