"""Settings of the live site: nothing but what its streams need."""

import os

from .play import RECORD_SEPARATOR

SECRET_KEY = "live"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.live.urls"
ASGI_APPLICATION = "tests.live.asgi.application"
USE_TZ = True
# Compresses for clients that ask for it; the raw client of the tests does not.
MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware"]

# Short, so that the tests are; the streams that test another one say so.
SSE_KEEPALIVE_INTERVAL = 0.25

# What reaches `django.request` goes into a file of its own: servers log the same errors elsewhere.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "%(levelname)s %(name)s: %(message)s"},
        "record": {"format": RECORD_SEPARATOR + "%(levelname)s %(message)s %(request)r"},
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "plain"},
        "requests": {
            "class": "logging.FileHandler",
            "filename": os.environ.get("LIVE_REQUEST_LOG", os.devnull),
            "formatter": "record",
        },
    },
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"django.request": {"handlers": ["requests"], "level": "INFO"}},
}
