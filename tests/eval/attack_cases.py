"""An invented benchmark in LoCoMo's format, with an honest system, answerer and judge, and runs in which one of them is not.

Names and facts are drawn with a seed, so no model can know them, and every gold answer stands word for word in its turns.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from zlib import crc32

from rich.console import Console

from deltamem.config import composed, validated
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, Answer, ResponseCache, ServedModel, Usage
from deltamem.prompts import Prompt
from eval import runner
from eval.answer import LLMAnswerer, Sampler
from eval.compare.layout import ALL
from eval.compare.runs import load_runs
from eval.compare.tables import compare
from eval.config import AnswerModel
from eval.judge import ABSTAINED, CORRECT, FOOLED, OTHER, WRONG, load_calibration
from eval.locomo.__main__ import Locomo
from eval.parts import GivenParts
from eval.records import QuestionRecord, Verdict
from eval.systems.base import DialogueSession, DialogueTurn, Ingested, Passage, SessionBuffer
from eval.systems.baselines import Baseline

PEOPLE = ("Odra", "Belun", "Tamsin", "Quill", "Marek", "Isaura", "Feno", "Wanda", "Joris", "Petra", "Ludo", "Sunniva")
THINGS = ("dog", "boat", "cat", "car", "horse", "choir", "street", "novel", "doctor", "bakery", "village", "teacher")
_SYLLABLES = ["".join(parts) for parts in product("bdfgklmnprstvz", "aeiou", "lmnrs")]
_SESSIONS, _CHATTER, _FACTS = 12, 8, 8
_CATEGORIES = (1,) * 3 + (2,) * 3 + (3,) + (4,) * 9
"""Of the questions about the sixteen facts of a conversation, by LoCoMo's numbers; four of category 5 follow."""
_ASKED = {
    1: "What are the names of {0}'s {1} and {2}'s {3}?",
    2: "When did {0} tell the name of the {1}?",
    3: "Which name would {0} expect on a card about the {1}?",
    4: "What is the name of {0}'s {1}?",
}


class _Fact(NamedTuple):
    """The name of somebody's thing, told in a session."""

    speaker: str
    thing: str
    value: str
    session: int

    @property
    def told(self) -> str:
        return f"You know, my {self.thing}, the name is {self.value} after all."


class World:
    """Invented conversations, and the gold answers that a scripted model may know."""

    def __init__(self, seed: int, conversations: int = 6) -> None:
        """Draw people, facts and questions; twenty questions a conversation."""
        self.conversations: list[dict[str, Any]] = []  # As LoCoMo's file has them
        self.gold: dict[str, str] = {}  # By question; those of category 5 have none
        self.traps: dict[str, str] = {}  # By question of category 5 the wrong answer that it suggests
        rng = random.Random(seed)
        for number in range(conversations):
            self._add(rng, f"conv-{number + 1}", (PEOPLE[2 * number % 12], PEOPLE[(2 * number + 1) % 12]))

    def write(self, path: Path) -> Path:
        """Write the file that the benchmark reads."""
        path.write_text(json.dumps(self.conversations), encoding="utf-8")
        return path

    def _add(self, rng: random.Random, name: str, pair: tuple[str, str]) -> None:
        begin = datetime(2023, rng.randint(1, 12), 1, 9, 30)
        times = [begin + timedelta(days=17 * session) for session in range(_SESSIONS)]
        names = rng.sample(_SYLLABLES, 4 * _FACTS)
        things = rng.sample(THINGS, len(THINGS))
        own = {pair[0]: things[:_FACTS], pair[1]: things[-_FACTS:]}  # Some things both have, some only one
        facts = [
            _Fact(speaker, thing, (names.pop() + names.pop()).capitalize(), rng.randrange(_SESSIONS))
            for speaker in pair
            for thing in own[speaker]
        ]
        conversation: dict[str, Any] = {"speaker_a": pair[0], "speaker_b": pair[1]}
        ids: dict[str, str] = {}  # By text
        for number, time in enumerate(times):
            spoken = [(fact.speaker, fact.told) for fact in facts if fact.session == number]
            for thing in rng.sample(THINGS, _CHATTER):
                spoken.append((rng.choice(pair), f"How is your {thing}? I always forget the name of a {thing}."))
            rng.shuffle(spoken)
            key = f"session_{number + 1}"
            turns = [
                {"speaker": who, "dia_id": f"D{number + 1}:{at}", "text": text} for at, (who, text) in enumerate(spoken, 1)
            ]
            ids |= {turn["text"]: turn["dia_id"] for turn in turns}
            conversation |= {f"{key}_date_time": f"{time:%I:%M} am on {time:%-d %B, %Y}", key: turns}
        rng.shuffle(facts)
        asked: list[dict[str, Any]] = []
        for at, category in enumerate(_CATEGORIES):
            fact, more = facts[at], facts[at - 1]
            about = [fact, more] if category == 1 else [fact]
            question = _ASKED[category].format(fact.speaker, fact.thing, more.speaker, more.thing)
            gold = f"{times[fact.session]:%-d %B %Y}" if category == 2 else ", ".join(one.value for one in about)
            self.gold[question] = gold
            evidence = [ids[one.told] for one in about]
            asked.append({"question": question, "answer": gold, "evidence": evidence, "category": category})
        for other, speaker in (pair, pair[::-1]):
            for fact in [one for one in facts if one.speaker == speaker and one.thing not in own[other]][:2]:
                question = _ASKED[4].format(other, fact.thing)
                self.traps[question] = fact.value
                trick = {"question": question, "evidence": [ids[fact.told]], "category": 5}
                asked.append(trick | {"adversarial_answer": fact.value})
        self.conversations.append({"sample_id": name, "conversation": conversation, "qa": asked})


@lru_cache(maxsize=4096)
def words(text: str) -> frozenset[str]:
    """The words of a text in lower case; every search goes through the same few hundred turns."""
    return frozenset(re.findall(r"\w+", text.lower()))


def share(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    kept = list(values)
    return fmean(kept) if kept else 0.0


Find = Callable[["Store", str, int], list[Passage]]


class ScriptedSystem(Baseline):
    """A system that keeps all sessions, and finds what a function returns."""

    def __init__(self, name: str, find: Find) -> None:
        """Bind the function, which is given the store, the query and k."""
        super().__init__(name, {"shown": "what a function finds"}, lambda key: Store(self), ranked=True)
        self.find = find


class Store(SessionBuffer):
    """A store of `ScriptedSystem`."""

    def __init__(self, system: ScriptedSystem) -> None:
        """Begin with nothing."""
        super().__init__()
        self._system = system

    @property
    def turns(self) -> list[tuple[DialogueSession, DialogueTurn]]:
        """All that was said."""
        return [(session, turn) for session in self.sessions.values() for turn in session.turns]

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all turns."""
        return tuple(turn.id for _, turn in self.turns)

    async def ingest(self, session: DialogueSession) -> Ingested:
        """Keep it, with a call of a model."""
        await super().ingest(session)
        return Ingested(usage=Usage(calls=1))

    async def search(self, query: str, k: int) -> list[Passage]:
        """What the function finds."""
        return self._system.find(self, query, k)


def turns_of(store: Store, query: str, k: int) -> list[Passage]:
    """The turns that share the most words with a query."""
    return most_similar([Passage(turn.spoken, session.time, (turn.id,)) for session, turn in store.turns], query, k)


def most_similar(passages: Sequence[Passage], query: str, k: int) -> list[Passage]:
    """The passages that share the most words with a query, for their length."""
    wanted = words(query)
    scored = [(len(wanted & words(one.text)) / max(1, len(words(one.text))) ** 0.5, one) for one in passages]
    best = sorted(scored, key=lambda pair: -pair[0])[:k]
    return [replace(passage, similarity=round(similarity, 4)) for similarity, passage in best]


def broken() -> DeltaMemError:
    """What an endpoint that is gone raises."""
    return DeltaMemError("the endpoint is gone")


Replies = Callable[[str, str], str | Answer]
"""What a scripted model answers to a question with the memories that it is shown."""

URL = "http://invented.invalid/v1"
_BETWEEN = "\x1f"
_PROMPT = Prompt.of("invented", f"$question{_BETWEEN}$context")


class ScriptedModel(LLM):
    """A model that a function plays; everything round it is the real client."""

    def __init__(self, replies: Replies, root: str = "", url: str = URL, cache: ResponseCache | None = None) -> None:
        """Bind the function; the server at the URL says that it has the model from the root."""
        super().__init__(url, "scripted", cache=cache)
        self._replies = replies
        self._root = root

    async def _ask(self, request: dict[str, Any]) -> Answer:
        question, _, shown = request["messages"][0]["content"].partition(_BETWEEN)
        reply = self._replies(question, shown)
        return Answer(reply, False, 1, 1) if isinstance(reply, str) else reply

    async def models(self) -> list[ServedModel]:
        """This one alone."""
        return [ServedModel(self.model, None, self._root)]


def answerer(replies: Replies) -> LLMAnswerer:
    """The harness's own answerer on a scripted model."""
    return LLMAnswerer(Sampler(ScriptedModel(replies), 0.0, 512, 0), _PROMPT, with_time=True)


def answered_by(model: Callable[..., ScriptedModel], settings: AnswerModel, folder: Path) -> AnswerModel:
    """The settings of an answerer whose client `model` makes, with a prompt that is written into the folder."""

    class ScriptedAnswers(AnswerModel):
        def client(self, part: str, cache: ResponseCache | None) -> LLM:
            return model(cache=cache)

    prompt = folder / "scripted.md"
    prompt.write_text(_PROMPT.text, encoding="utf-8")
    changes = {"base_url": model().base_url, "model": "scripted", "prompt": str(prompt)}
    return ScriptedAnswers(**settings.model_dump() | changes)


def lucky(text: str, percent: int) -> bool:
    """Whether a text is among a share of all texts that is drawn once and for all."""
    return crc32(text.encode()) % 100 < percent


def reader(world: World, percent: int, unsure: str | Answer | None = None) -> Replies:
    """A model that reads what it is shown, and is right about a share of the questions.

    Where it is not, it says something definite and wrong, or what it is given as `unsure`. It knows nothing else.
    """

    def reply(question: str, shown: str) -> str | Answer:
        gold = world.gold.get(question)
        if lucky(question, percent):
            if gold is None:
                return "No information available"
            if all(part in shown for part in gold.split(", ")):
                return gold
        if unsure is not None:
            return unsure
        return world.traps.get(question, f"Probably {PEOPLE[crc32(question.encode()) % len(PEOPLE)]}")

    return reply


Label = Callable[[Mapping[str, str]], str | None]
"""What a scripted judge says of the fields of its prompt; None stands for a reply without a verdict."""


@dataclass
class ScriptedJudge:
    """A judge that a function plays."""

    name: str
    label: Label

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        """See `eval.answer.Judge`."""
        label = self.label(fields)
        return Verdict(label=label, error=None if label else f"the judge {self.name!r} gave no verdict: prose")


_CALIBRATION = {(item.question, item.answer): item.right for item in load_calibration()}


def fair(fields: Mapping[str, str]) -> str:
    """What an honest judge says: by the gold answer, and without fault on the calibration items."""
    answer = fields["answer"]
    if "trap" in fields:
        if fields["trap"] and fields["trap"] in answer:
            return FOOLED
        return ABSTAINED if "no information" in answer.lower() else OTHER
    right = _CALIBRATION.get(
        (fields["question"], answer), all(part in answer for part in fields["gold"].split(", ")) and " or " not in answer
    )
    return CORRECT if right else WRONG


K = 5
RECALL = f"recall@{K}"
SKILL = 45
"""Percent of the questions that the honest model answers rightly where it is shown what it needs."""


class Result:
    """The folder of a run, as its reader and a naive harness see it; scores in percent."""

    def __init__(self, folder: Path) -> None:
        """Read it."""
        (self.run,) = load_runs([folder])
        self.summary, self.head = self.run.summary, self.run.headline
        self.warnings = " ".join(self.summary.warnings)
        self.pooled = [record for record in self.run.questions if record.category != "adversarial"]
        self.withheld = self.head.withheld is not None
        self.recalled = self.summary.scores.get(RECALL, {}).get(ALL)
        # Also where they are withheld
        self.score, self.recall = (100 * one.estimate if one else 0.0 for one in (self.head.score, self.recalled))
        # Of the verdicts that there are
        labels = [one.verdicts["lenient"].label for record in self.pooled for one in record.answers if one.verdicts]
        self.naive_score = 100 * share(label == "correct" for label in labels if label)
        # By the sources that the system claims, of the questions that could be searched for
        self.naive_recall = 100 * share(self._claimed(one) for one in self.pooled if one.evidence and one.error is None)

    def _claimed(self, record: QuestionRecord) -> float:
        sources = {turn for one in record.retrieved[:K] for turn in self.run.passages[one.passage].sources}
        return sum(turn in sources for turn in record.evidence) / len(record.evidence)


class Lab:
    """Runs attacks in a folder, each in one of its own, against one honest run."""

    def __init__(self, folder: Path) -> None:
        """Invent the benchmark."""
        self.folder = folder
        self.world = World(0)
        data = f"data={self.world.write(folder / 'invented.json')}"
        fixed = [f"base_url={URL}", "answer.model=scripted", "judge.model=judge", "resamples=20"]
        # Once, as composing takes as long as many of the runs.
        self._config = composed("locomo", [data, *fixed, f"k={K}", f"cutoffs=[1,{K}]", "with_time=true"])

    def run(
        self,
        name: str,
        *keys: str,
        find: Find | None = turns_of,
        replies: Replies | None = None,
        model: Callable[..., ScriptedModel] | None = None,
        label: Label = fair,
    ) -> Result:
        """Run LoCoMo with configuration keys such as ``limit=9``.

        What is not replaced is honest. The system is configured where there is no `find`, and the answerer where a `model`
        is made for it.
        """
        parts = GivenParts(
            system=ScriptedSystem("scripted", find) if find else None,
            answerer=None if model else answerer(replies or reader(self.world, SKILL)),
            judges={judge: ScriptedJudge(judge, label) for judge in ("lenient", "strict", "abstention_judge")},
        )
        chosen = self._config.copy()
        chosen.merge_with_dotlist([f"out={self.folder / name}", *keys])
        config = validated(chosen, Locomo.config_type)
        if model is not None:
            config = config.model_copy(update={"answer": answered_by(model, config.answer, self.folder)})
        runner.evaluate(Locomo, config, Console(quiet=True), parts)
        return Result(self.folder / name)

    @cached_property
    def honest(self) -> Result:
        """The run that attacks want to look better than."""
        return self.run("honest")

    def warned(self, word: str, *results: Result) -> list[str]:
        """Where a comparison says that the runs differ in something by this name."""
        (section,) = compare([result.run for result in results]).values()
        return [sentence for sentence in section.differences if word in sentence]
