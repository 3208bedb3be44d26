"""The assisted episode: for models that were not trained for the turns of `deltamem.episode`.

The model is shown a worked example and asked for one JSON object that lists the facts of the session. The search is made
for it, and only where something like a new fact is remembered is it asked a second, short question: does the fact repeat a
memory, or change it? Shown together with the session, memories are copied as facts by small models. What comes out are the
same operations as those of `deltamem.episode.Episode`, by the same interface.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import AliasChoices, BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError, field_validator

from deltamem.bank.base import Hit
from deltamem.config import StrictModel
from deltamem.dedup import Adjustment
from deltamem.endpoint import AnswerSchema
from deltamem.episode import REFUSALS, Episode, EpisodeConfig, EpisodeLog, Finished, Message, Search, Violation
from deltamem.memory import Event, Memory, Operation, check
from deltamem.own_words import FIRST_PERSON, LONGEST_FACT, SAID, NamedDialogue, OwnWords, one_line
from deltamem.prompts import load_prompt
from deltamem.replies import after_thinking, json_pieces, json_values, without_thinking
from deltamem.sessions import Role, Session, Turn
from deltamem.text import (
    Kind,
    content_stems,
    marked_words,
    negations,
    normalised,
    salient,
    salient_items,
)

_MOST_FACTS = 40  # Of one answer: more are repetitions without an end


class AssistedConfig(StrictModel):
    """What shapes assisted episodes. Each ingredient can be left out, to measure what it brings (docs/models.md)."""

    examples: bool = True  # Whether a worked example precedes each question
    schema_bound: bool = True  # Whether the endpoint is asked to keep answers to a schema
    k: NonNegativeInt = 2  # Memories that a new fact is compared with at most; 0 compares nothing, so all facts are added
    near: float = Field(default=0.56, ge=-1, le=1)
    """Least cosine similarity of a memory that a fact is compared with. On the development set (MiniLM) the 37 memories that
    have to be changed are at .57 or nearer to their new text, and 16 of 17 that the 1.5B model changed wrongly below .56."""
    support: float = Field(default=0.5, ge=0, le=1)
    """Share of a fact's words that must have been said, see `deltamem.own_words.OwnWords`; 0 keeps all facts."""
    part_tokens: PositiveInt | None = None
    """Longest dialogue of one question, in estimated tokens; longer sessions are split. None: what the window takes."""

    @property
    def prompt_hashes(self) -> dict[str, str]:
        """sha256 of each prompt file in use, by name."""
        return {name: load_prompt(name).sha256 for name in _PROMPTS} | (
            {_EXAMPLES: hashlib.sha256(_examples_file()).hexdigest()} if self.examples else {}
        )


_PROMPTS = ("assisted", "assisted_session", "assisted_compare")


class _Example(StrictModel):
    kind: Literal["assistant", "people"]  # Whom the person talks to
    person: str
    time: datetime
    turns: list[tuple[Role, str]]
    facts: list[tuple[int, str]]

    def messages(self) -> list[Message]:
        dialogue = NamedDialogue.of(Session("", self.person, self.time, tuple(Turn(*turn) for turn in self.turns)))
        facts = {"facts": [{"line": line, "fact": fact} for line, fact in self.facts]}
        return [_session_message(dialogue, self.time), _answer(facts)]


class _Comparison(StrictModel):
    person: str
    facts: list[tuple[str, dict[str, str], str, str]]  # Text, near memories, the one that is meant, the relation to it

    def messages(self) -> list[Message]:
        near = [(fact, memories) for fact, memories, _, _ in self.facts]
        answer = {
            str(number): {"relation": relation, "note": note} for number, (_, _, note, relation) in enumerate(self.facts, 1)
        }
        return [_comparison_message(self.person, near), _answer(answer)]


class _Examples(StrictModel):
    sessions: list[_Example]
    comparison: _Comparison


_EXAMPLES = "assisted_examples"


@cache
def _examples_file() -> bytes:
    return resources.files("deltamem.prompts").joinpath(f"{_EXAMPLES}.json").read_bytes()


@cache
def _examples() -> _Examples:
    return _Examples.model_validate_json(_examples_file())


def _answer(value: Mapping[str, Any]) -> Message:
    return Message(role="assistant", content=json.dumps(value, ensure_ascii=False))


def _session_message(dialogue: NamedDialogue, time: datetime) -> Message:
    prompt = load_prompt("assisted_session")
    when = f"{time:%A}, {time.day} {time:%B %Y, %H:%M}"
    other = "the assistant" if dialogue.other == "assistant" else dialogue.other
    return Message(
        role="user", content=prompt.fill(time=when, dialogue=dialogue.lines(), person=dialogue.person, other=other)
    )


def _comparison_message(person: str, facts: Sequence[tuple[str, Mapping[str, str]]]) -> Message:
    listed = "\n".join(
        "\n".join((f"{number}. {one_line(fact)}", *(f"   {note}: {one_line(text)}" for note, text in notes.items())))
        for number, (fact, notes) in enumerate(facts, start=1)
    )
    return Message(role="user", content=load_prompt("assisted_compare").fill(person=person, facts=listed))


def _opening_messages(dialogue: NamedDialogue, time: datetime, config: AssistedConfig) -> list[Message]:
    """The messages with which an assisted episode begins; the last one holds the session."""
    kind = "assistant" if dialogue.other == "assistant" else "people"
    examples = [example for example in _examples().sessions if config.examples and example.kind == kind]
    return [
        Message(role="system", content=load_prompt("assisted").text),
        *(message for example in examples for message in example.messages()),
        _session_message(dialogue, time),
    ]


class _Fact(BaseModel):
    """One entry of an answer, as far as it can be read."""

    fact: str = Field(validation_alias=AliasChoices("fact", "text", "memory"))
    event: Literal["ADD", "UPDATE", "NONE", ""] = ""  # Of models that write operations; NONE says nothing new

    @field_validator("event", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.strip().upper() if isinstance(value, str) else value

    @property
    def text(self) -> str:
        return " ".join(self.fact.split())


class _Judgement(BaseModel):
    """What an answer says about one fact: how it stands to a memory."""

    relation: str
    note: str


class FactsReading(NamedTuple):
    """What was understood of an answer."""

    facts: tuple[str, ...] | None  # None if it holds no list of facts
    whole: bool  # Whether it was one object of the form that was asked for


def read_facts(text: str) -> FactsReading:
    """Read the facts of an answer, whatever stands around them, see `json_values`. Never raises.

    A list that was cut, or that has entries which cannot be read, gives what can be; one without any gives None. A list of
    operations, as other software and our own turns have them, is a list of facts of which NONE tells none.
    """
    begin = after_thinking(text)
    text = text[begin:] if begin > 0 else without_thinking(text)
    found = json_values(text)
    values, whole, listed, readable = found.values, found.plain, False, False
    if found.broken is not None:  # What cannot be read as a whole may hold entries that can
        values, whole = [*values, *json_pieces(text, found.broken)], False
    entries: list[Any] = []
    for value in values:
        wanted = value.get("facts") if isinstance(value, dict) else None
        whole = whole and isinstance(wanted, list)
        if isinstance(value, dict) and len(value) == 1 and isinstance(inner := next(iter(value.values())), dict):
            value = inner  # Such as {"outputs": {"operations": [...]}}
        if isinstance(value, dict):
            value = next((value[name] for name in _LISTS if isinstance(value.get(name), list | dict)), value)
        listed = listed or isinstance(value, list)
        entries += value if isinstance(value, list) else [value]
    facts = []
    for entry in entries:
        try:
            fact = _Fact.model_validate({"fact": entry} if isinstance(entry, str) else entry)
            fact.text.encode("utf-8")
        except (ValidationError, UnicodeEncodeError):
            whole = False
            continue
        readable = True
        if fact.event != "NONE":
            facts.append(fact.text)
    nothing_told = listed and not entries
    return FactsReading(tuple(facts) if readable or nothing_told else None, whole and listed)


_LISTS = ("facts", "operations", "memory", "memories")  # Keys under which facts are listed; mem0's prompts say `memory`


class AssistedEpisode(EpisodeLog):
    """One session read by one question, and a second one if memories are near; in the place of `Episode`."""

    def __init__(self, session: Session, known_ids: Collection[str], config: AssistedConfig) -> None:
        """Begin an episode; `known_ids` are those of the memory state before the session."""
        self._dialogue = NamedDialogue.of(session)
        super().__init__(_opening_messages(self._dialogue, session.time, config))
        self.adjustments: Counter[Adjustment] = Counter()
        """How many facts were left out or not written where the model wanted them, by reason."""
        self._own_words = OwnWords(self._dialogue)
        self._known_ids = known_ids
        self._config = config
        self._facts: tuple[str, ...] | None = None
        self._near: dict[int, dict[str, Hit]] = {}  # By place of a fact the memories that it is compared with

    @property
    def problem(self) -> str:
        """Why no facts could be read, in plain words."""
        cut = Violation.TOKEN_LIMIT in self._violations
        return REFUSALS[Violation.TOKEN_LIMIT] if cut else "it holds no JSON list of facts"

    @property
    def schema(self) -> AnswerSchema | None:
        """What the endpoint should keep the answer to; None leaves the model free."""
        if not self._config.schema_bound:
            return None
        if self._facts is None:
            fact = {"line": {"type": "integer"}, "fact": {"type": "string", "maxLength": LONGEST_FACT}}
            lines = sum(one.own for one in self._dialogue.utterances)
            facts = {"type": "array", "items": _closed(fact), "maxItems": min(_MOST_FACTS, 4 + 2 * lines)}
            return AnswerSchema("facts", _closed({"facts": facts}), "The facts that the person tells.")
        judgements = {
            str(number): _closed(
                {
                    "relation": {"type": "string", "enum": ["new", "same", "change"]},
                    "note": {"type": "string", "enum": ["none", *hits]},
                }
            )
            for number, hits in enumerate(self._near.values(), start=1)
        }
        return AnswerSchema("comparison", _closed(judgements), "How new facts stand to old notes.")

    def read(self, text: str, *, truncated: bool = False) -> Search | Finished:
        """Take one answer; `truncated` if the engine stopped at a token limit, of which whole entries count.

        Returns `Search` for memories that the new facts may concern, whose queries are the facts, else `Finished`.
        """
        self.messages.append(Message(role="assistant", content=text))
        if truncated:
            self._violations.append(Violation.TOKEN_LIMIT)
        if self._facts is not None:
            self._finish(self._read_judgements(text))
            return Finished()
        reading = read_facts(text)
        if reading.facts is None:
            self._violations.append(Violation.BAD_JSON)
            return Finished()
        if not reading.whole and not truncated:
            self._violations.append(Violation.BAD_OPERATION)
        self._facts = tuple(self._worth_keeping(reading.facts))
        if self._facts and self._known_ids and self._config.k:
            return Search(self._facts)
        self._finish({})
        return Finished()

    def compare(self, rankings: Sequence[Sequence[Hit]]) -> Finished | None:
        """Take what the search found for each fact; None if the model has to be asked once more, with the new `messages`."""
        facts = self._facts or ()
        self._queries.append(facts)
        self._retrieved.append(tuple(dict.fromkeys(hit.memory.id for ranking in rankings for hit in ranking)))
        for place, (fact, ranking) in enumerate(zip(facts, rankings, strict=True)):
            near = {hit.memory.id: hit for hit in ranking[: self._config.k] if hit.similarity >= self._config.near}
            # What is quoted may tell several facts, of which a change concerns one.
            near = {memory_id: hit for memory_id, hit in near.items() if SAID not in hit.memory.text}
            if near and not any(normalised(fact) == normalised(hit.memory.text) for hit in near.values()):
                self._near[place] = near
        if not self._near:
            self._finish({})
            return Finished()
        self._asked += self.messages
        self.messages = [
            Message(role="system", content=load_prompt("assisted").text),
            *(_examples().comparison.messages() if self._config.examples else ()),
            _comparison_message(
                self._dialogue.person,
                [
                    (facts[place], {memory_id: hit.memory.text for memory_id, hit in hits.items()})
                    for place, hits in self._near.items()
                ],
            ),
        ]
        return None

    def _worth_keeping(self, facts: Sequence[str]) -> list[str]:
        """The facts of the person, each once, that the person said."""
        kept: dict[str, str] = {}
        invented = []
        for fact in facts[:_MOST_FACTS]:
            if not fact:
                self._violations.append(Violation.EMPTY_TEXT)
            elif len(fact) > LONGEST_FACT:  # A copy of the conversation, or a repetition without an end
                self._violations.append(Violation.BAD_OPERATION)
            elif (refusal := self._own_words.refusal(fact, self._config.support)) is not None:
                self.adjustments[refusal] += 1
                if refusal is Adjustment.UNSUPPORTED_TEXT:
                    invented.append(fact)
            elif normalised(fact) in kept:
                self._violations.append(Violation.DUPLICATE_OPERATION)
            elif FIRST_PERSON.search(fact) and not content_stems(fact) & content_stems(self._dialogue.person):
                kept[normalised(fact)] = self._own_words.quote(fact)  # A line that was copied does not say whose it is
            else:
                kept[normalised(fact)] = fact
        return [*kept.values(), *self._own_words.quotations(invented, kept.values())]

    def _read_judgements(self, text: str) -> dict[int, _Judgement]:
        """By place of a fact what the model says of it; facts of which nothing can be read are new."""
        values = json_values(without_thinking(text)).values
        value = values[0] if values else None
        if value is None:
            self._violations.append(Violation.BAD_JSON)
        if isinstance(value, dict) and len(value) == 1 and "1" not in value:
            (value,) = value.values()  # Such as {"comparison": {...}}
        if isinstance(value, list):
            value = {str(number): said for number, said in enumerate(value, start=1)}
        found = {}
        for number, place in enumerate(self._near, start=1):
            try:
                found[place] = _Judgement.model_validate(value[str(number)] if isinstance(value, dict) else None)
            except (KeyError, ValidationError):
                self._violations.append(Violation.BAD_OPERATION)
        return found

    def _target(self, fact: str, judgement: _Judgement, near: Mapping[str, Hit]) -> Hit | None:
        """The memory that a fact repeats or changes; None if the fact is new, or nothing else can be made of the answer."""
        relation, (note, *_) = judgement.relation.strip().casefold(), [*_IDS.findall(judgement.note), ""]
        if relation not in _RELATIONS:
            self._violations.append(Violation.BAD_OPERATION)
        if not _RELATIONS.get(relation):
            return None
        if note not in near:
            self._violations.append(Violation.UNKNOWN_TARGET)
            return None
        hit = near[note]
        shared = (content_stems(fact) & content_stems(hit.memory.text)) - content_stems(self._dialogue.person)
        best = max(other.similarity for other in near.values())
        lost, come = _names_of(hit.memory.text) - _names_of(fact), _names_of(fact) - _names_of(hit.memory.text)
        # A memory whose names the fact drops and puts none in their place tells more than what changes.
        loses = bool(lost) and not come
        if best - hit.similarity > _MISFIT or (not shared and hit.similarity < _WITHOUT_WORDS) or loses:
            self.adjustments[Adjustment.WRONG_TARGET] += 1
            return None
        return hit

    def _finish(self, judgements: Mapping[int, _Judgement]) -> None:
        """Turn the facts into operations. No fact is lost to a wrong memory: it is added instead."""
        facts = self._facts or ()
        found = {place: self._target(facts[place], said, self._near[place]) for place, said in judgements.items()}
        targets = {place: hit for place, hit in found.items() if hit is not None}
        repeats = {
            place
            for place, hit in targets.items()
            if _says_nothing_new(facts[place], hit.memory, told=judgements[place].relation.strip().casefold() in _SAME)
        }
        # Of several other facts that concern one memory the nearest rewrites it.
        nearest: dict[str, int] = {}
        for place, hit in targets.items():
            if place in repeats:
                continue
            best = nearest.setdefault(hit.memory.id, place)
            if hit.similarity > targets[best].similarity:
                nearest[hit.memory.id] = place
        operations = []
        for place, fact in enumerate(facts):
            target = targets.get(place)
            if target is not None and place in repeats:
                operations.append(Operation(Event.NONE, target.memory.text, target.memory.id))
            elif target is not None and nearest[target.memory.id] == place:
                operations.append(Operation(Event.UPDATE, fact, target.memory.id))
            else:
                operations.append(Operation(Event.ADD, fact))
        # Several facts may repeat one memory.
        checked = check(self._known_ids, list(dict.fromkeys(operations)))
        self._violations += (Violation(problem.value) for problem in checked.problems)
        self._operations = checked.valid


_SAME = ("same", "repeat")
_RELATIONS = {"new": False, "change": True, "changed": True, "update": True, "replace": True, **dict.fromkeys(_SAME, True)}
"""What a model says of a fact, and whether it then concerns a memory."""

_IDS = re.compile(r"[^\s:,;()\[\]\"']+")

# Of the 37 changes of the development set none is beyond either, or drops a name; the 1.5B model wants 1 in 3 that is.
_MISFIT = 0.1
"""By how much another memory may be more similar to a fact than the one that it is said to concern."""

_WITHOUT_WORDS = 0.6
"""Least similarity of a memory that shares no word but the name with the fact that is said to concern it."""


def _names_of(text: str) -> frozenset[str]:
    return frozenset(item.text for item in salient_items(text) if item.kind is Kind.NAME)


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _says_nothing_new(fact: str, memory: Memory, *, told: bool) -> bool:
    """Whether a fact adds nothing to a memory, by its words; if the model has `told` so, one in fewer words too."""
    new, known = content_stems(fact), content_stems(memory.text)
    within = len(new) < len(known) and salient(fact) <= salient(memory.text) if told else False
    if negations(fact) != negations(memory.text) or marked_words(fact) != marked_words(memory.text):
        return False
    return within or (new <= known and salient(fact) == salient(memory.text))


AnyEpisode: TypeAlias = Episode | AssistedEpisode


def begin_episode(
    session: Session, known_ids: Collection[str], config: EpisodeConfig | AssistedConfig, *, tolerant: bool = False
) -> AnyEpisode:
    """An episode of the kind that the configuration is of; `tolerant` as in `Episode`, for assisted ones always are."""
    if isinstance(config, AssistedConfig):
        return AssistedEpisode(session, known_ids, config)
    return Episode(session, known_ids, config, tolerant=tolerant)
