"""Settings of the live site with operators: the admin with all it needs, and the database that the test names."""

import json
import os

from tests.settings import INSTALLED_APPS as INSTALLED_APPS
from tests.settings import TEMPLATES as TEMPLATES

from .settings import *  # noqa: F403

ROOT_URLCONF = "tests.live.operated_urls"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the others are slow on purpose
DATABASES = {"default": json.loads(os.environ["LIVE_DATABASE"])}
