"""The settings of the site that is measured, in its servers and in the process that sends."""

import os
from importlib.util import find_spec

_HOST, _PORT = "127.0.0.1", int(os.environ["BENCHMARK_REDIS_PORT"])

# redis-py 8 gives up after 5 seconds by default, and so does then a receive() of the core layer that finds nothing.
_REDIS = {"host": _HOST, "port": _PORT, "socket_timeout": None}

ALLOWED_HOSTS = [_HOST]
CHANNEL_LAYERS = {
    "core": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {"hosts": [_REDIS], "prefix": "core"},
    },
    "pubsub": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [_REDIS], "prefix": "pubsub"},
    },
}
EVENTSTREAM_REDIS = _REDIS
INSTALLED_APPS = ["channels"]
if find_spec("django_eventstream"):
    INSTALLED_APPS.append("django_eventstream")
LOGGING_CONFIG = None
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "benchmarks.fanout.asgi"
SECRET_KEY = "benchmark"
USE_TZ = True
