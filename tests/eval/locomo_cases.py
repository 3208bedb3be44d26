"""A small benchmark file with every irregularity of the real one, runs of it, and an embedder to check by hand."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from rich.console import Console
from scripted_server import Reply, Served, completion

import eval.runner as evaluation
from deltamem.config import CONFIGS, validated
from deltamem.embedding import CachedEmbedder, Vectors
from eval.locomo.__main__ import Locomo
from eval.locomo.data import LocomoConfig


def benchmark() -> list[dict[str, Any]]:
    return [
        {
            "sample_id": "conv-1",
            "conversation": {
                "speaker_a": "Ana",
                "speaker_b": "Bo",
                "session_10_date_time": "12:05 am on 10 June, 2023",
                "session_10": [{"speaker": "Ana", "dia_id": "D10:1", "text": "My sister Mia came."}],
                "session_2_date_time": "1:56 pm on 8 May, 2023",
                "session_2": [
                    {
                        "speaker": "Ana",
                        "dia_id": "D2:1",
                        "text": "I adopted a dog.",
                        "img_url": ["u"],
                        "blip_caption": "a dog",
                    },
                    {"speaker": "Bo", "dia_id": "D2:2", "text": "Lovely!", "blip_caption": "a red bicycle"},
                ],
                # Dates without a session, as in the first conversation of the real file.
                "session_11_date_time": "1:00 pm on 1 July, 2023",
                "session_35_date_time": "1:00 pm on 2 July, 2023",
            },
            "qa": [
                {"question": "dog?", "answer": 2022, "evidence": ["D2:1"], "category": 2},
                {"question": "sister dog?", "answer": "Mia", "evidence": ["D2:01; D10:1", "D:2:2"], "category": 1},
                {"question": "why?", "answer": "kind", "evidence": [], "category": 3},
                {"question": "lost?", "answer": "x", "evidence": ["D", "D9:9"], "category": 4},
                {"question": "bicycle?", "answer": "red", "evidence": ["D2:2", "D2:2"], "category": 4},
                {"question": "bicycle?", "answer": "red", "evidence": ["D2:2"], "category": 4},
                {"question": "cat?", "evidence": ["D2:1"], "category": 5, "adversarial_answer": "a cat"},
                {"question": "no?", "answer": "No", "evidence": ["D2:1"], "category": 5, "adversarial_answer": "yes"},
            ],
        },
        {
            "sample_id": "conv-2",
            "conversation": {
                "speaker_a": "Cy",
                "speaker_b": "Di",
                "session_1_date_time": "9:00 am on 1 January, 2024",
                "session_1": [{"speaker": "Cy", "dia_id": "D1:1", "text": "The dog is mine."}],
            },
            "qa": [{"question": "dog?", "answer": "Cy", "evidence": ["D1:1"], "category": 4}],
        },
    ]


def audit(**first: object) -> list[dict[str, Any]]:
    """Two entries that fit the small file: a wrong answer, and an answer that is right with other evidence."""
    return [
        {
            "question_id": "locomo_0_qa0",
            "question": "dog?",
            "error_type": "TEMPORAL_ERROR",
            "correct_answer": "2023",
            "correct_evidence": ["D2:1", "D10:1"],
        }
        | first,
        {
            "question_id": "locomo_0_qa4",
            "question": "bicycle?",
            "error_type": "WRONG_CITATION",
            "correct_answer": "red (the answer is right)",
            "correct_evidence": ["D2:1"],
        },
    ]


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


class WordEmbedder:
    """One dimension a word that matters."""

    name = "words"
    words = ("dog", "sister", "bicycle")

    def documents(self, texts) -> Vectors:
        counts = np.array([[word in text for word in self.words] for text in texts], dtype=np.float32)
        return counts.reshape(len(texts), len(self.words))

    queries = documents


def settings(*overrides: str) -> LocomoConfig:
    """The configuration as the command composes it."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return validated(compose("locomo", [*overrides]), LocomoConfig)


def evaluate(monkeypatch, folder: Path, *overrides: str, data: object = None) -> dict[str, Any]:
    """A run of the small file in a folder, with the embedder of this module."""
    file = folder / "l.json"
    if data is not None or not file.exists():
        write(file, benchmark() if data is None else data)
    monkeypatch.setattr(evaluation, "make_embedder", lambda settings: CachedEmbedder(WordEmbedder()))
    config = settings(f"data={file}", f"out={folder / 'out'}", "resamples=20", *overrides)
    return evaluation.evaluate(Locomo, config, Console(file=io.StringIO()))


def questions(folder: Path) -> dict[str, dict[str, Any]]:
    """The last record of each question in ``out/questions.jsonl``."""
    lines = (folder / "out" / "questions.jsonl").read_text().splitlines()
    return {record["key"]: record for record in map(json.loads, lines)}


JUDGED = "You grade an answer"
TRICK = "You check an answer to a trick question"


def models(server: Served, *more: str) -> list[str]:
    return [f"base_url={server.url}", "answer.model=tiny", "judge.probes=false", *more]


def prompts(server: Served) -> list[str]:
    """What was asked, without the checks whether the server is there."""
    return [body["messages"][-1]["content"] for body in server.requests if body.get("max_tokens") != 1]


def script(body: dict[str, Any]) -> Reply:
    """Answers with 'red'; the lenient judge accepts all, the strict one only what is the reference."""
    asked = body["messages"][0]["content"]
    if asked.startswith(TRICK):
        return completion('{"reason": "r", "label": "fooled"}', prompt_tokens=10, tokens=2)
    if asked.startswith(JUDGED):
        strict = "fact by fact" in asked
        same = re.search(r"Reference answer: (.*)\nAnswer to grade: \1\n", asked)
        label = "wrong" if strict and not same else "correct"
        return completion(f'{{"reason": "r", "label": "{label}"}}', prompt_tokens=100, tokens=3)
    return completion("red", prompt_tokens=1000, tokens=1)
