"""
Settings for the tests: the app and what its admin needs, and no middleware.

That the rest needs none of these is tested in interpreters of their own.
"""

import os
import tempfile
from pathlib import Path

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "sse_keepalive",
]
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.urls"
MIDDLEWARE: list[str] = []
ALLOWED_HOSTS = ["*"]
# The tests' is in a file, which is closed between two tests, as one in memory is not: when a response is closed Django
# looks at connections that are open, and a test without a database must not.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "TEST": {"NAME": Path(tempfile.gettempdir()) / f"sse_keepalive-tests-{os.getpid()}.sqlite3"},
    }
}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
