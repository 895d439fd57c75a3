"""Settings of the live site with Channels: the channel layer that the test names, else the one in memory."""

import json
import os

from .settings import *  # noqa: F403

ROOT_URLCONF = "tests.live.channels_urls"
ASGI_APPLICATION = "tests.live.channels_asgi.application"
CHANNEL_LAYERS = {
    "default": json.loads(os.environ.get("LIVE_CHANNEL_LAYER", '{"BACKEND": "channels.layers.InMemoryChannelLayer"}'))
}
