"""The layouts of the papers' tables: which of our scores stands in which of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from eval.beam.data import ABILITIES
from eval.compare.runs import CLOSED_BOOK
from eval.longmemeval.data import TYPES
from eval.personamem.data import COUNTS_32K, LABELS
from eval.summary import ALL


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table with a heading of two lines."""

    group: str  # What is measured: a category, an operation, or `all`
    measure: str  # Which score
    name: str  # Upper line of the heading without the count, the same for neighbours of one group
    heading: str = ""  # Lower line; empty where there is one column of the group
    count: int | None = None  # Questions of the group in the whole benchmark; None where that is not questions

    @property
    def key(self) -> str:
        """Names the column in ``published.yaml``."""
        return f"{self.group}/{self.measure}"

    @property
    def title(self) -> str:
        """Upper line of the heading."""
        return self.name if self.count is None else f"{self.name} {self.count:,}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to fill a row of a run, where there are several scores for what a paper has one."""

    label: str  # Says which; empty if there is only one
    # Name of the metric by measure, or by group and measure; measures that are not there stay empty
    metrics: Mapping[str, str]
    category: str | None = None  # Category of the metric; None means the group of the column


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as it is shown, what stands under it, and the name of our metric that it is."""

    text: str
    small: str = ""
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with one cell for each column; None is empty."""

    # `ours` was measured by a run that is shown; `missing` was not run; `published` is what others reported
    kind: Literal["ours", "missing", "published"]
    label: str  # The run or the system
    detail: str  # More about it: variant, or doubts
    cells: tuple[Cell | None, ...]
    source: str = ""  # Where a published row was printed, and under which conditions
    group: str = ""  # What the row has in its columns, where other rows of the table have other scores


@dataclass(frozen=True, slots=True)
class Table:
    """A table; in `LAYOUTS` without rows, which are ours, then those not run, then published ones."""

    title: str
    columns: Sequence[Column]
    variants: Sequence[Variant] = ()  # Rows of each run
    id: str = ""  # Names the table of a paper in `published.yaml`
    rows: Sequence[Row] = ()
    note: str = ""  # What the reader must know, below the table
    banner: str = ""  # Above it: why it must not be read as what its title says

    def groups(self) -> list[tuple[str, int]]:
        """The upper line of the heading: title and number of columns below it."""
        return [(title, len(list(columns))) for title, columns in groupby(self.columns, lambda column: column.title)]

    def parts(self) -> list[tuple[str, str, list[Row]]]:
        """Rows that can be compared and sorted among themselves: their kind, what stands above them, and the rows."""
        found = groupby(self.rows, lambda row: (row.kind, f"published: {row.source}" if row.source else row.group))
        return [(kind, above, list(rows)) for (kind, above), rows in found]


LOCOMO_COUNTS = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, ALL: 1540}
"""Questions by category, in the order of the paper's table; ``all`` leaves out category 5."""


_NAMES = {**LABELS, ALL: "Overall", "update": "Updating", "qa": "QA"}


def columns_of(groups: Mapping[str, int | None], measures: Mapping[str, str]) -> tuple[Column, ...]:
    """A column for each group, by its count, and each measure, by its heading."""
    return tuple(
        Column(group, measure, _NAMES.get(group) or f"{group[:1].upper()}{group[1:].replace('_', ' ')}", heading, count)
        for group, count in groups.items()
        for measure, heading in measures.items()
    )


_OUTCOMES = {"correct": "C", "hallucination": "H", "omission": "O"}
_ANSWERS = columns_of({"update": None, "qa": None}, _OUTCOMES)
_EXTRACTION = {"recall": "R", "weighted_recall": "Weighted R", "target_precision": "Target P", "accuracy": "Acc."}
_EXTRACTION |= {"resistance": "FMR", "f1": "F1"}


def _halumem(scope: str) -> dict[str, str]:
    return {
        "extraction/recall": f"recall({scope})",
        "extraction/weighted_recall": f"weighted_recall({scope})",
        "extraction/target_precision": f"target_accuracy({scope})",
        "extraction/accuracy": f"weighted_accuracy({scope})",
        "extraction/resistance": f"interference_accuracy({scope})",
        **{f"update/{label}": f"{label}_update_memory_ratio({scope})" for label in _OUTCOMES},
        **{f"qa/{label}": f"{label}_qa_ratio({scope})" for label in _OUTCOMES},
    }


_STRICT = {f"qa/{label}": f"strict_{label}_qa_ratio(all)" for label in _OUTCOMES}
_HALUMEM = (
    Variant("failed judges count", {"extraction/f1": "memory_extraction_f1", **_halumem("all")}, ALL),
    Variant("failed judges left out", _halumem("valid"), ALL),
    Variant("strict judge of answers, failed judges count", _STRICT, ALL),
)

LAYOUTS: Mapping[str, tuple[Table, ...]] = {
    "locomo": (
        Table(
            "as in Table 1 of the DeltaMem paper",
            columns_of(LOCOMO_COUNTS, {"bleu1": "B1", "f1": "F1", "judge": "LJ"}),
            (
                Variant("F1 of Mem0 (set_f1), lenient judge", {"bleu1": "bleu1", "f1": "set_f1", "judge": "lenient"}),
                Variant("F1 of LoCoMo (locomo_f1), strict judge", {"f1": "locomo_f1", "judge": "strict"}),
                Variant("F1 of MemOS (token_set_f1)", {"f1": "token_set_f1"}),
            ),
            id="locomo",
            note="Columns are told apart by their counts, because names are swapped between harnesses. Papers do not say "
            "which F1 theirs is. No judge here is the papers' LJ: theirs is a CORRECT/WRONG prompt in Mem0's wording, "
            "mostly with GPT-4o-mini (Mem0: mean of ten judge runs, MemOS: of three, others: one), and it reads answers "
            "to other prompts, mostly by GPT-4o-mini. The lenient judge follows the same practice in our wording; the "
            "table of both judges shows how much a judge alone can change.",
        ),
        Table(
            "category 5: share of questions without an answer at which the run abstained",
            columns_of({"adversarial": 446}, {"abstention": "official rule", "abstention_judge": "judge"}),
            (Variant("", {"abstention": "abstention", "abstention_judge": "abstention_judge"}),),
            id="abstention",
        ),
        Table(
            "searches of the system by memory that it wrote, as in Table 7 of the DeltaMem paper",
            (Column(ALL, "queries_per_memory", "Queries per memory"), Column(ALL, "judge", "LJ", "", LOCOMO_COUNTS[ALL])),
            (Variant("lenient judge", {"judge": "lenient"}),),
            id="queries",
        ),
    ),
    "personamem": (
        Table(
            "as in Table 2 of the DeltaMem paper",
            columns_of(COUNTS_32K | {ALL: sum(COUNTS_32K.values())}, {"accuracy": ""}),
            (
                Variant("official rule", {"accuracy": "accuracy"}),
                Variant("final answer alone", {"accuracy": "accuracy_final"}),
            ),
            id="personamem",
            note="The official rule, which papers use, has two guesses: the letter of the final answer, else the only one "
            "that the text names.",
        ),
    ),
    "longmemeval": (
        Table(
            "as in Table 3 of the Zep paper",
            columns_of(TYPES | {ALL: sum(TYPES.values())}, {"accuracy": ""}),
            (Variant("", {"accuracy": "accuracy"}),),
            id="longmemeval",
            note="Published rows are of the file before its histories were cleaned in September 2025.",
        ),
    ),
    "beam": (
        Table(
            "abilities as in its paper",
            columns_of(dict.fromkeys((*ABILITIES, ALL)), {"score": ""}),
            (Variant("", {"score": "score"}), Variant("partly met counts as not met", {"score": "score_strict"})),
            id="beam",
            note="Sizes are apart from each other: compare rows of one size alone.",
        ),
    ),
    "halumem": (
        Table(
            "as in Tables 3 and 6 of the DeltaMem paper",
            (*columns_of({"extraction": None}, {"f1": "F1"}), *_ANSWERS),
            _HALUMEM,
            id="halumem",
            note="QA: question answering. C: correct, H: hallucination, O: omission. Published rows are of HaluMem-Medium.",
        ),
        Table(
            "as in Table 3 of the HaluMem paper",
            (*columns_of({"extraction": None}, _EXTRACTION), *_ANSWERS),
            _HALUMEM,
            id="operations",
        ),
    ),
}
"""By benchmark."""

BASELINES = (CLOSED_BOOK, "full_context", "naive_rag")
"""Systems without which the score of a memory says nothing: what is known without any memory, what the whole
conversation gives, what plain search gives. Each table has a row for them."""
