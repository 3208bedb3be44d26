"""Labels by a language model: three calls a step, and one now and then for the label spaces and the running summaries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deltamem.embedding import Embedder, Vectors
from deltamem.errors import LLMError
from deltamem.llm import LLM, Usage
from deltamem.prompts import Prompt, load_prompt
from deltamem.replies import read_object
from papers.stitch.labeller import H_SCOPE, K_EVENT, K_UPDATE, N_START, History, Labelled, Part
from papers.stitch.labels import Facet, LabelChange, LabelSpaces, new_label
from papers.stitch.records import Intent, IntentFilter, ScopeNote, Snippet, Stamp, Step

PROMPTS = ("seeds", "scope", "event", "note", "segment", "merge", "query")
_NOTES = 10  # Notes of a scope that a call shows at most, the last ones
_ALIGNED = 10  # Earlier steps of the same scope or event in which references are looked up
_SHOWN = 100  # Labels of an inventory that a call shows at most, the nearest ones


class _Answer(BaseModel):
    # Strict schemas must say so; what a server without them adds does no harm
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": False})


class _Seeds(_Answer):
    events: list[str]
    entity_types: list[str]


class _Scope(_Answer):
    scope: str = Field(pattern=r"\S")


class _Event(_Answer):
    event: str = Field(pattern=r"\S")


class _Note(_Answer):
    resolved: str
    summary: str
    entity_types: list[str]


class _Segment(_Answer):
    note: str


class _MergeGroup(_Answer):
    keep: str
    drop: list[str]


class _Merge(_Answer):
    new_events: list[str]
    new_entity_types: list[str]
    events: list[_MergeGroup]
    entity_types: list[_MergeGroup]


class _Query(_Answer):
    scopes: list[str]
    events: list[str]
    entity_types: list[str]


_A = TypeVar("_A", bound=_Answer)


@dataclass(frozen=True, slots=True)
class _Task:
    """A step that is being labelled."""

    step: Step
    history: History
    stamp: Stamp | None  # Of the history when it was begun


class LLMLabeller:
    """Labels steps and questions with a language model behind an endpoint."""

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        *,
        without: Collection[Part] = (),
        temperature: float | None = 0.0,
        max_tokens: int | None = 2048,
        seed: int | None = None,
        extra_body: Mapping[str, object] | None = None,
        attempts: int = 3,
        scope: str = "",
    ) -> None:
        """Describe the model; nothing is sent yet.

        Args:
            llm: The model.
            embedder: Finds the nearest labels.
            without: Parts that are left out, with their calls.
            temperature: Of the sampling.
            max_tokens: Of an answer.
            seed: Of the sampling.
            extra_body: Fields outside the OpenAI protocol.
            attempts: How often a call is made whose answer cannot be read.
            scope: For whom answers are cached, see `deltamem.llm.LLM.chat`.
        """
        self.name = f"llm-{llm.model}"
        self.usage = Usage()  # Cached answers included
        self._llm = llm
        self._embedder = embedder
        self._without = frozenset(without)
        self._options: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "extra_body": extra_body,
            "scope": scope,
        }
        self._attempts = attempts
        self._prompts: dict[str, Prompt] = {name: load_prompt(name, "papers.stitch.prompts") for name in PROMPTS}
        self._vectors: dict[str, Vectors] = {}  # Of labels

    @property
    def prompt_hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        return {f"intent_{name}": prompt.sha256 for name, prompt in self._prompts.items()}

    async def label(self, step: Step, history: History, upcoming: Sequence[Step]) -> Labelled:
        """Label the next step. Each answer is kept as a draft, so a step that is begun again asks for the rest only.

        Raises:
            LLMError: If the model does not answer, or not so that it can be read.
        """
        task = _Task(step, history, history.stamp)
        before = history.latest(1)
        going_on = before[0].intent.scope if before else ""
        blank = not step.text.strip()
        changes: list[LabelChange] = []
        if not history.spaces.version and not blank:  # no step had words so far
            changes += await self._seeds([step, *upcoming[: N_START - 1]], task)
        elif history.spaces.version and len(history) % K_UPDATE == 0:
            changes += await self._merges(task)
        if blank:  # nothing to ask a model about
            return Labelled(Snippet(step, Intent(going_on, ""), step.text, step.text), tuple(changes))
        spaces = LabelSpaces([*_of(history.spaces), *changes]) if changes else history.spaces
        part, notes = _unnoted(history) if going_on else [], history.notes(going_on)
        new: list[ScopeNote] = []
        if len(part) == H_SCOPE:  # the first of them is about to leave what a scope is told from
            new.append(await self._segment(going_on, notes, part, task))
            part, notes = [], [*notes, new[0].text]
        scope, event = await asyncio.gather(self._scope(task, going_on, notes), self._event(task, spaces))
        stays = scope.casefold() == going_on.casefold()
        if part and scope and not stays:
            new.append(await self._segment(going_on, notes, part, task))
        snippet = await self._note(task, scope, event, spaces, notes if stays else history.notes(scope))
        return Labelled(snippet, tuple(changes), tuple(new))

    async def filter(self, question: str, spaces: LabelSpaces) -> IntentFilter:
        """The labels that the model chooses; those that are not in the inventories are left out.

        Raises:
            LLMError: If the model does not answer, or not so that it can be read.
        """
        shown = {facet: await self._nearest(question, spaces.labels(facet), _SHOWN) for facet in Facet}
        chosen = await self._ask(
            "query",
            _Query,
            scopes=_listed(shown[Facet.SCOPE]),
            events=_listed(shown[Facet.EVENT]),
            types=_listed(shown[Facet.ENTITY]),
            question=question,
        )
        return spaces.known(IntentFilter(tuple(chosen.scopes), tuple(chosen.events), tuple(chosen.entity_types)))

    def forget_answers(self) -> None:
        """Remove the answers that a response cache holds for the scope of this labeller."""
        if self._llm.cache is not None:
            self._llm.cache.forget(self._options["scope"])

    async def _seeds(self, steps: Sequence[Step], task: _Task) -> list[LabelChange]:
        found = await self._drafted("seeds", _Seeds, task, steps=_beginnings(steps))
        return _added(LabelSpaces(), found.events, found.entity_types)

    async def _merges(self, task: _Task) -> list[LabelChange]:
        history = task.history
        events, types = history.spaces.labels(Facet.EVENT), history.spaces.labels(Facet.ENTITY)
        said = {"steps": _beginnings([one.step for one in history.latest(K_UPDATE)])}
        found = await self._drafted("merge", _Merge, task, events=_listed(events), types=_listed(types), **said)
        spaces = LabelSpaces(_of(history.spaces))
        changes = _added(spaces, found.new_events, found.new_entity_types)
        for facet, groups in ((Facet.EVENT, found.events), (Facet.ENTITY, found.entity_types)):
            for group in groups:
                for label in group.drop:
                    old, new = spaces.current(facet, label), spaces.current(facet, group.keep)
                    if old is not None and new is not None and old != new:  # else the model has made up a label
                        changes.append(LabelChange(facet, old, new))
                        spaces.apply(changes[-1])
        return changes

    async def _scope(self, task: _Task, going_on: str, notes: Sequence[str]) -> str:
        if Part.SCOPE in self._without:
            return ""
        history, step = task.history, task.step
        found = await self._drafted(
            "scope",
            _Scope,
            task,
            scopes=_listed(history.spaces.labels(Facet.SCOPE)[-_SHOWN:]),
            current=json.dumps(going_on, ensure_ascii=False) if going_on else "none",
            notes=_noted(notes),
            steps=_lines(history.latest(H_SCOPE), scopes=True),
            step=_line(step.role, step.text, step.context),
        )
        scope = new_label(found.scope)
        return history.spaces.current(Facet.SCOPE, scope) or scope

    async def _event(self, task: _Task, spaces: LabelSpaces) -> str:
        if Part.EVENT in self._without:
            return ""
        candidates = await self._nearest(task.step.text, spaces.labels(Facet.EVENT), K_EVENT)
        said = {"candidates": _listed(candidates), "step": _line(task.step.role, task.step.text)}
        event = new_label((await self._drafted("event", _Event, task, **said)).event)
        return spaces.current(Facet.EVENT, event) or event

    async def _segment(self, scope: str, notes: Sequence[str], part: Sequence[Snippet], task: _Task) -> ScopeNote:
        said = {"scope": scope, "notes": _noted(notes), "steps": _lines(part)}
        return ScopeNote(scope, (await self._drafted("segment", _Segment, task, **said)).note)

    async def _note(self, task: _Task, scope: str, event: str, spaces: LabelSpaces, notes: Sequence[str]) -> Snippet:
        history, step = task.history, task.step
        coreference = Part.COREFERENCE not in self._without
        found = await self._drafted(
            "note",
            _Note,
            task,
            scope=scope or "none",
            event=event or "none",
            notes=_noted(notes if coreference else ()),
            steps=_lines(history.aligned(scope, event, _ALIGNED) if coreference else ()),
            types=_listed(await self._nearest(step.text, spaces.labels(Facet.ENTITY), _SHOWN)),
            step=_line(step.role, step.text, step.context),
        )
        types = dict.fromkeys(spaces.current(Facet.ENTITY, one) or new_label(one) for one in found.entity_types)
        resolved = found.resolved.strip() if coreference else step.text
        # What was emptied says nothing, and would never be found
        intent = Intent(scope, event, () if Part.ENTITY in self._without else tuple(filter(None, types)))
        return Snippet(step, intent, resolved or step.text, found.summary.strip() or resolved or step.text)

    async def _drafted(self, name: str, answer: type[_A], task: _Task, /, **fields: str) -> _A:
        draft = f"{task.step.id}/{name}"
        if (kept := task.history.draft(draft)) is not None:
            return answer.model_validate_json(kept)
        found = await self._ask(name, answer, **fields)
        await task.history.keep_draft(draft, found.model_dump_json(), task.stamp)
        return found

    async def _ask(self, name: str, answer: type[_A], /, **fields: str) -> _A:
        messages = [{"role": "user", "content": self._prompts[name].fill(**fields)}]
        schema = {"name": name, "schema": answer.model_json_schema(), "strict": True}
        for sample in range(self._attempts):
            reply = await self._llm.chat(
                messages, response_format={"type": "json_schema", "json_schema": schema}, sample=sample, **self._options
            )
            self.usage += Usage.of(reply)
            if (read := read_object(reply.text, answer).value) is not None:
                return read
        raise LLMError(
            f"endpoint {self._llm.base_url}, model {self._llm.model}: no answer to the prompt {name!r} could be read as the "
            f"JSON object it asks for, in {self._attempts} attempts"
        )

    async def _nearest(self, text: str, labels: Sequence[str], count: int) -> list[str]:
        """The labels that are most similar to a text, the nearest first; all in their order if there are no more."""
        if len(labels) <= count:
            return list(labels)
        if fresh := [label for label in labels if label not in self._vectors]:
            self._vectors |= zip(fresh, await asyncio.to_thread(self._embedder.documents, fresh), strict=True)
        (vector,) = await asyncio.to_thread(self._embedder.queries, [text])
        similarity = np.round(np.stack([self._vectors[label] for label in labels]) @ vector, 6)
        return [labels[place] for place in np.argsort(-similarity, kind="stable")[:count]]


def _of(spaces: LabelSpaces) -> list[LabelChange]:
    return [LabelChange(facet, label) for facet in Facet for label in spaces.labels(facet)]


def _added(spaces: LabelSpaces, events: Sequence[str], entity_types: Sequence[str]) -> list[LabelChange]:
    """Add what label spaces lack of some labels of a model's making; returns what that changed."""
    changes = []
    for facet, labels in ((Facet.EVENT, events), (Facet.ENTITY, entity_types)):
        for label in map(new_label, labels):
            if label and spaces.current(facet, label) is None:
                changes.append(LabelChange(facet, label))
                spaces.apply(changes[-1])
    return changes


def _unnoted(history: History) -> list[Snippet]:
    """The steps with words of the part that goes on, without those that its notes sum up already: `H_SCOPE` at most.

    A note is written of every `H_SCOPE` such steps, so how many a part has says where its last note ended.
    """
    scope, count = history.latest(1)[0].intent.scope, H_SCOPE
    while True:
        part = list(takewhile(lambda one: one.intent.scope == scope, reversed(history.latest(count))))
        if len(part) < count or count >= len(history):
            break
        count *= 2
    said = [one for one in reversed(part) if one.step.text.strip()]
    return said[-(len(said) % H_SCOPE or H_SCOPE) :]


def _listed(labels: Sequence[str]) -> str:
    return json.dumps(list(labels), ensure_ascii=False)


def _noted(notes: Sequence[str]) -> str:
    return _listed(notes[-_NOTES:]) if notes else "nothing"


def _line(role: str, text: str, context: str = "") -> str:
    around = {"said_around_it": context} if context else {}
    return json.dumps({"role": role, **around, "text": text}, ensure_ascii=False)


def _lines(snippets: Sequence[Snippet], *, scopes: bool = False) -> str:
    lines = []
    for one in snippets:
        said = {"role": one.step.role, "text": one.resolved}
        lines.append(json.dumps(({"scope": one.intent.scope} if scopes else {}) | said, ensure_ascii=False))
    return "\n".join(lines) or "none"


def _beginnings(steps: Sequence[Step]) -> str:
    return "\n".join(_line(one.role, _shortened(one.text)) for one in steps)


def _shortened(text: str) -> str:
    """The first and the last line of a long text, cut where they are long themselves."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    ends = lines if len(lines) == 1 else [lines[0], lines[-1]]
    return " … ".join(line if len(line) <= 200 else f"{line[:150]} … {line[-50:]}" for line in ends)
