"""``python -m papers.stitch.writer``: writes a data set of CAME-Bench."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt

from deltamem.config import StrictModel, run_hydra, validated
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, ResponseCache
from deltamem.runs import atomic_writer, file_sha256
from deltamem.window import estimate_tokens
from papers.stitch.came.records import (
    FILES,
    CameQuestion,
    CameTrajectory,
    ClosedWorld,
    Domain,
    GoldIntents,
    LogOperation,
    Size,
    Storyboard,
)
from papers.stitch.writer.llm_writer import Rewriter
from papers.stitch.writer.questions import make_questions
from papers.stitch.writer.realise import Core, gold_steps, say, say_cores, sittings
from papers.stitch.writer.storyboard import SHAPES, plan_debate, plan_travel
from papers.stitch.writer.world import build_world

if TYPE_CHECKING:
    from omegaconf import DictConfig

MANIFEST, ANSWERS = "manifest.json", "answers.sqlite"
TOKENS: dict[Size, int] = {"S": 23_000, "M": 137_000, "L": 408_000}
"""Context lengths of Table 2, here in tokens as `deltamem.window.estimate_tokens` counts the texts of the turns."""

TRAJECTORIES: dict[Size, int] = {"S": 3, "M": 3, "L": 1}
"""Trajectories of each domain; Table 2 has twice as many, over both domains."""

QUESTIONS: dict[Domain, dict[Size, int]] = {"travel": {"S": 24, "M": 28, "L": 31}, "debate": {"S": 24, "M": 28, "L": 30}}
"""Questions of each trajectory; over all 144, 168 and 61 as in Table 2."""

DOMAINS: tuple[Domain, ...] = ("travel", "debate")


class WriterSettings(StrictModel):
    """The model that writes the turns of operations, read only with ``writer=llm``; see `deltamem.llm.LLM`."""

    base_url: str | None
    model: str | None
    api_key_env: str
    timeout: PositiveFloat
    max_retries: NonNegativeInt
    slots: PositiveInt
    temperature: Annotated[float, Field(ge=0)] | None
    max_tokens: PositiveInt | None
    attempts: PositiveInt  # How often a turn is written until it passes the checks; then the template's words stay


class CameWriterConfig(StrictModel):
    """All keys of the command; ``configs/came_synth.yaml`` says what they mean."""

    size: Size
    domain: Literal["travel", "debate", "both"]
    seed: int
    out: Path
    entities: PositiveInt = Field(le=300)  # Names of a world are a small share of all spellings
    writer: Literal["templates", "llm"]
    llm: WriterSettings


class Instance(BaseModel):
    """A trajectory with all that belongs to it."""

    world: ClosedWorld
    board: Storyboard
    trajectory: CameTrajectory
    questions: list[CameQuestion]
    intents: GoldIntents


Rewrite = Callable[[ClosedWorld, Sequence[LogOperation], Sequence[Core]], list[Core]]
"""Says operations in other words."""


def make_instance(
    size: Size, domain: Domain, number: int, seed: int, entities: int, rewrite: Rewrite | None = None
) -> Instance:
    """Make a trajectory and ask about it.

    Args:
        size: How long it is.
        domain: Travel or debate.
        number: From 0; trips of a seed share a world, and each debate has a topic and a world of its own.
        seed: The same seed gives the same bytes.
        entities: Of each kind in the world of travel; 100 give that of a debate the paper's number.
        rewrite: Puts the turns of operations into other words.

    Raises:
        DeltaMemError: If the world is too small.
    """
    shape, name = SHAPES[size], f"{domain}-{size}-{number + 1}"
    rng = random.Random(f"{seed}/planned/{name}")
    if domain == "travel":
        world = build_world(domain, seed, 0, entities)
        operations = plan_travel(world, shape, rng)
    else:
        world = build_world(domain, seed, number, shape.entities * min(entities, 100) // 100)
        operations = plan_debate(world, shape, rng)
    cores = say_cores(world, operations, name, seed)
    if rewrite is not None:
        cores = rewrite(world, operations, cores)
    board = say(world, operations, cores, name, seed, TOKENS[size])
    questions = make_questions(board, domain, QUESTIONS[domain][size], seed)
    trajectory = CameTrajectory(
        id=name, domain=domain, size=size, world=world.id, topic=world.topic, sessions=sittings(board.turns)
    )
    intents = GoldIntents(
        trajectory=name,
        steps=gold_steps(board),
        queries={question.question: question.wanted for question in questions},
    )
    return Instance(world=world, board=board, trajectory=trajectory, questions=questions, intents=intents)


def rewriter_of(config: CameWriterConfig) -> AbstractContextManager[Rewriter]:
    """The model of ``writer=llm``, whose answers are kept in the output folder.

    Raises:
        DeltaMemError: If no model is named.
    """
    if config.llm.base_url is None or config.llm.model is None:
        raise DeltaMemError("writer=llm needs llm.base_url=<url> and llm.model=<name>")
    config.out.mkdir(parents=True, exist_ok=True)
    cache = ResponseCache(config.out / ANSWERS)
    shared = config.llm.model_dump(include={"api_key_env", "timeout", "max_retries"})
    llm = LLM(config.llm.base_url, config.llm.model, max_concurrency=config.llm.slots, cache=cache, **shared)
    return Rewriter(llm, cache, config.llm.temperature, config.llm.max_tokens, config.llm.attempts, config.seed)


def tokens_of(trajectory: CameTrajectory) -> int:
    """Estimated tokens of the texts of its turns."""
    return sum(estimate_tokens(turn.text) for session in trajectory.sessions for turn in session.turns)


def write(config: CameWriterConfig) -> dict[str, Any]:
    """Write a data set and return its manifest.

    Raises:
        DeltaMemError: As `make_instance`; or if the folder holds another data set.
    """
    domains = DOMAINS if config.domain == "both" else (config.domain,)
    by_model = config.writer == "llm"
    made_with = config.model_dump(mode="json", exclude={"out"} if by_model else {"out", "llm"})
    made_with |= (
        {"llm": config.llm.model_dump(include={"model", "temperature", "max_tokens", "attempts"})} if by_model else {}
    )
    manifest_file = config.out / MANIFEST
    if manifest_file.exists():
        try:
            before = json.loads(manifest_file.read_text(encoding="utf-8"))["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise DeltaMemError(f"{manifest_file} is not the manifest of a data set of CAME-Bench") from error
        if before != made_with:
            raise DeltaMemError(f"{config.out} holds another data set, made with {before}; give another folder as out")
    with ExitStack() as stack:
        rewriter = stack.enter_context(rewriter_of(config)) if by_model else None
        instances = [
            make_instance(
                config.size, domain, number, config.seed, config.entities, None if rewriter is None else rewriter.rewrite
            )
            for domain in domains
            for number in range(TRAJECTORIES[config.size])
        ]
    config.out.mkdir(parents=True, exist_ok=True)
    worlds = {one.world.id: one.world for one in instances}
    lines: dict[str, Iterable[BaseModel]] = {
        "worlds": worlds.values(),
        "trajectories": [one.trajectory for one in instances],
        "questions": [question for one in instances for question in one.questions],
        "storyboard": [one.board for one in instances],
        "intents": [one.intents for one in instances],
    }
    for name in FILES:
        with atomic_writer(config.out / f"{name}.jsonl") as file:
            for record in lines[name]:
                file.write(record.model_dump_json() + "\n")
    manifest = {
        "benchmark": "CAME",
        "config": made_with,
        "counted": "tokens are estimated as bytes / 3 (deltamem.window.estimate_tokens), over the texts of the turns",
        "trajectories": {
            one.trajectory.id: {
                "tokens": tokens_of(one.trajectory),
                "turns": len(one.board.turns),
                "operations": len(one.board.operations),
                "questions": len(one.questions),
            }
            for one in instances
        },
        "written": rewriter.counts if rewriter is not None else {},
        "sha256": {name: file_sha256(config.out / f"{name}.jsonl") for name in FILES},
    }
    with atomic_writer(manifest_file) as file:
        json.dump(manifest, file, indent=2)
        file.write("\n")
    return manifest


def _write(config: DictConfig) -> None:
    settings = validated(config, CameWriterConfig)
    for name, counts in write(settings)["trajectories"].items():
        print(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    print(f"written to {settings.out}")


if __name__ == "__main__":
    run_hydra(_write, "came_synth", Path(__file__).parents[1] / "configs")
