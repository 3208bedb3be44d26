"""A dialogue that can be checked by hand, a store for it, and a configuration such as the benchmarks compose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from omegaconf import OmegaConf

from deltamem.config import CONFIGS, validated
from deltamem.embedding import Vectors
from deltamem.errors import EmbedderUnavailableError
from eval.config import BenchmarkConfig
from eval.systems.base import DialogueSession, DialogueTurn, Role, StoreKey

SPEAKERS: dict[Role, str] = {"user": "Ana", "assistant": "Bo"}

ANA = StoreKey("conv-1.Ana", "Ana", batch_turns=2)


class MissingEmbedder:
    """An embedder that is not installed."""

    name = "missing"

    def documents(self, texts: Sequence[str]) -> Vectors:
        raise EmbedderUnavailableError("fetch it")

    queries = documents


def talk(number: int, time: datetime, *said: tuple[Role, str]) -> DialogueSession:
    """A session ``s<number>`` of Ana, the user, with Bo; its turns are ``D<number>:1``, ``D<number>:2``, ..."""
    turns = [
        DialogueTurn(f"D{number}:{index}", role, SPEAKERS[role], text) for index, (role, text) in enumerate(said, start=1)
    ]
    return DialogueSession(f"s{number}", time, tuple(turns))


def dialogue() -> list[DialogueSession]:
    """Ana lives in Boston, then in Denver, and teaches."""
    return [
        talk(
            1,
            datetime(2023, 5, 8, 13, 56),
            ("user", "Hello! My city is Boston."),
            ("assistant", "Look! My pet is a grey cat. [image: a cat on a sofa]"),
        ),
        talk(
            2,
            datetime(2023, 6, 10, 9),
            ("assistant", "How are you?"),
            ("user", "I moved. My city is Denver."),
            ("assistant", "My boat is the Otter."),
        ),
        talk(
            3,
            datetime(2023, 7, 1, 9),
            ("user", "My job is teaching chemistry."),
            ("assistant", "As you know, my pet is a grey cat."),
        ),
    ]


def benchmark_config(out: Path, *overrides: str) -> BenchmarkConfig:
    """The base configuration with overrides such as ``system=deltamem``."""
    base = OmegaConf.load(CONFIGS / "base" / "benchmark.yaml")
    own = OmegaConf.from_dotlist([f"out={out}", "manager.max_retries=0", *overrides])
    return validated(OmegaConf.merge(base, own), BenchmarkConfig)
