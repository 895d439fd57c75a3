"""The tests on every supported pair of Python and Django for which the machine has the interpreter."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

PAIRS = [
    ("3.11", "5.2"),
    ("3.13", "5.2"),
    ("3.12", "6.0"),
    ("3.12", "6.1"),
    ("3.13", "6.1"),
    ("3.14", "6.1"),
]
IDS = [f"python{python}_django{django}".replace(".", "") for python, django in PAIRS]


@nox.session
@nox.parametrize(("python", "django"), PAIRS, ids=IDS)
def tests(session: nox.Session, django: str) -> None:
    """Run the tests that need nothing but Python and pip."""
    session.install("-r", "requirements.txt", f"django~={django}.0")
    session.run("python", "-m", "pytest", "-m", "not peers and not wheel", *session.posargs)
