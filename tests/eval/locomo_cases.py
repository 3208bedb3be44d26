"""A small benchmark file with every irregularity of the real one, models of rules, and an embedder to check by hand."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from scripted_server import Reply, completion

from deltamem.embedding import Vectors


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

    def __init__(self, *words: str) -> None:
        self.words = words or ("dog", "sister", "bicycle")

    def documents(self, texts) -> Vectors:
        counts = np.array([[word in text for word in self.words] for text in texts], dtype=np.float32)
        return counts.reshape(len(texts), len(self.words))

    queries = documents


JUDGED = "You grade an answer"
TRICK = "You check an answer to a trick question"


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
