"""How likely the points of talk that is not ours are to some models: ``python -m eval.transfer.likelihood MODEL...``.

The points of a session are written as the answer to it, without a search, and each model tells how likely their words are.
Nothing is generated, so runs of the same training that are too short to answer, or whose answers differ by chance, can be
told apart in minutes. What it cannot see is what a model would write, and how labels are worded counts as well as what
they say: it compares trainings, and `eval.transfer` has the figures of a policy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from deltamem.config import composed, run_plain, validated
from deltamem.episode import EpisodeConfig, Message, load_episode_config, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.intervals import Interval, bootstrap_interval, interval_text
from deltamem.sessions import Session, Turn
from eval.transfer.data import TransferConfig, TransferPerson, read_people


@dataclass(frozen=True)
class Answer:
    """A session as a model is asked it, and its points as the answer."""

    person: str
    messages: list[Message]
    points: tuple[str, ...]


@dataclass(frozen=True)
class Likelihood:
    """What a model gives the words of the points of an answer."""

    person: str
    loss: float  # Negative log-likelihood, in nats, summed over tokens
    tokens: int


def answers(people: Sequence[TransferPerson], episode: EpisodeConfig) -> Iterator[Answer]:
    """The sessions that have points."""
    for person in people:
        for session in person.sessions:
            if session.points:
                turns = tuple(Turn(turn.role, turn.spoken) for turn in session.dialogue.turns)
                asked = Session(person.store.id, person.store.owner, session.dialogue.time, turns)
                yield Answer(person.store.id, opening_messages(asked, episode), session.points)


def likelihood(model: Any, tokenizer: Any, answer: Answer) -> Likelihood:
    """What a decoder of transformers gives the points of an answer, each after those before it.

    Args:
        model: With a language-modelling head.
        tokenizer: Its fast tokenizer, with a chat template.
        answer: The session and its points.
    """
    import torch
    import torch.nn.functional as F

    text: str = tokenizer.apply_chat_template(answer.messages, tokenize=False, add_generation_prompt=True)
    text += '<outputs>{"operations": ['
    spans: list[tuple[int, int]] = []
    for point in answer.points:
        text += '{"text": "'
        begin = len(text)
        text += json.dumps(point, ensure_ascii=False)[1:-1]
        spans.append((begin, len(text)))
        text += '", "event": "ADD"}, '
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, return_tensors="pt")
    token_ids, places = read["input_ids"], read["offset_mapping"][0].tolist()
    chosen = [at for at, (_, end) in enumerate(places) if any(begin < end <= last for begin, last in spans)]
    with torch.no_grad():
        hidden = model.base_model(input_ids=token_ids.to(model.device), use_cache=False).last_hidden_state[0]
        logits = model.get_output_embeddings()(hidden[[at - 1 for at in chosen]]).float()
    losses = F.cross_entropy(logits, token_ids[0, chosen].to(logits.device), reduction="sum")
    return Likelihood(answer.person, float(losses), len(chosen))


def less_than(first: Sequence[Likelihood], other: Sequence[Likelihood], *, seed: int = 0) -> Interval | None:
    """By how many nats a token another model's loss is lower, on the same answers, with an interval by person."""
    gains = [one.loss - two.loss for one, two in zip(first, other, strict=True)]
    tokens = [float(one.tokens) for one in first]
    return bootstrap_interval(gains, [one.person for one in first], denominators=tokens, seed=seed)


def measure(folder: Path, asked: Sequence[Answer]) -> list[Likelihood]:
    """Load a model and ask it all; on a GPU where there is one.

    Raises:
        DeltaMemError: If the folder holds no model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise DeltaMemError(f"{folder}: no model that can be loaded ({error})") from error
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return [likelihood(model, tokenizer, answer) for answer in track(asked, folder.name, console=Console(stderr=True))]


def compare(given: Sequence[str]) -> int:
    """Print a table of models, with what each gains over the first; settings are those of `eval.transfer`."""
    folders = [Path(part) for part in given if "=" not in part]
    if not folders:
        raise DeltaMemError("name a folder of a model, or several: python -m eval.transfer.likelihood MODEL [suites=[chat]]")
    settings = ["suites=[chat]", "system=copy_all", *(part for part in given if "=" in part)]
    people = read_people(validated(composed("transfer", settings), TransferConfig)).people
    asked = list(answers(people, load_episode_config(folders[0])))
    first: list[Likelihood] | None = None
    print("| model | nats a token | less than the first | sessions | tokens |\n| --- | ---: | ---: | ---: | ---: |")
    for folder in folders:
        found = measure(folder, asked)
        first = first or found
        tokens, gain = sum(one.tokens for one in found), less_than(first, found)
        less = "" if gain is None or first is found else interval_text(gain.bounds())
        print(
            f"| {folder} | {sum(one.loss for one in found) / tokens:.3f} | {less} | {len(found)} | {tokens:,} |", flush=True
        )
    return 0


if __name__ == "__main__":
    run_plain(lambda: compare(sys.argv[1:]))
