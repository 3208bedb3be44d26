"""How likely the points of sessions are to some models: ``python -m eval.transfer.likelihood MODEL... [SESSIONS.jsonl]``.

The points of a session are written as the queries of its first turn, which is where a policy of our warm start first says
what it takes note of, and each model tells how likely their words are.
Nothing is generated, so runs of the same training that are too short to answer, or whose answers differ by chance, can be
told apart in minutes. What it cannot see is what a model would write, and how labels are worded counts as well as what
they say: it compares trainings, and `eval.transfer` has the figures of a policy.

The sessions are those of `eval.transfer`, or the held-out people of a file of ``python -m synth``, whose points are the
memories to be added: by kind of fact too, which shows what a training without some kinds makes of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from deltamem.config import composed, run_plain, validated
from deltamem.episode import SEARCH_TOOL, EpisodeConfig, Message, load_episode_config, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.intervals import Interval, bootstrap_interval, interval_text
from deltamem.sessions import FactKind, LabelledSession, Session, Turn, read_sessions
from eval.transfer.data import TransferConfig, TransferPerson, read_people


@dataclass(frozen=True)
class Answer:
    """A session as a model is asked it, and the points that it should take note of."""

    person: str
    messages: list[Message]
    points: tuple[str, ...]
    kinds: tuple[FactKind | None, ...]  # Of the points; None where nobody said


@dataclass(frozen=True)
class Likelihood:
    """What a model gives the words of a point of an answer."""

    person: str
    loss: float  # Negative log-likelihood, in nats, summed over tokens
    tokens: int
    likeliest: int  # Of the tokens those that are the model's first choice
    kind: FactKind | None = None


def answers(people: Sequence[TransferPerson], episode: EpisodeConfig) -> Iterator[Answer]:
    """The sessions that have points."""
    for person in people:
        for session in person.sessions:
            if session.points:
                turns = tuple(Turn(turn.role, turn.spoken) for turn in session.dialogue.turns)
                asked = Session(person.store.id, person.store.owner, session.dialogue.time, turns)
                unknown = (None,) * len(session.points)
                yield Answer(person.store.id, opening_messages(asked, episode), session.points, unknown)


def labelled_answers(sessions: Iterable[LabelledSession], episode: EpisodeConfig) -> Iterator[Answer]:
    """The sessions in which memories are to be added."""
    for labelled in sessions:
        planned = () if labelled.difficulty is None else labelled.difficulty.operations
        kinds = [one.kind for one in planned] or [None] * len(labelled.operations)
        added = [(one.text, kind) for one, kind in zip(labelled.operations, kinds, strict=True) if one.event == "ADD"]
        if added:
            points, of = zip(*added, strict=True)
            yield Answer(labelled.session.person_id, opening_messages(labelled.session, episode), points, of)


def likelihood(model: Any, tokenizer: Any, answer: Answer) -> list[Likelihood]:
    """What a decoder of transformers gives each point of a session, after those before it.

    Args:
        model: With a language-modelling head.
        tokenizer: Its fast tokenizer, with a chat template.
        answer: The session and its points.
    """
    import torch
    import torch.nn.functional as F

    text: str = tokenizer.apply_chat_template(answer.messages, tokenize=False, add_generation_prompt=True)
    text += f'<tool_call>{{"name": "{SEARCH_TOOL}", "arguments": {{"query_list": ['
    spans: list[tuple[int, int]] = []
    for point in answer.points:
        text += '"'
        begin = len(text)
        text += json.dumps(point, ensure_ascii=False)[1:-1]
        spans.append((begin, len(text)))
        text += '", '
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, return_tensors="pt")
    token_ids, places = read["input_ids"], read["offset_mapping"][0].tolist()
    tokens = [[at for at, (_, end) in enumerate(places) if begin < end <= last] for begin, last in spans]
    chosen = [at for of_point in tokens for at in of_point]
    with torch.no_grad():
        hidden = model.base_model(input_ids=token_ids.to(model.device), use_cache=False).last_hidden_state[0]
        logits = model.get_output_embeddings()(hidden[[at - 1 for at in chosen]]).float()
    targets = token_ids[0, chosen].to(logits.device)
    losses = F.cross_entropy(logits, targets, reduction="none").cpu()
    likeliest = (logits.argmax(dim=-1) == targets).cpu()
    parts = [len(of_point) for of_point in tokens]
    return [
        Likelihood(answer.person, float(loss.sum()), len(loss), int(hits.sum()), kind)
        for loss, hits, kind in zip(losses.split(parts), likeliest.split(parts), answer.kinds, strict=True)
    ]


def less_than(first: Sequence[Likelihood], other: Sequence[Likelihood], *, seed: int = 0) -> Interval | None:
    """By how many nats a token another model's loss is lower, on the same answers, with an interval by person."""
    gains = [one.loss - two.loss for one, two in zip(first, other, strict=True)]
    tokens = [float(one.tokens) for one in first]
    return bootstrap_interval(gains, [one.person for one in first], denominators=tokens, seed=seed)


def rows(found: Sequence[Likelihood], first: Sequence[Likelihood]) -> Iterator[tuple[str, ...]]:
    """What the table says of a model: of all points, then of each kind.

    Args:
        found: What it gives the points.
        first: What the first model of the table gives them; empty for that model itself.
    """
    for kind in (None, *sorted({one.kind for one in found if one.kind})):
        of_kind = [one for one in found if kind in (None, one.kind)]
        gain = less_than([one for one in first if kind in (None, one.kind)], of_kind) if first else None
        tokens = sum(one.tokens for one in of_kind)
        loss, likeliest = sum(one.loss for one in of_kind) / tokens, sum(one.likeliest for one in of_kind) / tokens
        less = "" if gain is None else interval_text(gain.bounds())
        yield kind or "all", f"{loss:.3f}", less, f"{likeliest:.3f}", str(len(of_kind)), f"{tokens:,}"


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
    of_answers = (likelihood(model, tokenizer, answer) for answer in track(asked, str(folder), console=Console(stderr=True)))
    return [one for found in of_answers for one in found]


def _asked(files: Sequence[Path], settings: Sequence[str], episode: EpisodeConfig) -> list[Answer]:
    if files and settings:
        raise DeltaMemError(f"{files[0]}: its held-out people are asked whole; leave {settings[0]} out")
    if files:
        asked = [one for file in files for one in labelled_answers(read_sessions(file, split="heldout"), episode)]
    else:
        config = validated(composed("transfer", ["suites=[chat]", "system=copy_all", *settings]), TransferConfig)
        asked = list(answers(read_people(config).people, episode))
    if not asked:
        raise DeltaMemError(f"{', '.join(map(str, files)) or 'the suites'}: no session with a point to ask for")
    return asked


def compare(given: Sequence[str]) -> int:
    """Print a table of models, with what each gains over the first one; settings are those of `eval.transfer`."""
    settings = [part for part in given if "=" in part]
    paths = [Path(part) for part in given if "=" not in part]
    folders = [path for path in paths if path.suffix != ".jsonl"]
    if not folders:
        raise DeltaMemError("name a folder of a model, or several: python -m eval.transfer.likelihood MODEL [suites=[chat]]")
    asked = _asked([path for path in paths if path.suffix == ".jsonl"], settings, load_episode_config(folders[0]))
    print("| model | kind | nats a token | less than the first | likeliest tokens | points | tokens |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    first: list[Likelihood] = []
    for folder in folders:
        found = measure(folder, asked)
        for cells in rows(found, first):
            print(f"| {folder} | {' | '.join(cells)} |", flush=True)
        first = first or found
    return 0


if __name__ == "__main__":
    run_plain(lambda: compare(sys.argv[1:]))
