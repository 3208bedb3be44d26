"""One load on one server, run by ``serving.py`` with locust: clients that each wait for their answer before they ask again.

What to do comes as JSON in the environment variable ``LOAD``; the figures are written to its ``out``. Locust rounds the
times in its own report, so they are collected here.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

from locust import FastHttpUser, events, task
from locust.env import Environment
from locust.exception import StopUser
from workload import REMEMBER, random_sentence

LOAD = json.loads(os.environ["LOAD"])
TIME = "2026-06-01T20:01:00"
numbers = itertools.count()
rng = random.Random(LOAD["seed"])
ended: list[float] = []
milliseconds: list[float] = []
found: list[int] = []
failures: list[str] = []


def request_of(number: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a request; each goes to another owner than the one before."""
    owner, mem0 = f"owner{number % LOAD['owners']}", LOAD["dialect"] == "mem0"
    if LOAD["kind"] == "search":
        query = random_sentence(rng)
        if mem0:
            return "/search", {"query": query, "filters": {"user_id": owner}, "top_k": 5}
        return f"/v1/owners/{owner}/search", {"queries": [query], "k": 5}
    turns = [{"role": "user", "content": f"Hello! {REMEMBER}{random_sentence(rng)}"}]
    if mem0:
        return "/memories", {"messages": turns, "user_id": owner}
    session = {"id": f"{LOAD['label']} {number}", "time": TIME, "turns": turns, "person": "Ann", "wait": 300}
    return f"/v1/owners/{owner}/sessions", session


def memories_of(answer: dict[str, Any]) -> list[Any]:
    """The memories that a search found, or that a session changed."""
    if LOAD["dialect"] == "mem0":
        return list(answer["results"])
    return list(answer["results"][0]["memories"] if LOAD["kind"] == "search" else answer["changes"])


class Client(FastHttpUser):
    """Asks until the number of requests is reached."""

    host = LOAD["url"]
    network_timeout = connection_timeout = 300.0

    @task
    def ask(self) -> None:
        """Send one request and look at the answer."""
        number = next(numbers)
        if number >= LOAD["requests"]:
            raise StopUser
        path, body = request_of(number)
        with self.client.post(path, json=body, name=LOAD["kind"], catch_response=True) as response:
            try:
                if response.status_code != 200:
                    raise ValueError(f"{response.status_code}: {response.text}")
                found.append(len(memories_of(response.json())))
            except (ValueError, LookupError, TypeError) as error:
                response.failure(repr(error)[:300])


@events.request.add_listener
def note(response_time: float, exception: object = None, **_: object) -> None:
    """Keep the time of a request; the last one ends the run."""
    ended.append(time.time())
    milliseconds.append(response_time)
    if exception is not None:
        failures.append(str(exception))
    if len(milliseconds) == LOAD["requests"]:
        environments[0].runner.quit()


environments: list[Environment] = []
events.init.add_listener(lambda environment, **_: environments.append(environment))


@events.quitting.add_listener
def write(**_: object) -> None:
    """Write the figures."""
    began = ended[0] - milliseconds[0] / 1000
    figures = {
        "requests": len(milliseconds),
        "failures": len(failures),
        "first_failure": failures[0] if failures else None,
        "found": statistics.fmean(found or [0]),
        "p50": statistics.median(milliseconds),
        "p95": statistics.quantiles(milliseconds, n=20)[-1],
        "per_second": len(milliseconds) / (max(ended) - began),
    }
    Path(LOAD["out"]).write_text(json.dumps(figures), encoding="utf-8")
