"""
The settings of the site that is measured, in this process and in the servers'.

A module as any site has one: ``settings.configure()`` would make each setting slower to read.
"""

import os
from importlib.util import find_spec

ALLOWED_HOSTS = ["127.0.0.1"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["BENCHMARK_DATABASE"]}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "sse_keepalive"]
if find_spec("waffle"):
    INSTALLED_APPS.append("waffle")
LOGGING_CONFIG = None
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "benchmarks.switches.asgi"
SECRET_KEY = "benchmark"
# No keep-alive falls due while something is measured.
SSE_KEEPALIVE_INTERVAL = 86_400.0
# SSE_KEEPALIVE_REFRESH is left at its default, as most sites will leave it.
USE_TZ = True
