"""LoCoMo's scores: lexical, judged and of retrieval, by category, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from eval.benchmark import JudgeSpec
from eval.compare.layout import ALL, Column, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.headline import without_scope
from eval.judge import ABSTENTION_FIELDS, ABSTENTION_LABELS, QUESTION_FIELDS, QUESTION_LABELS
from eval.locomo.data import ADVERSARIAL, COLUMNS, LocomoConfig
from eval.records import QuestionRecord
from eval.scores import Value, answer_value, drawn_over, metric_scores, retrieval_values, verdict_value
from eval.summary import Summary, score_cells, score_table

ABSTENTION = "abstention"
"""The official rule for category 5: whether the answer says that nothing is known."""

ABSTENTION_JUDGE = "abstention_judge"

LEXICAL = ("locomo_f1", "set_f1", "token_set_f1", "bleu1")


def judge_specs(judges: Sequence[str]) -> dict[str, JudgeSpec]:
    """The judges of answers that have a gold answer, and that of category 5."""
    specs = {name: JudgeSpec(f"judge_{name}", QUESTION_FIELDS, QUESTION_LABELS) for name in judges}
    abstention = JudgeSpec("judge_abstention", ABSTENTION_FIELDS, ABSTENTION_LABELS, calibrated=False)
    return specs | {ABSTENTION_JUDGE: abstention}


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
        f"{summary.version}, {summary.system}, gold {summary.protocol['gold']}: %",
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
