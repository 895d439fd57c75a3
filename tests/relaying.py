"""What is relayed in this process: a look at what streams that are over have left behind."""

import asyncio

from sse_keepalive import relays


def relayed(loop: asyncio.AbstractEventLoop | None = None) -> list[str]:
    """Return the groups that have a relay, one for each of them, in all loops or in one."""
    return [
        group for (where, _), layer in list(relays._layers.items()) if loop in (None, where) for group in layer._relays
    ]
