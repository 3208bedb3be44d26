"""What can be read off the surface of labelled sessions: the words of a turn, places, the words that a memory shares.

Nothing here reads a session against the memories before it. Where such cues give away the operations of unseen people, a
policy can earn its reward without understanding; `rewards.probes` says how much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from deltamem.embedding import Embedder
from deltamem.memory import Event, Operation
from deltamem.sessions import LabelledSession
from deltamem.text import normalised
from rewards.fidelity import folded, folded_keyword, found_in

EVENTS = tuple(Event)
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"”’)])\s+")  # noqa: RUF001

Places = Mapping[str, Sequence[int | None]]
"""By the key of a session, for each of its operations the user's turn that says it, from 0; None where no turn does."""
Flags = npt.NDArray[np.bool_]
"""Which texts hold an operation of each kind, shape ``(texts, 3)``, columns in the order of `EVENTS`."""
Chances = npt.NDArray[np.float64]


def sentences(text: str) -> list[str]:
    """The sentences of an utterance, as written."""
    return [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence]


def user_turns(labelled: LabelledSession) -> list[str]:
    """What the user says, turn by turn."""
    return [turn.content for turn in labelled.session.dialogue if turn.role == "user"]


def user_sentences(labelled: LabelledSession) -> list[str]:
    """What the user says, sentence by sentence."""
    return [sentence for turn in user_turns(labelled) for sentence in sentences(turn)]


def boilerplate(sessions: Iterable[LabelledSession]) -> frozenset[str]:
    """The sentences, `normalised`, that users of more than one person say: greetings, thanks, fillers."""
    said_by: dict[str, str] = {}
    shared = set()
    for labelled in sessions:
        person = labelled.session.person_id
        for sentence in map(normalised, user_sentences(labelled)):
            if said_by.setdefault(sentence, person) != person:
                shared.add(sentence)
    return frozenset(shared)


def place(operation: Operation, texts: Sequence[str]) -> int | None:
    """Which of some `folded` texts says an operation, by its keywords; None where none contains one.

    A keyword weighs more the fewer texts contain it; of equal texts the first is taken.
    """
    weight = np.zeros(len(texts))
    for keyword in dict.fromkeys(folded_keyword(keyword) - {""} for keyword in operation.keywords):
        found = np.array([found_in(keyword, text) for text in texts], dtype=bool)
        weight += found / max(1, found.sum())
    return int(weight.argmax()) if weight.any() else None


def places(labelled: LabelledSession, texts: Sequence[str]) -> list[int | None]:
    """For each operation of a session, which of its turns or sentences says it (see `place`)."""
    said = [folded(text) for text in texts]
    return [place(operation, said) for operation in labelled.operations]


def stacked(held: Sequence[Flags]) -> Flags:
    """The flags of several sessions as one array."""
    return np.concatenate(held) if held else np.zeros((0, len(EVENTS)), dtype=bool)


def flags(operations: Sequence[Operation], where: Sequence[int | None], count: int) -> Flags:
    """Which of `count` texts hold an operation of each kind, given the text of each operation."""
    found = np.zeros((count, len(EVENTS)), dtype=bool)
    for operation, number in zip(operations, where, strict=True):
        if number is not None:
            found[number, EVENTS.index(operation.event)] = True
    return found


class EventWords:
    """Logistic regressions on the words and word pairs of a text, one for each kind of operation."""

    def __init__(self, texts: Sequence[str], held: Flags) -> None:
        """Fit them to turns or sentences of users, and which operations each of those holds."""
        from sklearn.feature_extraction.text import CountVectorizer  # takes seconds to import
        from sklearn.linear_model import LogisticRegression

        self._vectorizer = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", binary=True, dtype=np.float32)
        has_words = any(character.isalnum() for text in texts for character in text)
        vectors = self._vectorizer.fit_transform(texts) if has_words else None
        # One that always or never occurs cannot be fitted, and needs no words.
        self._models: list[Any] = [
            float(column.any())
            if vectors is None or column.all() or not column.any()
            else LogisticRegression(class_weight="balanced", solver="liblinear", random_state=0).fit(vectors, column)
            for column in held.T
        ]

    @classmethod
    def of(cls, sessions: Iterable[LabelledSession]) -> Self:
        """Fit them to the user's sentences in some sessions."""
        said = [(labelled, user_sentences(labelled)) for labelled in sessions]
        held = [flags(item.operations, places(item, texts), len(texts)) for item, texts in said]
        return cls([text for _, texts in said for text in texts], stacked(held))

    def chances(self, texts: Sequence[str]) -> Chances:
        """How likely each text holds an operation of each kind: shape ``(len(texts), 3)``, columns as in `EVENTS`."""
        chances = np.zeros((len(texts), len(EVENTS)))
        fitted = any(not isinstance(model, float) for model in self._models)
        vectors = self._vectorizer.transform(texts) if texts and fitted else None
        for number, model in enumerate(self._models):
            if isinstance(model, float):
                chances[:, number] = model
            elif vectors is not None:
                chances[:, number] = model.predict_proba(vectors)[:, 1]
        return chances

    def telling(self, event: Event, count: int = 12) -> list[str]:
        """The words and word pairs that speak most for an event, the strongest first."""
        model = self._models[EVENTS.index(event)]
        if isinstance(model, float):
            return []
        words = self._vectorizer.get_feature_names_out()
        return [str(words[number]) for number in np.argsort(-model.coef_[0], kind="stable")[:count]]


Ranking = Callable[[LabelledSession, Sequence[str]], list[list[str]]]
"""For each of some texts the ids of the memories before a session, the nearest first, at most `NEAREST`."""
NEAREST = 5
"""As many memories as a search returns for a query (paper, table 5)."""


def ranked_by_words(labelled: LabelledSession, texts: Sequence[str]) -> list[list[str]]:
    """Rank memories by shared words, a `Ranking`: cosine of TF-IDF vectors; frequencies are those of the memories."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    # Every memory holds the name, which tells nothing of it.
    name = labelled.session.person_name
    bank = [memory.text.replace(name, "") for memory in labelled.prior_state.memories]
    if not bank or not texts:
        return [[] for _ in texts]
    vectorizer = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    vectors = vectorizer.fit_transform(bank)
    asked = vectorizer.transform([text.replace(name, "") for text in texts])
    return _nearest(labelled, (asked @ vectors.T).toarray())


def ranked_by_vectors(embedder: Embedder) -> Ranking:
    """Rank memories as a search does, by the cosine of embeddings; the embedder had better remember its texts."""

    def ranked(labelled: LabelledSession, texts: Sequence[str]) -> list[list[str]]:
        bank = [memory.text for memory in labelled.prior_state.memories]
        if not bank or not texts:
            return [[] for _ in texts]
        return _nearest(labelled, embedder.queries(texts) @ embedder.documents(bank).T)

    return ranked


def _nearest(labelled: LabelledSession, similarity: npt.NDArray[np.floating[Any]]) -> list[list[str]]:
    ids = list(labelled.prior_state)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :NEAREST]
    return [[ids[number] for number in row] for row in order.tolist()]


def target_accuracy(sessions: Iterable[LabelledSession], ranking: Ranking, said: Places | None = None) -> float | None:
    """Share of UPDATEs whose memory a ranking puts first, given the new text; None if there is no UPDATE.

    With `said`, it is given the words of the turns that say the UPDATEs; those that no turn says are not counted.
    """
    right: list[bool] = []
    for labelled in sessions:
        turns = user_turns(labelled)
        where = range(len(labelled.operations)) if said is None else said[labelled.key]
        due = [
            (op.target_memory_id, op.text if said is None else turns[at])
            for op, at in zip(labelled.operations, where, strict=True)
            if op.event is Event.UPDATE and at is not None
        ]
        found = ranking(labelled, [text for _, text in due])
        right += [ids[:1] == [target] for (target, _), ids in zip(due, found, strict=True)]
    return _share(right)


class Cues(NamedTuple):
    """What cues tell of people held out. Shares are in [0, 1]; None where there is nothing to count."""

    turns: int  # Turns of users that were judged
    auc: dict[str, float | None]  # By kind of operation: area under the ROC curve of "this turn holds one", by its words
    counts_exact: float | None  # Sessions whose numbers of turns with an ADD, an UPDATE and a NONE the words give exactly
    telling: dict[str, list[str]]  # By kind of operation, the words and word pairs that speak most for it
    turn_holds: float | None  # Turns that hold an operation
    first_turn_holds: float | None  # First turns that do
    last_turn_holds: float | None  # Last turns that do
    order: float | None  # Mean rank correlation of a session's operations with the turns that say them, in [-1, 1]
    length: float | None  # Correlation of the number of a session's turns with that of its operations, in [-1, 1]
    unsaid: float | None  # Operations of whose keywords no turn says any
    target_words: float | None  # UPDATEs whose memory shares most words with the new text (TF-IDF)
    target_words_of_turn: float | None  # The same with the words of the turn that says it, all that a policy is given


def measure_cues(
    train: Sequence[LabelledSession], heldout: Sequence[LabelledSession], *, known: Places | None = None
) -> Cues:
    """Measure what cues tell of the operations of people held out, with classifiers that learn from `train`.

    `known` is where the operations are said, if a plan knows; keywords find it for sessions that are not in it.
    """
    learned, judged = ([_Session.of(item, known or {}) for item in part] for part in (train, heldout))
    words = EventWords([text for item in learned for text in item.turns], stacked([item.held for item in learned]))
    held = stacked([item.held for item in judged])
    chances = words.chances([text for item in judged for text in item.turns])
    guessed = np.split(chances > 0.5, np.cumsum([len(item.turns) for item in judged]))  # and an empty rest
    exact = [(guess.sum(axis=0) == item.held.sum(axis=0)).all() for guess, item in zip(guessed, judged, strict=False)]
    speaking = [[bool(row.any()) for row in item.held] for item in judged if item.turns]
    orders = [order for item in judged if (order := _order(item.where)) is not None]
    return Cues(
        turns=len(held),
        auc={event: _auc(held[:, number], chances[:, number]) for number, event in enumerate(EVENTS)},
        counts_exact=_share(exact),
        telling={event: words.telling(event) for event in EVENTS},
        turn_holds=_share([holds for turns in speaking for holds in turns]),
        first_turn_holds=_share([turns[0] for turns in speaking]),
        last_turn_holds=_share([turns[-1] for turns in speaking]),
        order=_share(orders),
        length=_correlation([len(item.turns) for item in judged], [len(item.where) for item in judged]),
        unsaid=_share([number is None for item in judged for number in item.where]),
        target_words=target_accuracy(heldout, ranked_by_words),
        target_words_of_turn=target_accuracy(heldout, ranked_by_words, {item.key: item.where for item in judged}),
    )


class _Session(NamedTuple):
    """A session as turns of the user, with what they hold."""

    key: str
    turns: list[str]
    where: Sequence[int | None]
    held: Flags

    @classmethod
    def of(cls, labelled: LabelledSession, known: Places) -> _Session:
        turns = user_turns(labelled)
        where = known[labelled.key] if labelled.key in known else places(labelled, turns)
        return cls(labelled.key, turns, where, flags(labelled.operations, where, len(turns)))


def _auc(held: Flags, chance: Chances) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(held, chance)) if held.any() and not held.all() else None


def _order(where: Sequence[int | None]) -> float | None:
    """Rank correlation of the operations' places with their order."""
    from scipy.stats import rankdata

    said = [number for number in where if number is not None]
    return _correlation(range(len(said)), rankdata(said).tolist()) if said else None


def _correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    constant = len(set(left)) < 2 or len(set(right)) < 2
    return None if constant else float(np.corrcoef(left, right)[0, 1])


def _share(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if values else None
