"""``python -m eval.locomo``: LoCoMo with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rich.table import Table

from eval import runner
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.compare.layout import ALL, Column, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.data import LOCOMO
from eval.evidence import EvidenceFinder
from eval.headline import without_scope
from eval.judge import ABSTENTION_FIELDS, ABSTENTION_LABELS, QUESTION_FIELDS, QUESTION_LABELS, OfficialPrompt
from eval.locomo.data import (
    ADVERSARIAL,
    ADVERSARIAL_NUMBER,
    COLUMNS,
    LocomoConfig,
    dialogues,
    question_record,
    read_data,
    version_name,
)
from eval.metrics import bleu1, locomo_f1, set_f1, token_set_f1
from eval.records import QuestionRecord
from eval.scores import Value, answer_value, drawn_over, metric_scores, retrieval_values, verdict_value
from eval.summary import Summary, score_cells, score_table
from eval.systems.base import System

ABSTENTION = "abstention"
"""The official rule for category 5: whether the answer says that nothing is known."""

ABSTENTION_JUDGE = "abstention_judge"

OFFICIAL = OfficialPrompt("ACCURACY_PROMPT", {"gold_answer": "gold", "generated_answer": "answer"})
"""Of the judge that papers use, in Mem0's ``evaluation/metrics/llm_judge.py``; LoCoMo itself has none."""

LEXICAL = ("locomo_f1", "set_f1", "token_set_f1", "bleu1")


def run_scores(records: Sequence[QuestionRecord], config: LocomoConfig) -> dict[str, dict[str, Any]]:
    """All scores of a run, by metric and category; category 5 never counts for ``all``.

    Only metrics that some question has a value of. Questions without usable evidence have no recall.
    """
    values: dict[str, Value] = {judge: verdict_value(judge) for judge in (*config.asked_judges, ABSTENTION_JUDGE)}
    values |= {name: answer_value(name) for name in (*LEXICAL, ABSTENTION)}
    values |= retrieval_values(config.cutoffs)
    order = (*COLUMNS, ADVERSARIAL)
    return metric_scores(records, values, resamples=config.resamples, seed=config.seed, pooled=COLUMNS, order=order)


ABSTENTIONS = {ABSTENTION: "abstention\nby phrase", ABSTENTION_JUDGE: "abstention\njudged"}


def table(summary: Summary) -> Table:
    """Scores by category in percent, each with its interval. Category 5 is not in it.

    With an audit the ceiling is beside the judges' scores: the share of questions whose answer in the file is right.
    """
    counts = dict.fromkeys(COLUMNS, 0) | summary.questions.by_category
    columns = {name: counts[name] for name in COLUMNS}
    columns[ALL] = sum(columns.values())
    ceiling = summary.more["ceiling"] or {}
    view = score_table(
        f"{summary.version}, {summary.label()}, gold {summary.protocol['gold']}: %",
        _caption(summary, audited=bool(ceiling)),
        (f"{'overall' if name == ALL else name}\n{count}" for name, count in columns.items()),
    )
    judges = set(summary.protocol["judges"])
    rows = [name for name, of in summary.scores.items() if of[ALL] is not None and without_scope(name) not in ABSTENTIONS]
    for name in [name for name in rows if without_scope(name) in judges]:
        view.add_row(name, *score_cells(summary, name, columns, 1))
    if ceiling:
        shares = (ceiling.get(name) for name in columns)
        view.add_row("ceiling", *("-" if one is None else f"{100 * one:.1f}" for one in shares), end_section=True)
    for name in [name for name in rows if without_scope(name) not in judges]:
        view.add_row(name, *score_cells(summary, name, columns, 1))
    return view


def adversarial_table(summary: Summary) -> Table | None:
    """The row of category 5, in percent; None if nothing of it was asked or scored."""
    scores = [name for name, of in summary.scores.items() if of.get(ADVERSARIAL) is not None]
    if not scores:
        return None
    names = sorted(scores, key=lambda name: without_scope(name) not in ABSTENTIONS)
    bases = {name: without_scope(name) for name in names}
    view = score_table(columns=(ABSTENTIONS.get(base, base) + name.removeprefix(base) for name, base in bases.items()))
    count = {ADVERSARIAL: summary.questions.by_category[ADVERSARIAL]}
    cells = (score_cells(summary, name, count, 1)[0] for name in names)
    view.add_row(f"{ADVERSARIAL} {count[ADVERSARIAL]}", *cells)
    return view


def _caption(summary: Summary, *, audited: bool) -> str:
    accounting, intervals = summary.more["accounting"], drawn_over(summary.questions.groups, "conversation")
    left_out = [f"{count:,} not asked ({reason})" for reason, count in accounting["not_asked"].items() if count]
    parts = [f"{accounting['asked']:,} asked", *left_out, f"{accounting['failed']:,} failed"]
    ceiling = " Ceiling: questions whose answer in the file is right." if audited else ""
    return f"95% intervals: {intervals}. Questions: {accounting['total']:,} = {' + '.join(parts)}.{ceiling}"


COUNTS = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, ALL: 1540}
"""Questions by category of the released file, in the order of the paper's table; ``all`` leaves out category 5."""

LAYOUTS = (
    PaperTable(
        "as in Table 1 of the DeltaMem paper",
        columns_of(COUNTS, {"bleu1": "B1", "f1": "F1", "judge": "LJ"}),
        (
            Variant("F1 of Mem0 (set_f1), lenient judge", {"bleu1": "bleu1", "f1": "set_f1", "judge": "lenient"}),
            Variant("F1 of LoCoMo (locomo_f1), strict judge", {"f1": "locomo_f1", "judge": "strict"}),
            Variant("F1 of MemOS (token_set_f1)", {"f1": "token_set_f1"}),
        ),
        id="locomo",
        ceiling="judge",
        note="Columns are told apart by their counts, because names are swapped between harnesses. Papers do not say "
        "which F1 theirs is. No judge here is the papers' LJ: theirs is a CORRECT/WRONG prompt in Mem0's wording, "
        "mostly with GPT-4o-mini (Mem0: mean of ten judge runs, MemOS: of three, others: one), and it reads answers "
        "to other prompts, mostly by GPT-4o-mini. The lenient judge follows the same practice in our wording; the "
        "table of both judges shows how much a judge alone can change.",
    ),
    PaperTable(
        "category 5: share of questions without an answer at which the run abstained",
        columns_of({"adversarial": 446}, {"abstention": "official rule", "abstention_judge": "judge"}),
        (Variant("", {"abstention": "abstention", "abstention_judge": "abstention_judge"}),),
        id="abstention",
    ),
    PaperTable(
        "searches of the system by memory that it wrote, as in Table 7 of the DeltaMem paper",
        (Column(ALL, "queries_per_memory", "Queries per memory"), Column(ALL, "judge", "LJ", "", COUNTS[ALL])),
        (Variant("lenient judge", {"judge": "lenient"}),),
        id="queries",
    ),
)
"""As papers have them."""


class Locomo(Benchmark[LocomoConfig]):
    """A timeline for each conversation: one store or one for each speaker, all sessions, then all questions."""

    name = LOCOMO.name
    config_type = LocomoConfig
    search_state = "latest"
    answer_prompt = "answer_locomo"
    uses_nltk = True
    tables = (table, adversarial_table)
    layouts = LAYOUTS

    def __init__(self, config: LocomoConfig) -> None:
        self.config = config
        self.data = read_data(config)
        self._questions = {
            question_record(conversation, question).key: question
            for conversation, questions in self.data.asked.items()
            for question in questions
        }
        self._finder = lru_cache(maxsize=None)(self._make_finder)

    @classmethod
    def judges(cls, config: LocomoConfig) -> Mapping[str, JudgeSpec]:
        """Those of the configuration, and that of category 5."""
        official = {"lenient": OFFICIAL}
        specs = {
            name: JudgeSpec(f"judge_{name}", QUESTION_FIELDS, QUESTION_LABELS, official=official.get(name))
            for name in config.judges
        }
        abstention = JudgeSpec("judge_abstention", ABSTENTION_FIELDS, ABSTENTION_LABELS, calibrated=False)
        return specs | {ABSTENTION_JUDGE: abstention}

    def data_hashes(self) -> dict[str, str | None]:
        """Of the file and of the audit if it was applied."""
        audit = self.data.audit.sha256 if self.data.audit is not None and self.data.audited else None
        return {"data_sha256": self.data.sha256, "audit_sha256": audit}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each conversation that is asked about."""
        self.k = self.config.k if system.per_speaker else 2 * self.config.k
        timelines = []
        for conversation in self.data.conversations:
            asked = self.data.asked[conversation.id]
            if asked:
                stores = dialogues(conversation, per_speaker=system.per_speaker, captions=self.config.captions)
                questions = tuple(question_record(conversation.id, question) for question in asked)
                timelines.append(Timeline(tuple(stores), (TimelineStep(tuple(stores.values()), questions),), titled=True))
        return timelines

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By conversation and question."""
        every = ((one.id, question) for one in self.data.conversations for question in one.questions)
        return gold_evidence((name, question.text, question.evidence) for name, question in every)

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the conversation."""
        return self._finder(question.group)

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Lexical scores; none where there is no gold answer to compare with."""
        number, gold = self._questions[question.key].category, question.gold
        if number == ADVERSARIAL_NUMBER:
            return {ABSTENTION: locomo_f1(answer, gold, number)}
        if gold is None:
            return {}
        return {
            "locomo_f1": locomo_f1(answer, gold, number),
            "set_f1": set_f1(answer, gold),
            "token_set_f1": token_set_f1(answer, gold),
            "bleu1": bleu1(answer, gold),
        }

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """Those of the configuration where there is a gold answer, in category 5 the one of abstention."""
        shown = {"question": question.question, "answer": answer}
        asked = self._questions[question.key]
        if asked.category == ADVERSARIAL_NUMBER:
            return {ABSTENTION_JUDGE: shown | {"trap": asked.adversarial_answer or ""}}
        if question.gold is None:
            return {}
        return dict.fromkeys(self.config.asked_judges, shown | {"gold": question.gold})

    def report(self, results: Results) -> Report:
        """Scores by category, how the questions of the file add up, and the ceiling that an audit sets."""
        config, data, questions = self.config, self.data, results.questions
        failed, described = sum(not record.complete for record in questions), data.description()
        return Report(
            benchmark=self.name,
            protocol={
                "k": config.k,
                "stores_per_conversation": 2 if results.system.per_speaker else 1,
                "k_each_store": self.k,
                "cutoffs": sorted(set(config.cutoffs)),
                "captions": config.captions,
                "gold": config.gold,
                "pooled": COLUMNS,
                "judges": self.config.asked_judges,
            },
            data=described | {"published": data.sha256 == LOCOMO.sha256},
            scores=run_scores(questions, config),
            headline=(
                *self.config.asked_judges,
                "locomo_f1",
                *(f"recall@{k}" for k in sorted(config.cutoffs, reverse=True)),
            ),
            order=(*COLUMNS, ADVERSARIAL),
            more={
                "version": version_name(data.released, data.sha256, data.sample),
                "accounting": {
                    "total": described["questions"],
                    "asked": len(questions) - failed,
                    "failed": failed,
                    "not_asked": dict(data.not_asked),
                },
                "ceiling": data.ceiling(),
            },
        )

    def _make_finder(self, name: str) -> EvidenceFinder:
        conversation = next(one for one in self.data.conversations if one.id == name)
        (sessions,) = dialogues(conversation, per_speaker=False, captions=self.config.captions).values()
        return EvidenceFinder.of(sessions, conversation.speakers)


if __name__ == "__main__":
    runner.command(Locomo, "locomo")
