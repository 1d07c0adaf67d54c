"""Probe of a remote agent: is it reachable, does it accept the key, and what is it. No model is asked."""

from collections.abc import AsyncGenerator

from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.text import clip
from outrider.runtimes.base import MAX_PROBE_TEXT, ProbeResult, RuntimeProbe

_CHECK_SECONDS = 15.0
_SET_URL = "outrider config set remote.url https://…"
_SET_KEY = "outrider config set remote.key - (a key of the other side; for an Outrider: `outrider key` there)"


def _locate(config: Config) -> str:
    """The address stands for the program."""
    if not config.remote.url:
        from outrider.runtimes.remote.errors import NO_URL

        raise Refused(NO_URL)
    return config.remote.url


async def _checks(config: Config) -> AsyncGenerator[ProbeResult, None]:
    # Late, because the HTTP library takes long to import, and the probe is loaded to list the runtimes.
    from outrider.runtimes.remote.client import RemoteClient, parse_endpoint
    from outrider.runtimes.remote.errors import RemoteFailed
    from outrider.runtimes.remote.outrider_api import FarOutrider
    from outrider.runtimes.remote.runtime import list_models

    try:
        endpoint = parse_endpoint(config)
    except Refused as error:
        yield ProbeResult("program", "broken", str(error), _SET_URL)
        return
    yield ProbeResult("program", "fine", config.remote.url)
    if endpoint.key and config.remote.url.lower().startswith("http:") and not endpoint.is_loopback:
        text = f"the key is sent to {endpoint.host} without encryption"
        yield ProbeResult("start", "odd", text, "use https:// in remote.url")
    client = RemoteClient(endpoint, min(config.remote.patience, _CHECK_SECONDS), str)
    try:
        version = await FarOutrider(client).version() if config.remote.api != "chat" else ""
        if version:
            yield ProbeResult("start", "fine", f"{endpoint.host} answers")
            yield ProbeResult("version", "fine", f"Outrider {version}, by its sessions")
            yield ProbeResult("login", "fine", "it accepts the key" if endpoint.key else "it needs no key")
            return
        models = await list_models(client)
        yield ProbeResult("start", "fine", f"{endpoint.host} answers")
        if config.remote.api == "sessions":
            text = "it does not offer the sessions of an Outrider to this key, and remote.api is sessions"
            yield ProbeResult("version", "broken", text, "outrider config set remote.api auto")
            return
        named = f": {', '.join(models[:3])}{' …' if len(models) > 3 else ''}" if models else ""
        yield ProbeResult("version", "fine", clip(f"chat completions{named}", MAX_PROBE_TEXT))
        yield ProbeResult("login", "fine", "it accepts the key" if endpoint.key else "it needs no key")
    except RemoteFailed as failed:
        text = clip(str(failed), MAX_PROBE_TEXT)
        if failed.status in (401, 403):
            yield ProbeResult("login", "broken", text, _SET_KEY)
        elif failed.status == 404:
            yield ProbeResult("version", "odd", f"chat completions; it lists no models ({text})")
        elif failed.status:
            yield ProbeResult("start", "broken", text, "check that remote.url is an agent's base URL")
        else:
            yield ProbeResult("start", "broken", text, "check remote.url, and that the other side is running")
    finally:
        await client.close()


PROBE = RuntimeProbe(_locate, _checks, steers=True)
