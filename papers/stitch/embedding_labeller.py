"""Labels without a language model: cue phrases and change points, nearest centroids, recurring nouns.

It is rougher than a model, and English where it reads words; but it costs two embedded texts a step and works offline. Its
state is a function of the steps that the index holds, so an interrupted run goes on as if it had never ended.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from deltamem.embedding import Embedder, Vectors
from deltamem.text import MONTHS, STOP_WORDS, Kind, content_words, salient_items, stem
from papers.stitch.labeller import K_EVENT, K_UPDATE, History, Labelled, Part
from papers.stitch.labels import LABEL_LENGTH, Facet, LabelChange, LabelSpaces, new_label
from papers.stitch.records import Intent, IntentFilter, Snippet, Stamp, Step

_WINDOW = 20
"""Steps whose mean is the centroid of a label: the latest, so that it follows what the label has come to mean."""

_AT_ONCE = 64  # Steps that are embedded in one call, if they are there already

NEW_SCOPE = 0.10  # A step less similar than this to the scope that goes on begins another one
OTHER_SCOPE = 0.15  # A step that is this much more similar to an earlier scope goes back to it
SAME_EVENT = 0.45  # A step less similar than this to all events is a new one
SYNONYMS = 0.92  # Events whose centroids are more similar than this are merged
RECURS = 3  # Steps in which a noun has to occur to be an entity type
COMMON = 0.25  # Share of the steps above which a noun tells nothing


@dataclass(frozen=True, slots=True)
class Act:
    """A kind of act that many tasks have: sentences that do it, and words that name it."""

    sentences: tuple[str, ...]
    words: tuple[str, ...]


@cache
def _acts() -> dict[str, Act]:
    """What events begin with, by name."""
    return TypeAdapter(dict[str, Act]).validate_json(Path(__file__).with_name("acts.json").read_bytes())


_CUES = re.compile(
    r"(?:^|[.!?]\s+)(?:(?:now|so|well|ok|okay|then|and|but|all right|next)[,:]?\s+)?(?:"
    r"(?:let us|let's|let me|shall we|could we|can we|we could|we should|i want to|i would like to)\s+(?:now\s+)?"
    r"(?:turn(?: back)? to|go (?:on|back) (?:with|to)|return to|get back to|come (?:back )?to|speak (?:to|about|of)|"
    r"talk about|move on to|focus on|look at|discuss|plan|start (?:with|on)|continue with)|"
    r"turning (?:back )?to|moving on to|coming (?:back )?to|back to|as for|regarding|concerning|next(?: up)?(?: is|:)|"
    r"on(?=[^,.;?!]*:)"
    r")\s+(?P<topic>[^,.:;?!]+)",
    re.IGNORECASE,
)
"""What opens a topic or returns to one, with its name."""

_NUMBERED = re.compile(
    r"(?:^|(?:\b(?:on|for|of|in|to|about|from|the|with|at|and|until|through|plan|planning|now|next)\s+))(?P<word>[a-z]{3,40})s?\s+"
    r"(?P<number>\d{1,2})\b(?![.:%]?\d|\s*%)",
    re.IGNORECASE,
)
_RANGE = re.compile(
    r"\b(?P<word>[a-z]{3,}?)s?\s+(?P<first>\d{1,2})\s*(?:to|until|through|-)\s*(?:\w+\s+)?(?P<last>\d{1,2})\b", re.I
)
_REFERENCE = re.compile(r"\b(?:named|mentioned|cited|came up|noted|raised|listed|discussed|proposed|suggested)\b", re.I)
_PRONOUN = re.compile(r"\b(?:it|that one|this one|that place|this place|there|they)\b", re.IGNORECASE)
_NOUN = re.compile(r"\b(?:the|a|an|this|our|your|my|their|for)\s+(?:[a-z]+\s+)?([a-z]{3,40})\b", re.I)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_NAME = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][a-z]+(?:\s+[A-Z][a-z]+)*|\b[A-Z][a-z]+(?:\s+[A-Z][a-z]+)+")
_TYPES = 5  # Entity types of a step at most
_LEAST_WORDS = 3  # A shorter step begins no scope by what it says
_TOPIC_WORDS = 10  # A longer topic is a sentence of its own
_NAMED = 0.15  # What a word for an act adds to the similarity
_NO_SERIES = MONTHS | STOP_WORDS | {"only", "least", "most", "than", "nearly", "almost", "another", "costs", "cost"}


class EmbeddingLabeller:
    """Labels steps and questions with an embedder and a few rules."""

    def __init__(self, embedder: Embedder, *, without: Collection[Part] = ()) -> None:
        """Begin; `without` leaves parts out, of which coreference is the only one that costs something here."""
        self.name = f"embedding-{embedder.name}"
        self._embedder = embedder
        self._coreference = Part.COREFERENCE not in without
        self._vectors: dict[str, Vectors] = {}  # Of texts that were just labelled, or are about to be
        self._exemplars: tuple[list[str], Vectors] | None = None
        self._forget()

    def _forget(self) -> None:
        self._of: weakref.ref[History] | None = None
        self._stamp: Stamp | None = None
        self._seen = 0
        self._scopes = _Centroids()
        self._events = _Centroids()
        self._nouns: Counter[str] = Counter()  # Steps in which a noun stands after a determiner
        self._spelt: dict[str, str] = {}  # A noun by its stem, as it was first written
        self._series: defaultdict[str, Counter[str]] = defaultdict(Counter)  # Numbers that a word was seen with
        self._scope = ""
        self._cued = False  # Whether any scope was ever named in words

    async def label(self, step: Step, history: History, upcoming: Sequence[Step]) -> Labelled:
        """Label the next step.

        Raises:
            EmbedderUnavailableError: If the embedder is missing.
        """
        await self._catch_up(history)
        await self._embed([step, *upcoming])
        changes: list[LabelChange] = []
        if not len(history):
            changes += [LabelChange(Facet.EVENT, act) for act in _acts()]
        elif len(history) % K_UPDATE == 0:
            changes += self._events.synonyms(Facet.EVENT)
        scope = self._scope_of(step, history.spaces)
        event = await self._event_of(step)
        steps = len(history) + 1
        nouns = [noun for noun in _nouns(step.text) if RECURS <= self._nouns[noun] + 1 <= max(RECURS, COMMON * steps)]
        nouns.sort(key=lambda noun: self._nouns[noun])  # the rarest say most
        entities = tuple(self._spelt.get(noun, noun) for noun in nouns[:_TYPES])
        resolved = step.text
        if self._coreference:
            resolved = _resolved(step.text, history.aligned(scope, "", K_EVENT))
        summary = f"{scope}: {resolved}" if scope else resolved
        return Labelled(Snippet(step, Intent(scope, event, entities), resolved, summary), tuple(changes))

    async def filter(self, question: str, spaces: LabelSpaces) -> IntentFilter:
        """The labels that a question names: scopes by their words, events by words for them, entity types by their nouns."""
        numbered = _in_ranges(question) | set(_anchors(question))
        words = frozenset(stem(word) for word in content_words(question))
        known = spaces.labels(Facet.SCOPE)
        scopes = [label for label in known if numbered & set(_anchors(label))]
        # In its own words, or else in the same words
        scopes += [label for label in known if not _anchors(label) and label.casefold() in question.casefold()]
        scopes = scopes or [label for label in known if not _anchors(label) and _within(label, words)]
        # What names the scope names nothing else
        words -= {stem(word) for label in scopes for word in content_words(label)}
        events = [
            event
            for event in spaces.labels(Facet.EVENT)
            if (words & _words_for(event) if event in _acts() else _within(event, words))
        ]
        entities = [label for label in spaces.labels(Facet.ENTITY) if stem(label.casefold()) in words]
        return IntentFilter(tuple(scopes), tuple(events), tuple(entities))

    async def _catch_up(self, history: History) -> None:
        """Derive the state from the steps that came since: the last one, or all if another process labelled them."""
        if history.stamp != self._stamp or self._of is None or self._of() is not history:
            self._forget()
        fresh = history.latest(len(history) - self._seen)
        for begin in range(0, len(fresh), _AT_ONCE):
            batch = fresh[begin : begin + _AT_ONCE]
            missing = [one.step for one in batch if not self._is_embedded(one.step)]
            await self._embed(missing, keep=[one.step for one in batch])
            for snippet in batch:
                self._take(snippet)
        self._of, self._stamp = weakref.ref(history), history.stamp
        self._scopes.relabel(history.spaces, Facet.SCOPE)
        self._events.relabel(history.spaces, Facet.EVENT)

    def _take(self, snippet: Snippet) -> None:
        text, intent = snippet.step.text, snippet.intent
        self._scopes.add(intent.scope, self._seen, self._vectors[text])
        if intent.event not in _acts():
            self._events.add(intent.event, self._seen, self._vectors[_core(text)])
        for noun, written in _nouns(text).items():
            self._nouns[noun] += 1
            self._spelt.setdefault(noun, written)
        for anchor in _anchors(_without_references(text)):
            self._series[anchor.rpartition(" ")[0]][anchor] += 1
        self._cued = self._cued or bool(_topic(text) or _anchors(intent.scope))
        self._scope = intent.scope
        self._seen += 1

    def _is_embedded(self, step: Step) -> bool:
        return step.text in self._vectors and _core(step.text) in self._vectors

    async def _embed(self, steps: Sequence[Step], keep: Sequence[Step] = ()) -> None:
        """Make sure that the first of some steps is embedded; those after it come along. Vectors of others are not kept."""
        if not steps or self._is_embedded(steps[0]):
            return
        texts = list(dict.fromkeys(text for one in steps[:_AT_ONCE] for text in (one.text, _core(one.text))))
        kept = {text for one in keep for text in (one.text, _core(one.text))}
        self._vectors = {text: vector for text, vector in self._vectors.items() if text in kept} | dict(
            zip(texts, await asyncio.to_thread(self._embedder.documents, texts), strict=True)
        )

    def _scope_of(self, step: Step, spaces: LabelSpaces) -> str:
        known = spaces.labels(Facet.SCOPE)
        text = step.text if _topic(step.text) or _anchors(step.text) else f"{step.text}\n{step.context}"
        said = _without_references(text)
        topic = _topic(text)
        if topic and (anchors := _anchors(topic)):
            return spaces.current(Facet.SCOPE, anchors[0]) or anchors[0]
        if topic:
            stems = frozenset(stem(word) for word in content_words(topic))
            same = [label for label in known if frozenset(stem(word) for word in content_words(label)) == stems]
            if same or len(stems) > 1:
                return same[0] if same else topic
        if anchors := _anchors(said):
            # Of several series the one that counts furthest is what the goals are numbered by
            best = max(anchors, key=lambda anchor: len(self._series[anchor.rpartition(" ")[0]]))
            return spaces.current(Facet.SCOPE, best) or best
        words = frozenset(stem(word) for word in content_words(said))
        named = [label for label in known if not _anchors(label) and _within(label, words)]
        if named and self._scope not in named:
            return named[-1]
        if self._scope and (self._cued or len(content_words(step.text)) < _LEAST_WORDS):
            return self._scope
        return self._change_point(step, known)

    def _change_point(self, step: Step, known: Sequence[str]) -> str:
        """The scope of a step that names none, by its similarity to what was said in each."""
        vector = self._vectors[step.text]
        near = self._scopes.similarity(vector)
        going_on = near.get(self._scope, -1.0)
        best = max(near, key=near.__getitem__, default="")
        if best and best != self._scope and near[best] > going_on + OTHER_SCOPE:
            return best
        if self._scope and going_on >= NEW_SCOPE:
            return self._scope
        name = new_label(" ".join(content_words(_core(step.text))[:3])) or "talk"
        taken = {label.casefold() for label in known}
        return next(one for one in (name, *(f"{name}, part {n}" for n in range(2, len(known) + 3))) if one not in taken)

    async def _event_of(self, step: Step) -> str:
        core = _core(step.text)
        if self._exemplars is None:
            acts = [(name, sentence) for name, act in _acts().items() for sentence in act.sentences]
            found = await asyncio.to_thread(self._embedder.documents, [sentence for _, sentence in acts])
            self._exemplars = [act for act, _ in acts], found
        acts_of, exemplars = self._exemplars
        vector = self._vectors[core]
        near: dict[str, float] = {}
        for act, similarity in zip(acts_of, map(float, exemplars @ vector), strict=True):
            near[act] = max(near.get(act, -1.0), similarity)
        words = frozenset(stem(word) for word in content_words(core))
        near = {act: similarity + _NAMED * bool(words & _words_for(act)) for act, similarity in near.items()}
        near |= self._events.similarity(vector)
        best = max(near, key=near.__getitem__)
        if near[best] >= SAME_EVENT:
            return best
        name = new_label(" ".join(content_words(core)[:3]))
        return name if name and name not in near else best


class _Centroids:
    """The latest vectors of each label, and their mean."""

    def __init__(self) -> None:
        self._members: dict[str, deque[tuple[int, Vectors]]] = {}
        self._means: dict[str, Vectors] = {}

    def add(self, label: str, number: int, vector: Vectors) -> None:
        if label:
            self._members.setdefault(label, deque(maxlen=_WINDOW)).append((number, vector))
            self._means.pop(label, None)

    def relabel(self, spaces: LabelSpaces, facet: Facet) -> None:
        for label in list(self._members):
            current = spaces.current(facet, label)
            if current is not None and current != label:
                both = [*self._members.pop(label), *self._members.get(current, ())]
                self._members[current] = deque(sorted(both, key=lambda member: member[0]), maxlen=_WINDOW)
                self._means.pop(label, None)
                self._means.pop(current, None)

    def similarity(self, vector: Vectors) -> dict[str, float]:
        labels = list(self._members)
        if not labels:
            return {}
        for label in labels:
            if label not in self._means:
                mean = np.mean([member for _, member in self._members[label]], axis=0)
                self._means[label] = mean / max(float(np.linalg.norm(mean)), 1e-9)
        return dict(zip(labels, map(float, np.stack([self._means[label] for label in labels]) @ vector), strict=True))

    def synonyms(self, facet: Facet) -> list[LabelChange]:
        """Labels that mean the same, each merged into an older one."""
        merged: dict[str, str] = {}
        labels = list(self._members)
        for place, label in enumerate(labels):
            near = self.similarity(self._mean(label))
            older = [one for one in labels[:place] if one not in merged and near[one] > SYNONYMS]
            if older:
                merged[label] = older[0]
        return [LabelChange(facet, label, into) for label, into in merged.items()]

    def _mean(self, label: str) -> Vectors:
        self.similarity(self._members[label][0][1])  # makes the means
        return self._means[label]


@lru_cache(maxsize=1 << 14)
def _core(text: str) -> str:
    """The first sentence without its names and numbers, which say what is talked about and not what is done."""
    first = _SENTENCE_END.split(text.strip(), 1)[0]
    for item in salient_items(first):
        if item.kind is Kind.NAME:
            first = re.sub(re.escape(item.text), "this one", first, flags=re.IGNORECASE)
    return re.sub(r"[$€£]?\d[\d.,:%]*", "some", first)


def _topic(text: str) -> str:
    """What a step says that it is about from here on; empty if it does not say."""
    found = _CUES.search(text)
    if found is None:
        return ""
    topic = re.sub(r"^(?:the|a|an|this|that|our|my|your|some)\s+", "", found["topic"].strip(), flags=re.IGNORECASE)
    return topic if content_words(topic) and len(topic.split()) <= _TOPIC_WORDS and len(topic) <= LABEL_LENGTH else ""


def _anchors(text: str) -> list[str]:
    """Numbered things that a text names, as ``day 2``, in order."""
    found = ((match["word"].casefold(), match["number"]) for match in _NUMBERED.finditer(text))
    return [f"{word} {int(number)}" for word, number in found if word not in _NO_SERIES]


def _in_ranges(text: str) -> set[str]:
    """Numbered things between two that a text names, as in ``from day 2 to day 4``."""
    return {
        f"{match['word'].casefold()} {number}"
        for match in _RANGE.finditer(text)
        for number in range(int(match["first"]), int(match["last"]) + 1)
    }


def _without_references(text: str) -> str:
    """A text without what it refers back to, up to the numbered thing that says where: ``the one named on day 1``."""
    for marker in reversed(list(_REFERENCE.finditer(text))):
        anchor = _NUMBERED.search(text, marker.end())
        end = anchor.end() if anchor is not None else len(text)
        text = text[: marker.start()] + text[end:]
    return text


def _nouns(text: str) -> dict[str, str]:
    """Nouns after a determiner, as far as one can tell, by their stems."""
    found = (match[1].casefold() for match in _NOUN.finditer(text))
    return {stem(word): word for word in reversed(list(found)) if word not in STOP_WORDS}


def _within(label: str, words: frozenset[str]) -> bool:
    stems = frozenset(stem(word) for word in content_words(label))
    return bool(stems) and stems <= words


@cache
def _words_for(act: str) -> frozenset[str]:
    return frozenset(map(stem, _acts()[act].words))


def _resolved(text: str, context: Sequence[Snippet]) -> str:
    """A text whose first pronoun is followed by the name it most likely means: the last one in the context."""
    pronoun = _PRONOUN.search(text)
    if pronoun is None or _names(text):
        return text
    for snippet in reversed(context):
        if names := _names(snippet.resolved):
            return f"{text[: pronoun.end()]} [{names[-1]}]{text[pronoun.end() :]}"
    return text


def _names(text: str) -> list[str]:
    return [match[0] for match in _NAME.finditer(text)]
