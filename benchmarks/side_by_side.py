"""DeltaMem, mem0 and LangMem on one conversation of LoCoMo, with the same scripted model: calls, tokens, seconds.

    pip install -e '.[peers,offline]'
    python benchmarks/side_by_side.py --conversation 0

All systems are used as the benchmarks use them (`eval.systems`): two stores a conversation, one for each speaker as its
user; mem0 and LangMem are handed two messages a call, as Mem0's own evaluation does, DeltaMem whole sessions. The model
(``conversation_model.py``) takes the same memories for all, so that what differs is what the systems ask of it, and how
they search: the evidence of a question counts as found if the turn that holds it is among the k best memories of a store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from deltamem.config import CONFIGS, validated
from deltamem.errors import DeltaMemError
from deltamem.llm import Usage
from eval.config import BenchmarkConfig
from eval.data import LOCOMO, require
from eval.locomo.data import Conversation, Dialogue, Question, dialogues, load_locomo
from eval.models import make_embedder, open_models
from eval.systems.base import Ingested, Memory
from eval.systems.kinds import make_system

HERE = Path(__file__).parent
SYSTEMS = ("deltamem", "mem0", "langmem")


@contextmanager
def model_server(turns: Sequence[str], latency: float, folder: Path) -> Iterator[str]:
    """The scripted model as a process of its own; yields its base URL."""
    path = folder / "turns.json"
    path.write_text(json.dumps(list(turns)), encoding="utf-8")
    command = [sys.executable, str(HERE / "conversation_model.py"), str(path), str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def counts(url: str) -> dict[str, int]:
    """What the server has answered so far."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/counts") as answer:
        return dict(json.load(answer))


def configuration(system: str, url: str, out: Path, embedder: str) -> BenchmarkConfig:
    """The benchmarks' configuration with nothing cached."""
    base = OmegaConf.load(CONFIGS / "base" / "benchmark.yaml")
    own = {"system": system, "base_url": url, "out": str(out), "cache": None}
    nested = {
        "manager": {"model": "scripted", "max_tokens": 8192},
        "embedder": {"name": embedder},
        "answer": {"kind": "none"},
    }
    return validated(OmegaConf.merge(base, own, nested), BenchmarkConfig)


async def measure(
    config: BenchmarkConfig, by_store: Sequence[Dialogue], questions: Sequence[Question], ids: dict[str, str], k: int
) -> dict[str, Any]:
    """Let one system ingest the conversation, and ask it all questions.

    Args:
        config: Names the system and the model.
        by_store: What each of its stores ingests.
        questions: With evidence.
        ids: Of the turns, by their text.
        k: Memories a search returns, of each store.
    """
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(open_models(config))
        embedder = make_embedder(config.embedder)  # a new one for each system: it remembers texts
        await asyncio.to_thread(embedder.queries, [])
        system = make_system(config, config.out / "memory", embedder, models)
        stores = [await stack.enter_async_context(system.open(dialogue.key)) for dialogue in by_store]
        before, began = counts(str(config.base_url)), time.perf_counter()
        ingested_by_store = await asyncio.gather(
            *(_ingest(store, dialogue) for store, dialogue in zip(stores, by_store, strict=True))
        )
        seconds = time.perf_counter() - began
        served = {name: count - before[name] for name, count in counts(str(config.base_url)).items()}
        done = [ingested for of_store in ingested_by_store for ingested in of_store]
        usage = sum((ingested.usage for ingested in done), Usage())
        if served != {name: getattr(usage, name) for name in served}:
            raise SystemExit(f"error: {config.system} counted {usage}, the server {served}")
        searches, recalls = [], []
        for question in questions:
            began = time.perf_counter()
            found = await asyncio.gather(*(store.search(question.text, k) for store in stores))
            searches.append(time.perf_counter() - began)
            turns = {ids.get(_plain(passage.text)) for passages in found for passage in passages}
            recalls.append(sum(turn in turns for turn in question.evidence) / len(question.evidence))
        return {
            **served,
            "searches": usage.searches,
            "seconds": seconds,
            "memories": sum(len(ingested.memories or ()) for ingested in done),
            "recall": statistics.fmean(recalls),
            "search_ms": 1e3 * statistics.median(searches),
            "facts": system.facts(),
        }


async def _ingest(store: Memory, dialogue: Dialogue) -> list[Ingested]:
    done = [await store.ingest(session) for session in dialogue.sessions]
    strange = [ingested for ingested in done if not ingested.readable or ingested.violations]
    if strange:
        raise SystemExit(f"error: {dialogue.key.id}: the scripted model was not understood: {strange[0]}")
    return done


def _plain(text: str) -> str:
    return " ".join(text.split())


def compare(conversation: Conversation, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the systems one after the other, each in a folder of its own."""
    by_store = dialogues(conversation, per_speaker=True, captions="none")
    batch = options.batch_turns or None
    by_store = tuple(replace(dialogue, key=replace(dialogue.key, batch_turns=batch)) for dialogue in by_store)
    spoken = {turn.id: turn.spoken for session in by_store[0].sessions for turn in session.turns}
    ids = {_plain(text): turn for turn, text in spoken.items()}
    questions = [question for question in conversation.questions if question.category != 5 and question.evidence]
    sides = {}
    with tempfile.TemporaryDirectory() as folder, model_server(tuple(spoken.values()), options.latency, Path(folder)) as url:
        for name in options.systems.split(","):
            config = configuration(name, url, Path(folder) / name, options.embedder)
            print(f"{name} ...", file=sys.stderr, flush=True)
            sides[name] = asyncio.run(measure(config, by_store, questions, ids, options.k))
    sizes = {"conversation": conversation.id, "sessions": len(conversation.sessions), "turns": len(spoken)}
    settings = {name: getattr(options, name) for name in ("latency", "batch_turns", "k", "embedder")}
    return {**sizes, "questions": len(questions), **settings, "sides": sides}


def show(result: dict[str, Any]) -> None:
    """Print the result as a table."""
    sizes = ", ".join(f"{result[name]} {name}" for name in ("sessions", "turns", "questions"))
    print(f"{result['conversation']}: {sizes}; {1e3 * result['latency']:.0f} ms an answer")
    recall = f"recall@{result['k']}"
    print(f"{'':10}{'calls':>7}{'read':>11}{'written':>9}{'searches':>10}{'seconds':>9}{'memories':>10}", end="")
    print(f"{recall:>11}{'search ms':>11}")
    for name, side in result["sides"].items():
        print(
            f"{name:10}{side['calls']:7,}{side['prompt_tokens']:11,}{side['completion_tokens']:9,}{side['searches']:10,}"
            f"{side['seconds']:9.1f}{side['memories']:10,}{side['recall']:11.3f}{side['search_ms']:11.1f}"
        )


def main() -> None:
    """Compare, print the table, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversation", type=int, default=0, help="position in the file")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="some of them, with commas")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds before each answer of the model")
    parser.add_argument("--batch-turns", type=int, default=2, help="messages a call for mem0 and LangMem; 0: whole sessions")
    parser.add_argument("--k", type=int, default=10, help="memories a search returns, of each store")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2", help="of all systems")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        result = compare(load_locomo(require(LOCOMO))[options.conversation], options)
    except DeltaMemError as error:
        raise SystemExit(f"error: {error}") from error
    show(result)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
