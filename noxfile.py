"""The tests on every supported pair of Python and Django for which the machine has the interpreter."""

import os

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

PAIRS = [
    ("3.11", "5.2"),
    ("3.13", "5.2"),
    ("3.12", "6.0"),
    ("3.13", "6.1"),
    ("3.14", "6.1"),
]
IDS = [f"python{python}_django{django}".replace(".", "") for python, django in PAIRS]


#: Many tests wait for servers, so that a process more than two cores have is none too many.
PROCESSES = str(max(3, os.cpu_count() or 0))


@nox.session
@nox.parametrize(("python", "django"), PAIRS, ids=IDS)
def tests(session: nox.Session, django: str) -> None:
    """Run the tests that need nothing but Python and pip."""
    session.install("-r", "requirements.txt", f"django~={django}.0", "pytest-xdist")
    options = ["-m", "not peers and not wheel", "-n", PROCESSES, "--ignore", "tests/test_benchmarks.py"]
    session.run("python", "-m", "pytest", *options, *session.posargs)
