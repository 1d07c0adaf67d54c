"""The `Runtime` of Codex: finds the process and the thread of a session, and carries its turn there."""

import logging

from outrider.core.events import Started
from outrider.core.ports import Turn
from outrider.core.traits import RuntimeTraits
from outrider.runtimes.calls import Calls
from outrider.runtimes.codex.faults import bad_settings, not_logged_in, of_gone, of_rpc, told
from outrider.runtimes.codex.lending import Lending
from outrider.runtimes.codex.pool import Pool
from outrider.runtimes.codex.process import Server
from outrider.runtimes.codex.threads import NAME, approach, wanted_model
from outrider.runtimes.codex.turn import Carrying
from outrider.runtimes.codex.wire import parse_is_barred
from outrider.runtimes.jsonrpc import ChildGone, NoAnswer, RpcError
from outrider.runtimes.kit import Kit
from outrider.runtimes.outside import asking as outside
from outrider.runtimes.outside.asking import Asking, News

log = logging.getLogger("outrider.codex")


class CodexRuntime:
    traits = RuntimeTraits(NAME, steers=True, bounded=False, takes_client_tools=False)

    def __init__(self, kit: Kit, pool: Pool, lending: Lending) -> None:
        self._kit = kit
        self._lending = lending
        self._pool = pool
        self._calls = Calls(kit.tools, kit.place)

    async def started_entry(self, turn: Turn) -> Started:
        return Started(NAME, wanted_model(turn, self._kit.config))

    async def run(self, turn: Turn) -> None:
        news = News(turn)
        asking = Asking(turn, self._kit.place, news, outside.PATIENCE)
        if turn.state().questions:
            await asking.answer_for_nobody()
            if turn.state().questions:
                return
        await approach(turn)
        try:
            if not await self._carried(turn, news, asking):
                await self._carried(turn, news, asking)
        except ChildGone as gone:
            raise of_gone(gone) from gone
        except NoAnswer as error:
            raise told(str(error)) from error
        except RpcError as error:
            raise of_rpc(error, "what was asked of it") from error

    async def _carried(self, turn: Turn, news: News, asking: Asking) -> bool:
        """False when the process turned out to have died since its last turn: another may have more luck."""
        async with self._pool.lent(turn.session) as server:
            is_used, steps = server.is_checked, turn.state().steps
            try:
                await self._check_login(server)
                await Carrying(self._kit, self._calls, server, turn, news, asking).run(self._lending)
            except ChildGone as gone:
                if not is_used or turn.state().steps > steps:
                    raise
                log.warning("Codex is started anew: %s", gone)
                return False
        return True

    async def _check_login(self, server: Server) -> None:
        """Ask before a model is: without a login it would try for a while and then say something else."""
        if server.is_checked:
            return
        try:
            is_barred = parse_is_barred(await server.request("account/read", {}))
        except RpcError:
            is_barred = False
        if is_barred:
            # With settings that it cannot read it goes by its defaults, and asks for a login that is not wanted.
            complaint = await server.complaint()
            # One that is started after a login knows of it.
            server.retire()
            raise bad_settings(complaint) if complaint else not_logged_in()
        server.is_checked = True
