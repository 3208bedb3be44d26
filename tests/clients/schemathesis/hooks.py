"""Lets Schemathesis meet what exists: without these hooks nearly all its owners, ids and points would be unknown.

A path that may be a good one gets an owner of the operation's own, so that what one operation erases is not missing to
another, with a memory and a job that are there. Every other point is one of theirs. The stateful phase is left alone: there
ids come from earlier answers.
"""

import itertools
import os

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import TestPhase

URL = os.environ["DELTAMEM_URL"]
http = requests.Session()
http.headers["Authorization"] = f"Bearer {os.environ['DELTAMEM_TOKEN']}"
turn = itertools.count()
memories, jobs = {}, {}
EPISODES = ("add_episodes", "list_episodes", "list_reflections", "recall")


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def memory(owner):
    """The UUID of a memory of the owner."""
    if owner not in memories:
        body = {"memories": [{"text": "Ann lives in Boston.", "metadata": {"topic": "home"}}]}
        memories[owner] = http.post(f"{URL}/v1/owners/{owner}/memories", json=body).json()["memories"][0]["uuid"]
    return memories[owner]


def job(owner):
    """The id of a session that was taken on."""
    if owner not in jobs:
        turns = [{"role": "user", "content": "My city is Boston."}]
        body = {"id": "mon", "time": "2026-03-02T09:00:00Z", "turns": turns}
        jobs[owner] = http.post(f"{URL}/v1/owners/{owner}/sessions", json=body).json()["id"]
    return jobs[owner]


def export(owner):
    """What may be read into the memory of somebody else who has none."""
    memory(owner)
    return http.get(f"{URL}/v1/owners/{owner}/export").text


@schemathesis.hook
def before_call(context, case, kwargs):
    name, path, meta = case.operation.definition.raw["operationId"], case.path_parameters, case.meta
    if name == "add_session" and isinstance(case.body, dict) and isinstance(case.body.get("wait"), int | float):
        case.body["wait"] = min(case.body["wait"], 0.05)  # what cannot be read would be waited for
    if "owner" not in path or meta.phase.name is TestPhase.STATEFUL or meta.is_negative_at(ParameterLocation.PATH):
        return
    path["owner"] = owner = f"{'agent:' if name in EPISODES else ''}owner of {name}"
    if name == "add_episodes" and not meta.is_negative_at(ParameterLocation.BODY):
        case.body["messages"].append({"role": "assistant", "content": "Done."})  # what no schema can ask for
    if name == "update_owner" and not meta.is_negative_at(ParameterLocation.BODY) and case.body["timezone"] is not None:
        case.body["timezone"] = "Europe/Berlin"  # likewise
    if name in ("add_session", "add_memories"):
        return
    known = memory(owner)
    if "memory" in path:
        path["memory"] = known
    if "job" in path:
        path["job"] = job(owner)
    if next(turn) % 2:
        return
    if name == "diff" and not meta.is_negative_at(ParameterLocation.QUERY):
        case.query["before"] = "@1"
    if name == "rollback" and not meta.is_negative_at(ParameterLocation.BODY):
        case.body["to"] = "@1"
    if name == "import_journal" and not meta.is_negative_at(ParameterLocation.QUERY):
        path["owner"], case.body = f"{owner} {next(turn)}", export(owner)
        case.query["rename"] = True


@schemathesis.hook
def after_call(context, case, response):
    name = case.operation.definition.raw["operationId"]
    if name in ("delete_memory", "erase_owner"):
        memories.pop(f"owner of {name}", None)
    if name == "set_model":
        http.put(f"{URL}/v1/admin/model", json={"paused": False})
