"""The address of a reply is fixed when a message arrives, and nothing that the model does changes it."""

from pathlib import Path

import pytest

from outrider.core.events import Entry, Input, Result
from outrider.testing.scripted_model import ScriptedModel, call, says
from tests.support.tasking import TERMINAL, open_scripted, say_and_wait, wait_for_notices

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S6")]

ELSEWHERE = "mail:somebody@elsewhere.example"


@pytest.mark.needs("sandbox")
async def test_no_tool_takes_an_address_and_notices_go_to_the_address_of_the_message(tmp_path: Path) -> None:
    model = ScriptedModel(
        says("", call("shell", command="true", background=True, address=ELSEWHERE)),
        says("", call("delegate", work="say hi", address=ELSEWHERE)),
        says("", call("shell", command="true", background=True, description=f"tell {ELSEWHERE}")),
        says("I will tell you"),
        says("it has ended"),
    )
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "run it, and tell me when it is done")
        (notice,) = await wait_for_notices(agent, session)
        (task,) = await agent.tasks(session)
        journal = await agent.journal(session)
    assert (notice.address, task.spec.address) == (TERMINAL, TERMINAL)
    assert [_is_refused(entry) for entry in journal if isinstance(entry.body, Result)] == [True, True, False]
    assert {entry.body.address for entry in journal if isinstance(entry.body, Input)} == {TERMINAL}


def _is_refused(entry: Entry) -> bool:
    return isinstance(entry.body, Result) and entry.body.failed and "address" in entry.body.text


async def test_each_message_keeps_the_address_that_it_came_from(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedModel(says("one"), says("two"))) as agent:
        await say_and_wait(agent, "first")
        session = await say_and_wait(agent, "second", "sessions:s")
        before = await agent.journal(session)
        await agent.change(session, {"address": ELSEWHERE})
        after = await agent.journal(session)
    assert [entry.body.address for entry in before if isinstance(entry.body, Input)] == [TERMINAL, "sessions:s"]
    assert after[: len(before)] == before
