"""Settings for the tests: as little as possible, so that nothing is there that users may lack."""

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = ["sse_keepalive"]
ROOT_URLCONF = "tests.urls"
MIDDLEWARE: list[str] = []
ALLOWED_HOSTS = ["*"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
