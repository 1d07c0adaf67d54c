"""Seeing a child end, and ending it in order with all that it started."""

import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress

import anyio
import anyio.to_thread

from outrider.core.errors import Unavailable
from outrider.runtimes.jsonrpc.group import background_group
from outrider.runtimes.jsonrpc.orphans import ProcessTree
from outrider.runtimes.jsonrpc.pipes import read_some
from outrider.runtimes.jsonrpc.start import SpawnedProcess

_SIGKILL_TIMEOUT = 5.0
_log = logging.getLogger("outrider.jsonrpc")


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end; its status, below zero for a signal. It is not reaped, so that its number stays its own."""
    if sys.platform == "linux":
        # It cannot be another one's number: whoever was not waited for keeps it.
        with suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    pause = 0.01
    while (status := _exit_status(process)) is None:
        await anyio.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    return status


async def terminate(started: SpawnedProcess, kin: ProcessTree, grace: float, patience: float) -> None:
    """Close its stdin, wait, send SIGTERM, wait, send SIGKILL; then end what it started. To be shielded by its caller.

    What cannot be ended is said in the log.
    """
    process = started.process
    try:
        async with background_group() as group:
            # One that cannot write its last words does not come to its end.
            group.start_soon(_discard, started.stdout)
            group.start_soon(_discard, started.stderr)
            if not await _stop_in_steps(started, kin, grace, patience):
                _log.error("process %d does not die", process.pid)
            await kin.terminate()
    except (Unavailable, OSError) as error:
        _log.error("what process %d started was not ended: %s", process.pid, error)
    finally:
        # Where nothing else can be found, its group can.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(started.stdout)
        os.close(started.stderr)
        process.poll()


async def _stop_in_steps(started: SpawnedProcess, kin: ProcessTree, grace: float, patience: float) -> bool:
    process = started.process
    for number, seconds in ((0, grace), (signal.SIGTERM, patience), (signal.SIGKILL, _SIGKILL_TIMEOUT)):
        # Before each step: what it started can be told from others by descent only as long as it lives.
        try:
            await anyio.to_thread.run_sync(kin.scan)
        finally:
            if not number:
                os.close(started.stdin)
        if number and process.returncode is None:
            os.kill(process.pid, number)
            # One that is stopped would never notice.
            os.kill(process.pid, signal.SIGCONT)
        with anyio.move_on_after(seconds):
            await wait_for_exit(process)
            return True
    return False


async def _discard(descriptor: int) -> None:
    while await read_some(descriptor):
        pass


def _exit_status(process: subprocess.Popen[bytes]) -> int | None:
    if sys.platform != "linux":
        return process.poll()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
