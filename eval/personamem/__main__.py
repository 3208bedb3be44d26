"""``python -m eval.personamem system=naive_rag``: a memory system on PersonaMem v1.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import comb
from statistics import fmean, pstdev
from typing import Any

from rich.table import Table

from eval import runner
from eval.benchmark import Benchmark, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.evidence import EvidenceFinder
from eval.metrics import pass_at_k
from eval.personamem.data import (
    BATCH_TURNS,
    COUNTS_32K,
    FIRST_DAY,
    LABELS,
    PersonaHistory,
    PersonaMemConfig,
    PlacedQuestion,
    in_order,
    question_record,
    read_data,
    record_key,
)
from eval.records import PassageRecord, QuestionRecord
from eval.scores import (
    GOLD_WORDS,
    AskedValue,
    Value,
    answer_value,
    drawn_over,
    gold_words_value,
    metric_scores,
    recall_value,
    reciprocal_rank_value,
)
from eval.summary import Summary, counted, score_cells, score_table
from eval.systems.base import System

_LOST = {"context_missing": "their context is not in", "end_out_of_range": "their end index is not within their context in"}


_OPENING = "<final_answer>"
_CLOSING = "</final_answer>"
_IN_PARENTHESES = re.compile(r"\(([a-d])\)")
_ALONE = re.compile(r"\b([a-d])\b")


def chosen_letters(text: str) -> frozenset[str]:
    """The letters that an answer settles on: those after the last ``<final_answer>``, or in all of it without that tag.

    Letters in parentheses count; only if there are none do letters that stand alone. The article "a" is such a letter.
    """
    settled = text.strip()
    if _OPENING in settled:
        settled = settled.rpartition(_OPENING)[2].strip()
    return _letters(settled.removesuffix(_CLOSING))


def is_correct(text: str, gold: str) -> bool:
    """Whether an answer names the right option, ``c`` or ``(c)``, and no other, where it settles or in all of it."""
    right = {gold.lower().strip("() ")}
    return chosen_letters(text) == right or _letters(text) == right


def is_final(text: str, gold: str) -> bool:
    """Whether the right letter alone follows the last ``<final_answer>``, or without that tag is the whole answer."""
    right = gold.lower().strip("() ")
    if _OPENING in text:
        return chosen_letters(text) == {right}
    return text.strip().lower().strip("(). ") == right


def _letters(text: str) -> frozenset[str]:
    lowered = text.lower()
    return frozenset(_IN_PARENTHESES.findall(lowered) or _ALONE.findall(lowered))


Held = Callable[[QuestionRecord, int], list[bool]]
"""For each of the first so many passages of a question whether it holds something of the referenced block."""


def precision_value(held: Held, k: int) -> AskedValue:
    """Share of the first `k` passages that hold something of the block; None where there is no rank or no passage."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        if not record.ranks or not (record.error or record.retrieved):
            return []
        return [(None, False) if record.error is not None else (fmean(held(record, k)), False)]

    return AskedValue(parts)


CORRECT, FINAL = "correct", "correct_final"
"""Scores of an answer: 1 if it names the right letter by `is_correct`, and by `is_final`; else 0, also without a letter."""


def run_scores(
    questions: Sequence[QuestionRecord], samples: Mapping[str, PlacedQuestion], held: Held, config: PersonaMemConfig
) -> dict[str, dict[str, Any]]:
    """All scores by metric and type, with intervals by bootstrap of the personas.

    ``accuracy_final`` and ``accuracy`` (the official rule; means over the runs), ``accuracy_run_n``, ``pass@n`` for several
    runs; ``recall@k`` and ``precision@k`` of the referenced block, ``mrr``, and the same for turns drawn at random
    (``random_...``).
    """
    values: dict[str, Value] = {"accuracy_final": answer_value(FINAL), "accuracy": answer_value(CORRECT)}
    if (runs := config.runs) > 1:
        values |= {f"accuracy_run_{run + 1}": _of_run(run) for run in range(runs)}
        values |= {f"pass@{k}": _pass_value(k) for k in range(1, runs + 1)}
    for k in sorted(set(config.cutoffs)):
        values |= {
            f"recall@{k}": recall_value(k),
            f"random_recall@{k}": _where_ranked(lambda one, k=k: random_recall(one, k), samples),  # type: ignore[misc]
            f"precision@{k}": precision_value(held, k),
        }
    # The share of the history that lies in the block
    values["random_precision"] = _where_ranked(lambda one: len(one.evidence) / one.turns, samples)
    values |= {"mrr": reciprocal_rank_value, GOLD_WORDS: gold_words_value}
    order = in_order(record.category for record in questions)
    return metric_scores(questions, values, resamples=config.resamples, seed=config.seed, order=order)


def spread_over_runs(questions: Sequence[QuestionRecord], runs: int) -> dict[str, dict[str, Any]]:
    """The protocol's figures: accuracy of each run over all questions that it answered, their mean and standard deviation.

    By type and for ``all``: ``per_run``, ``mean`` and ``std`` (of the population of runs); types in which some run answered
    nothing are left out.
    """
    spread = {}
    for name in [*in_order(record.category for record in questions), ALL]:
        members = [record for record in questions if name in (ALL, record.category)]
        by_run = [[value for record in members if (value := _of_run(run)(record)) is not None] for run in range(runs)]
        if all(by_run):
            per_run = [fmean(values) for values in by_run]
            spread[name] = {"per_run": per_run, "mean": fmean(per_run), "std": pstdev(per_run)}
    return spread


def letters_named(questions: Sequence[QuestionRecord]) -> dict[str, int]:
    """How many answers name one letter, several, or none, where they settle."""
    names = ("none", "one", "several", "several", "several")
    texts = [answer.text for record in questions for answer in record.answers if answer.text is not None]
    counts = Counter(names[len(chosen_letters(text))] for text in texts)
    return {name: counts[name] for name in ("one", "several", "none")}


def random_recall(sample: PlacedQuestion, k: int) -> float:
    """Chance that any of `k` turns lies in the block, if they are drawn at random from the history, none twice."""
    drawn = min(k, sample.turns)
    return 1 - comb(sample.turns - len(sample.evidence), drawn) / comb(sample.turns, drawn)


def _where_ranked(chance: Callable[[PlacedQuestion], float], samples: Mapping[str, PlacedQuestion]) -> Value:
    return lambda record: chance(samples[record.key]) if record.ranks else None


def _of_run(run: int) -> AskedValue:
    answered = answer_value(CORRECT)
    return AskedValue(lambda record: answered.parts(record)[run : run + 1])


def _pass_value(k: int) -> AskedValue:
    """Chance that one of `k` answers is right, of questions with at least as many."""

    def chance(scores: Sequence[float]) -> float | None:
        return pass_at_k(len(scores), round(sum(scores)), k) if len(scores) >= k else None

    return AskedValue(answer_value(CORRECT).parts, chance)


def table(summary: Summary) -> Table:
    """Accuracy and recall by type of question, and over all questions."""
    spread, counts = summary.more["accuracy_over_runs"], counted(summary)
    labels = {name: LABELS.get(name, name).replace("-", "-\n") for name in counts if name != ALL}
    headings = [f"{label}\n{counts[name]}" for name, label in labels.items()]
    title = f"{summary.benchmark}, {summary.label()}, {summary.mode}: in %"
    view = score_table(title, _caption(summary), [*headings, f"Over-\nall\n{counts[ALL]}"], corner="questions")
    for metric in _metrics(summary.scores):
        view.add_row(
            "MRR" if metric == "mrr" else metric.replace("random_", " at random: "), *score_cells(summary, metric, counts)
        )
        if metric == "accuracy" and len(spread.get(ALL, {}).get("per_run", ())) > 1:
            deviations = (f"{100 * spread[name]['std']:.1f}" if name in spread else "-" for name in counts)
            view.add_row("std over runs", *deviations)
    return view


def _metrics(scores: Mapping[str, Any]) -> list[str]:
    """Accuracy first, then retrieval, what chance would give right below; the rest is left to the summary."""
    precisions = [name for name in scores if name.startswith("precision@")]
    hidden = {"pass@1", *precisions[:-1]}
    return [name for name in scores if not name.startswith("accuracy_run") and name not in hidden]


def _caption(summary: Summary) -> str:
    protocol, letters = summary.protocol, summary.more["letters_named"]
    blocks = summary.more["referenced_block"]
    runs = "mean of {} answers".format(protocol["runs"]) if protocol["runs"] > 1 else "one answer"
    lines = [
        f"Top {protocol['k']}; {runs} a question, guessing gives 25. accuracy: the official rule, which has two guesses:",
        "the letter after <final_answer>, else the only one in the whole answer. accuracy_final: the first of them alone.",
        f"Below each figure its 95% interval ({drawn_over(summary.questions.groups, 'persona')}).",
    ]
    if "mrr" in summary.scores:
        lines.insert(1, "Recall and precision: passages that hold a turn of the session that the question refers to.")
        if unsure := blocks["they_do_not"] + blocks["none"]:
            lines.insert(2, f"Which session that is, is not sure for {unsure} questions.")
    if letters["several"] or letters["none"]:
        lines.append(f"{letters['several']} answers name several letters, {letters['none']} none: they count as wrong.")
    return "\n".join(lines)


LAYOUTS = (
    PaperTable(
        "as in Table 2 of the DeltaMem paper",
        columns_of(COUNTS_32K | {ALL: sum(COUNTS_32K.values())}, {"accuracy": ""}, LABELS),
        (
            Variant("official rule", {"accuracy": "accuracy"}),
            Variant("final answer alone", {"accuracy": "accuracy_final"}),
        ),
        id="personamem",
        note="The official rule, which papers use, has two guesses: the letter of the final answer, else the only one "
        "that the text names.",
    ),
)
"""As papers have them."""

VALUES: Mapping[str, Value] = {"accuracy": answer_value(CORRECT), "accuracy_final": answer_value(FINAL)}
"""What a question is worth by the scores of answers."""


class PersonaMem(Benchmark[PersonaMemConfig]):
    """A timeline for each context: one store, and each question when exactly the messages before it are ingested."""

    name = "PersonaMem"
    config_type = PersonaMemConfig
    search_state = "exact"
    answer_prompt = "answer_personamem"
    answer_fields = ("context", "question", "options")
    tables = (table,)
    layouts = LAYOUTS
    labels = LABELS
    values = VALUES

    def __init__(self, config: PersonaMemConfig) -> None:
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._samples = {sample.record.key: sample for history in self.data.histories for sample in history.samples}
        self._histories = {sample.record.key: history for history in self.data.histories for sample in history.samples}
        self._finder = lru_cache(maxsize=None)(_finder)
        self._keys = [record_key(question) for question in self.data.selected]

    def data_hashes(self) -> dict[str, str | None]:
        """Of both files."""
        return {"questions_sha256": self.data.questions.sha256, "contexts_sha256": self.data.contexts.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each context that is asked about."""
        timelines = []
        for history in self.data.histories:
            steps = [
                TimelineStep((sessions,), tuple(sample.record for sample in samples))
                for sessions, samples in history.steps(set(self._keys))
            ]
            if steps:
                timelines.append(Timeline((history.key,), tuple(steps)))
        return timelines

    def question_keys(self, timelines: Sequence[Timeline]) -> list[str]:
        """As the questions file has them."""
        return self._keys

    def unaskable(self) -> Iterable[QuestionRecord]:
        """Questions without a history."""
        for question in self.data.selected:
            if lost := self.data.lost.get(record_key(question)):
                yield question_record(question, error=lost.reason)

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Ids of the turns of the referenced block."""
        every = ((history.key.id, sample) for history in self.data.histories for sample in history.samples)
        return gold_evidence((store, sample.question.text, sorted(sample.evidence, key=int)) for store, sample in every)

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the context."""
        return self._finder(self._histories[question.key])

    def evidence_turns(self, question: QuestionRecord) -> list[frozenset[str]]:
        """Those of the referenced block, as one piece."""
        return [self._samples[question.key].evidence] if question.evidence else []

    def options(self, question: QuestionRecord) -> tuple[str, ...]:
        """Four, each with its letter."""
        return self._samples[question.key].question.options

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Whether the letter is right."""
        gold = question.gold or ""
        return {CORRECT: float(is_correct(answer, gold)), FINAL: float(is_final(answer, gold))}

    def report(self, results: Results) -> Report:
        """Accuracy and retrieval by type of question, the spread over runs, and how sure the referenced blocks are."""
        config, questions = self.config, results.questions
        return Report(
            benchmark=f"{self.name} {self.data.size}",
            protocol={
                "k": config.k,
                "stores": "one a context; each question is searched for when exactly the messages before it are in "
                "the store",
                "batch_turns": BATCH_TURNS,
                "system_messages": config.system_messages,
                "dates": f"made up, the data has none: session n is dated n days after {FIRST_DAY:%Y-%m-%d}",
                "runs": config.runs,
                "score": "accuracy: by the benchmark's own rule, which has two guesses, the letter after the last "
                "<final_answer>, else the only letter in the whole answer; accuracy_final: what follows the tag, or a "
                "whole answer that is one letter; means over the runs",
                "std": "of the population of runs",
                "intervals": f"95%, {drawn_over(len({one.group for one in questions}), 'persona')}",
                "reference": "the session that lies distance_to_ref_in_blocks back; recall@k: a passage holds a turn of it",
            },
            data=self._description(),
            scores=run_scores(
                questions,
                self._samples,
                lambda record, k: self._held(record, results.found(record)[:k]),
                config,
            ),
            problems=(*self.data.questions.problems, *self.data.contexts.problems),
            headline=("accuracy_final", *(f"recall@{k}" for k in sorted(config.cutoffs, reverse=True))),
            order=in_order(record.category for record in questions),
            more={
                "accuracy_over_runs": spread_over_runs(questions, config.runs),
                "letters_named": letters_named(questions),
                "referenced_block": self._block_counts(),
            },
        )

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """How many questions were answered."""
        yield f"{summary.questions.answered} of {summary.questions.total} questions answered"

    @classmethod
    def failure_lines(cls, summary: Summary) -> Iterable[str]:
        """What of the data could not be used."""
        data, total = summary.data, summary.questions.total
        for kind, count in data["questions_without_history"].items():
            yield f"{count} of {total} questions could not be asked: {_LOST[kind]} {data['files'][1]}"
        if broken := data["unreadable_rows"]:
            yield f"{broken} of {total} rows of {data['files'][0]} could not be read"

    def _held(self, question: QuestionRecord, passages: Sequence[PassageRecord]) -> list[bool]:
        """Of each passage whether it holds a turn of the block that a question refers to."""
        held, evidence = self.finder(question).held, self._samples[question.key].evidence
        return [not evidence.isdisjoint(held(passage.text)) for passage in passages]

    def _description(self) -> dict[str, Any]:
        questions, contexts = self.data.questions, self.data.contexts
        known, rows = questions.content, len(questions.content) + len(questions.problems)
        return {
            "release": f"{self.name} v1, {self.data.size}",
            "files": [questions.name, contexts.name],
            "sha256": {questions.name: questions.sha256, contexts.name: contexts.sha256},
            "published": self.data.published,
            "questions": rows,
            "sample": self.data.sample,
            "types": len({question.type for question in known}),
            "personas": len({question.persona for question in known}),
            "contexts": len({question.context for question in known}),
            "histories": len({(question.context, question.end) for question in known}),
            "questions_of_types": Counter(question.type for question in known),
            "unreadable_rows": len(questions.problems),
            "questions_without_history": Counter(lost.kind for lost in self.data.lost.values()),
        }

    def _block_counts(self) -> dict[str, int]:
        blocks = [self._samples[key].block for key in self._keys if key in self._samples]
        agreed = sum(block is not None and block.agrees for block in blocks)
        missing = sum(block is None for block in blocks)
        return {"both_distances_agree": agreed, "they_do_not": len(blocks) - agreed - missing, "none": missing}


def _finder(history: PersonaHistory) -> EvidenceFinder:
    return EvidenceFinder.of((piece.session for piece in history.pieces), (history.key.owner, "User", "Assistant"))


if __name__ == "__main__":
    runner.command(PersonaMem, "personamem")
