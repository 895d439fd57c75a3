"""The benchmarks print the figures that they promise; no test here asks how fast anything is."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def figures(module: str, *arguments: str) -> Any:
    """Return what a benchmark prints with ``--json``."""
    finished = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        timeout=100,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize("loop", ["stock", "uvloop"])
def test_overhead_tells_the_cost_of_each_kind_of_chunk_and_the_memory(loop: str) -> None:
    printed = figures("overhead", "--loop", loop, "--rounds", "2", "--chunks", "40", "--streams", "5")

    loops = [] if loop in printed["missing"] else [loop]
    assert [(row["loop"], row["chunk"], row["type"]) for row in printed["cost"]] == [
        (loop, chunk, type_name) for loop in loops for chunk in ("ready", "awaited") for type_name in ("str", "bytes")
    ]
    assert [row["loop"] for row in printed["memory"]] == loops
    for row in printed["cost"] + printed["memory"]:
        assert row["bare"] > 0
        assert set(row["added"]) == {"ours", "task", "pump"}
        assert row["bar"] > 0
        assert row["kept"] in (True, False)


@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_server_tells_the_cost_of_each_wrapper_and_leaves_out_absent_peers(server: str) -> None:
    printed = figures("server", "--server", server, "--rounds", "1", "--chunks", "40")

    has_peer = find_spec("sse_starlette") is not None
    wrappers = {"bare", "ours", "task"} | ({"peer"} if has_peer and server == "uvicorn" else set())
    assert ("sse_starlette" in printed["missing"]) == (not has_peer)
    assert [(row["server"], row["chunk"], row["type"]) for row in printed["cost"]] == [
        (server, chunk, type_name) for type_name in ("str", "bytes") for chunk in ("ready", "awaited")
    ]
    for row in printed["cost"]:
        assert set(row["cpu"]) == wrappers
        assert all(value > 0 for value in row["cpu"].values())
        assert row["over_bare"] > 0
        assert (row["over_peer"] is not None) == ("peer" in wrappers)


def test_switches_tell_what_asking_and_watching_cost_and_how_long_changes_take() -> None:
    few = {"rounds": 1, "requests": 3, "streams": 20, "turns": 1, "periods": 1, "changes": 2, "deadline": 90}
    printed = figures("switches", *(f"--{name}={value}" for name, value in few.items()))

    has_waffle = find_spec("waffle") is not None
    assert printed["missing"] == ([] if has_waffle else ["waffle"])
    who_is_asked = {"nobody", "ours", "cache", "database"} | ({"waffle"} if has_waffle else set())
    assert {row["who"] for row in printed["asking"]} == who_is_asked
    assert all(row["cpu"] > 0 and row["over_ours"] > 0 for row in printed["asking"])
    assert printed["request"]["without"] > 0
    assert printed["request"]["with_switches"] > 0
    watching = printed["watching"]
    assert watching["with_switches"]["lowest"] > 0
    assert watching["is_cheap"] in (True, False)
    assert watching["queries"] > 0
    assert watching["is_quiet"] in (True, False)
    assert [row["state"] for row in printed["changes"]] == ["off", "on", "stop"]
    assert all(row["obeyed"]["lowest"] > 0 for row in printed["changes"])
    servers = ["uvicorn", "daphne"]
    assert [(row["saved_in"], row["seen_in"]) for row in printed["delays"]] == [
        (saved_in, seen_in) for saved_in in servers for seen_in in servers
    ]
    assert all(0 < row["median"] <= row["highest"] for row in printed["delays"])


@pytest.mark.peers
def test_fanout_tells_how_fast_messages_get_to_all_clients_and_how_many_are_lost() -> None:
    few = {"clients": 4, "rounds": 2, "singles": 8, "deliveries": 40, "light": 2, "heavy": 6, "heavy-window": 3}
    printed = figures("fanout", "--deadline=90", *(f"--{name}={value}" for name, value in few.items()))

    has_peer = find_spec("django_eventstream") is not None
    assert printed["missing"] == ([] if has_peer else ["django_eventstream"])
    ours = [(who, layer) for who in ("view", "consumer") for layer in ("core", "pubsub")]
    peers = [("plain", "core"), ("plain", "pubsub"), *([("eventstream", None)] if has_peer else [])]
    assert [(row["who"], row["layer"]) for row in printed["fanout"]] == ours + peers
    for row in printed["fanout"]:
        assert row["clients"] == 4
        assert row["rate"] > 0
        assert row["cpu"] > 0
        assert row["single_cpu"] > 0
        assert 0 < row["latency"] <= row["highest_latency"]
        assert row["messages"] == 2 * (8 + 40) + 2 * 4
        assert row["heavy"] == 6 * 4
        # With so few on their way nobody has a reason to lose any.
        assert (row["lost"], row["heavy_lost"], row["out_of_order"]) == (0, 0, 0)
    assert [(row["who"], row["layer"], row["peer"]) for row in printed["comparisons"]] == [
        (who, layer, peer) for who, layer in ours for peer in ("plain", "eventstream") if peer == "plain" or has_peer
    ]
    for row in printed["comparisons"]:
        assert row["rate"] > 0
        assert row["cpu"] > 0
        assert row["kept"] == (row["rate"] >= 1 and row["cpu"] <= 1 and row["single_cpu"] <= 1)


def test_fanout_says_that_it_needs_redis() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.fanout"],
        cwd=ROOT,
        env={**os.environ, "PATH": ""},
        capture_output=True,
        timeout=100,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stderr.startswith("Needed, but not installed: redis-server")
    assert finished.stderr.count("\n") == 1
