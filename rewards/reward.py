"""The reward of one episode: 0.1 format + 0.1 retrieval + 0.8 state transition (paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from deltamem.episode import EmbedTexts, Trajectory
from deltamem.errors import DeltaMemError
from deltamem.memory import Event, Keyword, MemoryState, Operation, alternatives, check
from deltamem.sessions import LabelledSession
from rewards.fidelity import Anchors, anchors, bare_words, coverage, folded, says


class EntryOrigin(StrEnum):
    """How an entry came to be in one state and not in the other."""

    ADDED = "added"
    UPDATED = "updated"  # Rewritten memory that is due to be rewritten
    UNEXPECTED_UPDATE = "unexpected_update"  # Predicted state: a rewritten memory that the target leaves alone
    STALE = "stale"  # Predicted state: a memory left untouched that the target rewrites
    OVERWRITTEN = "overwritten"  # Target state: the old text of a memory that an unexpected update rewrote


@dataclass(frozen=True, slots=True)
class ComplementEntry:
    """One memory of a relative complement."""

    id: str | None  # Of the prior memory; None for an added one
    text: str
    origin: EntryOrigin
    keywords: tuple[Keyword, ...] = ()  # Of a target entry, what a faithful memory must contain
    outdated: tuple[str, ...] = ()  # Of a target entry, values that are wrong now


class StateDiff(NamedTuple):
    """Two states, compared."""

    predicted: tuple[ComplementEntry, ...]  # ``P minus T``
    target: tuple[ComplementEntry, ...]  # ``T minus P``
    agreed: tuple[ComplementEntry, ...]  # Memories that both states rewrote to the same text; they are in neither complement
    predicted_changed: bool  # Whether P differs from the prior state
    target_changed: bool  # Whether T does


def state_diff(prior: MemoryState, predicted: Sequence[Operation], target: Sequence[Operation]) -> StateDiff:
    """Apply the manager's and the labelled operations to the state before the session and compare the results.

    Predicted operations that are not valid for the state are ignored. The order of the complements depends on the entries
    only, not on the order of the operations.

    Raises:
        DeltaMemError: If a target operation is not valid for the state.
    """
    known = prior.keys()
    checked = check(known, target)
    if checked.problems:
        raise DeltaMemError(
            f"the target operations do not fit the prior state ({', '.join(sorted(set(checked.problems)))}): every UPDATE "
            "and NONE needs an existing target_memory_id, and no operation may be empty or repeated"
        )
    valid = check(known, predicted).valid
    # The states are compared without being made: they can differ only in additions and in the memories that are rewritten.
    # No addition is the same memory as one of the other state.
    left = [ComplementEntry(None, op.text, EntryOrigin.ADDED) for op in valid if op.event is Event.ADD]
    right = [
        ComplementEntry(None, op.text, EntryOrigin.ADDED, op.keywords, op.outdated) for op in target if op.event is Event.ADD
    ]
    predicted_changed, target_changed = bool(left), bool(right)
    agreed: list[ComplementEntry] = []
    our_updates, their_updates = _updates(valid), _updates(target)
    for memory_id in our_updates | their_updates:
        before = prior[memory_id].text
        ours = our_updates[memory_id].text if memory_id in our_updates else before
        update = their_updates.get(memory_id)
        theirs = update.text if update else before
        anchored = (update.keywords, update.outdated) if update else ()
        predicted_changed |= ours != before
        target_changed |= theirs != before
        if ours == theirs:
            agreed += [ComplementEntry(memory_id, theirs, EntryOrigin.UPDATED, *anchored)] if theirs != before else []
        elif theirs == before:
            left.append(ComplementEntry(memory_id, ours, EntryOrigin.UNEXPECTED_UPDATE))
            right.append(ComplementEntry(memory_id, theirs, EntryOrigin.OVERWRITTEN, *anchored))
        else:
            left.append(ComplementEntry(memory_id, ours, EntryOrigin.STALE if ours == before else EntryOrigin.UPDATED))
            right.append(ComplementEntry(memory_id, theirs, EntryOrigin.UPDATED, *anchored))
    return StateDiff(_sorted(left), _sorted(right), _sorted(agreed), predicted_changed, target_changed)


def _updates(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The UPDATEs by the id of their memory."""
    return {op.target_memory_id: op for op in operations if op.event is Event.UPDATE and op.target_memory_id is not None}


def _sorted(entries: list[ComplementEntry]) -> tuple[ComplementEntry, ...]:
    """Order entries by what they are, so that ties in the assignment fall the same way for any order of operations."""
    return tuple(sorted(entries, key=lambda entry: (entry.text, entry.id or "", [*map(alternatives, entry.keywords)])))


_DUE = frozenset({EntryOrigin.STALE, EntryOrigin.UPDATED})
"""What becomes of a memory that is due an UPDATE, on the predicted side."""

# Equal texts with different keywords tie in similarity; the better score then decides, not an unrelated entry.
_TIE_BREAK = 1e-9

Matrix = npt.NDArray[np.floating[Any]]


class PairKind(StrEnum):
    """Why a predicted and a target entry are a pair."""

    MATCHED = "matched"  # The assignment put them together
    AGREED_UPDATE = "agreed_update"  # The same memory was rewritten word for word as the target does


@dataclass(frozen=True, slots=True)
class Pair:
    """A predicted entry and the target entry that it stands for."""

    predicted: ComplementEntry
    target: ComplementEntry
    similarity: float  # Cosine of their embeddings, in [0, 1]; exactly 1 for equal texts
    score: float  # Local lexical fidelity ``s`` (paper, equation 4), or the similarity; less what `RewardOptions` take off
    kind: PairKind


@dataclass(frozen=True, slots=True)
class TransitionScore:
    """How close the predicted state is to the target state."""

    reward: float  # Harmonic mean of precision and recall (paper, equation 7)
    precision: float  # Soft precision (paper, equation 6)
    recall: float  # Soft recall
    positive_distance: float  # Predicted entries without a counterpart, ``|Dp| - sum s`` (paper, equation 5)
    negative_distance: float  # Target entries without a counterpart, ``|Dt| - sum s``
    pairs: tuple[Pair, ...]  # The matched pairs and the agreed updates
    unmatched_predicted: tuple[ComplementEntry, ...]  # The rest of ``Dp``
    unmatched_target: tuple[ComplementEntry, ...]  # The rest of ``Dt``


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    """How episodes are scored; the defaults are ``configs/reward/repaired.yaml`` (docs/rewards.md).

    Raises:
        DeltaMemError: If the weights do not add up to 1, ``tau`` is not in [0, 1], ``stale_weight`` is below 1,
            ``outdated_weight`` below 0 or one of them not finite: the reward would leave [0, 1].
    """

    # pydantic refuses unknown keys where these options are part of a command's configuration
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    format_weight: float = 0.1
    retrieval_weight: float = 0.1
    transition_weight: float = 0.8
    tau: float = 0.75
    """Pairs below this cosine similarity are not valid (paper, table 5). 0 allows every pair but those that point away from
    each other."""
    lexical_fidelity: bool = True
    """Score a pair by the share of the target's keywords in the predicted text; else by similarity."""
    paper_literal: bool = False
    """Equations 2 to 8 and nothing else: untouched memories can be matched, agreed updates are not counted, states that did
    not change are no case of their own, and a search must return the memories of target UPDATEs alone."""
    stale_weight: float = 1.0
    """How many times a memory that is due an UPDATE and earns nothing (left alone, or rewritten by a text that is worth
    nothing) counts in the precision denominator; 1 is the paper. With weight w, an ADD in place of a single due UPDATE earns
    ``2 / (2 + w)``."""
    match_overwritten: bool = True
    """Whether the target's old text of a wrongly overwritten memory can be matched. The specification says nothing against
    it, so overwriting a memory and adding its old text again earns credit; False refuses it."""
    match_other_targets: bool = True
    """Whether the new text of a due memory can be matched to the target of another one; False refuses it, as the text of a
    memory that is not due is refused always. Among near-duplicates an old text resembles the target of its neighbour."""
    weigh_new_keywords: bool = False
    """Multiply the score of a pair with a target UPDATE by the share of the keywords covered that the old text lacks. A text
    that says nothing of the change then earns nothing, however much of the old one it keeps."""
    outdated_weight: float = 0.0
    """Divide the score of a pair by 1 + this for one outdated value that the predicted text says, by 1 + twice this for two,
    and so on; 0 is the paper."""

    def __post_init__(self) -> None:
        weights = (self.format_weight, self.retrieval_weight, self.transition_weight)
        if not all(weight >= 0.0 for weight in weights) or abs(sum(weights) - 1.0) > 1e-6:
            raise DeltaMemError(
                "the reward weights for format, retrieval and transition must not be negative and must add up to 1, not "
                f"{weights[0]}, {weights[1]} and {weights[2]}"
            )
        if not 0.0 <= self.tau <= 1.0:
            raise DeltaMemError(f"tau must be at least 0 and at most 1, not {self.tau}")
        if not 1.0 <= self.stale_weight < float("inf"):
            raise DeltaMemError(f"stale_weight must be a finite number of at least 1, not {self.stale_weight}")
        if not 0.0 <= self.outdated_weight < float("inf"):
            raise DeltaMemError(f"outdated_weight must be a finite number of at least 0, not {self.outdated_weight}")

    def combine(self, format: float, retrieval: float, transition: float) -> float:
        """The weighted sum of the three parts, each in [0, 1]."""
        return self.format_weight * format + self.retrieval_weight * retrieval + self.transition_weight * transition


DEFAULT_OPTIONS = RewardOptions()


def transition_score(
    prior: MemoryState,
    predicted: Sequence[Operation] | None,
    target: Sequence[Operation],
    embed: EmbedTexts,
    options: RewardOptions = DEFAULT_OPTIONS,
) -> TransitionScore:
    """Score predicted operations by the state they lead to.

    Args:
        prior: The state before the session.
        predicted: The manager's operations; those that are not valid for the state are ignored. None: the outputs could
            not be read, which scores 0.
        target: The labelled operations with their keywords.
        embed: Called at most once, with the distinct texts of the entries that can be matched; not where nothing can be.
        options: Tau, keywords, deviations; the weights do not matter here.

    Returns:
        The score; without pairs where the outputs could not be read and, unless ``paper_literal``, where nothing or only
        one of the states changed.

    Raises:
        DeltaMemError: If a target operation is not valid for the state.
    """
    states = state_diff(prior, predicted if predicted is not None else (), target)
    if predicted is None:
        return _without_pairs(states, 0.0)
    if not options.paper_literal and not (states.predicted_changed and states.target_changed):
        return _without_pairs(states, float(states.predicted_changed == states.target_changed))

    # Overwriting a random memory must not earn credit, nor, which the paper leaves open, doing nothing.
    unmatchable = (
        {EntryOrigin.UNEXPECTED_UPDATE} if options.paper_literal else {EntryOrigin.UNEXPECTED_UPDATE, EntryOrigin.STALE}
    )
    left = [entry for entry in states.predicted if entry.origin not in unmatchable]
    right = [entry for entry in states.target if options.match_overwritten or entry.origin is not EntryOrigin.OVERWRITTEN]
    matched = _assign(left, right, prior, embed, options)
    agreed = [] if options.paper_literal else [_agreed(entry, prior, options) for entry in states.agreed]
    pairs = (*agreed, *matched)
    credit = sum(pair.score for pair in pairs)
    kept_up = {pair.predicted.id for pair in matched if pair.score}
    missed = sum(entry.origin in _DUE and entry.id not in kept_up for entry in states.predicted)
    in_predicted = len(states.predicted) + len(agreed)
    in_target = len(states.target) + len(agreed)
    # Only the paper's own reading leaves nothing to divide by. Its epsilon then makes the quotient 0, in equal states too.
    precision = credit / (in_predicted + (options.stale_weight - 1.0) * missed) if in_predicted else 0.0
    recall = credit / in_target if in_target else 0.0
    return TransitionScore(
        reward=2 * precision * recall / (precision + recall) if credit else 0.0,
        precision=precision,
        recall=recall,
        positive_distance=in_predicted - credit,
        negative_distance=in_target - credit,
        pairs=pairs,
        unmatched_predicted=_without(states.predicted, (pair.predicted for pair in matched)),
        unmatched_target=_without(states.target, (pair.target for pair in matched)),
    )


def _assign(
    left: Sequence[ComplementEntry],
    right: Sequence[ComplementEntry],
    prior: MemoryState,
    embed: EmbedTexts,
    options: RewardOptions,
) -> list[Pair]:
    """Pair the entries so that the total similarity over valid pairs is largest (paper, equation 3)."""
    if not left or not right:
        return []
    similarity = _similarities([entry.text for entry in left], [entry.text for entry in right], embed)
    valid = similarity >= options.tau
    if not options.match_other_targets:
        valid &= [[ours.id is None or ours.id == theirs.id for theirs in right] for ours in left]
    score = similarity.tolist()
    found = [folded(entry.text) for entry in left]
    wanted = [_anchors(entry, prior) for entry in right]
    for row, column in np.argwhere(valid).tolist():
        score[row][column] = _fidelity(left[row].text, found[row], wanted[column], score[row][column], options)
    # A pair that is not valid weighs nothing, so the complete assignment is the best partial one once those are dropped.
    weight = np.where(valid, similarity + _TIE_BREAK * np.array(score), 0.0)
    rows, columns = linear_sum_assignment(weight, maximize=True)
    return [
        Pair(left[row], right[column], float(similarity[row, column]), score[row][column], PairKind.MATCHED)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        if valid[row, column]
    ]


def _anchors(entry: ComplementEntry, prior: MemoryState) -> Anchors:
    before = prior[entry.id].text if entry.id is not None and entry.origin is EntryOrigin.UPDATED else ""
    return anchors(entry.keywords, entry.text, before, entry.outdated)


def _fidelity(text: str, found: str, wanted: Anchors, similarity: float, options: RewardOptions) -> float:
    """The score of a text and its `folded` form: similarity or share of the keywords, less what the options take off."""
    covered = coverage(found, wanted.keywords) if options.lexical_fidelity else None
    score = similarity if covered is None else covered
    if options.weigh_new_keywords and (news := coverage(found, wanted.new)) is not None:
        score *= news
    if options.outdated_weight and wanted.outdated:
        said = bare_words(text)
        score /= 1.0 + options.outdated_weight * sum(says(said, value) for value in wanted.outdated)
    return score


def _similarities(left: Sequence[str], right: Sequence[str], embed: EmbedTexts) -> Matrix:
    """Cosine similarities, shape ``(len(left), len(right))``, from one call of the embedder."""
    texts = list(dict.fromkeys((*left, *right)))
    vectors = np.asarray(embed(texts), dtype=np.float64)
    row = {text: index for index, text in enumerate(texts)}
    ours, theirs = [row[text] for text in left], [row[text] for text in right]
    cosine = vectors[ours] @ vectors[theirs].T
    # Rounding must not cost a word-for-word match, nor lift any pair above 1.
    return np.where(np.equal.outer(ours, theirs), 1.0, np.minimum(cosine, 1.0))


def _agreed(entry: ComplementEntry, prior: MemoryState, options: RewardOptions) -> Pair:
    ours = ComplementEntry(entry.id, entry.text, EntryOrigin.UPDATED)
    score = _fidelity(entry.text, folded(entry.text), _anchors(entry, prior), 1.0, options)
    return Pair(ours, entry, 1.0, score, PairKind.AGREED_UPDATE)


def _without(entries: Sequence[ComplementEntry], matched: Iterable[ComplementEntry]) -> tuple[ComplementEntry, ...]:
    """The entries that are in no pair. Each is an object of its own, even where two are equal."""
    taken = {id(entry) for entry in matched}
    return tuple(entry for entry in entries if id(entry) not in taken)


def _without_pairs(states: StateDiff, value: float) -> TransitionScore:
    return TransitionScore(
        reward=value,
        precision=value,
        recall=value,
        positive_distance=float(len(states.predicted)),
        negative_distance=float(len(states.target)),
        pairs=(),
        unmatched_predicted=states.predicted,
        unmatched_target=states.target,
    )


def format_score(trajectory: Trajectory) -> float:
    """Return 1 for an episode that ends in outputs that could be read and has no violation, else 0."""
    return float(trajectory.operations is not None and not trajectory.violations)


def needed_ids(target: Sequence[Operation], options: RewardOptions = DEFAULT_OPTIONS) -> frozenset[str]:
    """Ids of the prior memories that the target rewrites or repeats.

    The paper asks for the existing memories of "update and add" (section 3.3.4). An ADD has none, so with ``paper_literal``
    they are those of UPDATEs; else those of NONEs too, since the wire format makes a NONE name a memory.
    """
    repeated = () if options.paper_literal else (Event.NONE,)
    return frozenset(
        op.target_memory_id for op in target if op.target_memory_id is not None and op.event in (Event.UPDATE, *repeated)
    )


def retrieval_score(trajectory: Trajectory, target: Sequence[Operation], options: RewardOptions = DEFAULT_OPTIONS) -> float:
    """Return 1 if some search returned each needed memory (or none is needed), else 0."""
    return float(needed_ids(target, options) <= trajectory.seen_ids)


@dataclass(frozen=True, slots=True)
class TotalScore:
    """The reward of one episode and its parts, all in [0, 1]."""

    reward: float
    format: float
    retrieval: float
    transition: TransitionScore


def score(
    trajectory: Trajectory,
    labelled: LabelledSession,
    embed: EmbedTexts,
    options: RewardOptions = DEFAULT_OPTIONS,
) -> TotalScore:
    """Score a finished episode of a session; one that broke in our own machinery (`failure`) scores 0 in every part.

    Raises:
        DeltaMemError: If the target does not fit the prior state.
    """
    predicted = None if trajectory.failure is not None else trajectory.operations
    transition = transition_score(labelled.prior_state, predicted, labelled.operations, embed, options)
    if trajectory.failure is not None:
        return TotalScore(0.0, 0.0, 0.0, transition)
    format, retrieval = format_score(trajectory), retrieval_score(trajectory, labelled.operations, options)
    return TotalScore(options.combine(format, retrieval, transition.reward), format, retrieval, transition)
