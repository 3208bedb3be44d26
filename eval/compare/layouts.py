"""The tables of the papers: their columns, and which of our scores stands in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eval.personamem.question_types import COUNTS_32K, LABELS


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table with a heading of two lines.

    Attributes:
        group: What is measured: a category, an operation, or ``all``.
        measure: Which score.
        title: Upper line, the same for neighbours of one group.
        heading: Lower line; empty where there is one column of the group.
        count: Questions of the group in the whole benchmark; None where that is not questions.
    """

    group: str
    measure: str
    title: str
    heading: str = ""
    count: int | None = None

    @property
    def key(self) -> str:
        """Names the column in ``published.yaml``."""
        return f"{self.group}/{self.measure}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to fill a row of a run, where there are several scores for what a paper has one.

    Attributes:
        label: Says which; empty if there is only one.
        metrics: Name of the metric by measure, or by group and measure; measures that are not there stay empty.
        category: Category of the metric; None means the group of the column.
    """

    label: str
    metrics: Mapping[str, str]
    category: str | None = None

    def metric(self, column: Column) -> str | None:
        """The metric that stands in a column."""
        return self.metrics.get(column.key) or self.metrics.get(column.measure)


@dataclass(frozen=True, slots=True)
class Layout:
    """One table.

    Attributes:
        id: Names it in ``published.yaml``.
        title: Above the table.
        columns: In order.
        variants: Rows of each run.
        by_measure: Whether the terminal shows one table for each measure, because there are too many columns.
        note: What the reader must know.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    variants: tuple[Variant, ...]
    by_measure: bool = False
    note: str = ""


LOCOMO_COUNTS = {"single-hop": 841, "multi-hop": 282, "open-domain": 96, "temporal": 321, "all": 1540}
"""Questions by category, in the order of the paper's table; ``all`` leaves out category 5."""

_LOCOMO_TITLES = {
    "single-hop": "Single-hop",
    "multi-hop": "Multi-hop",
    "open-domain": "Open-domain",
    "temporal": "Temporal",
    "all": "Overall",
}


def _locomo(measures: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(
        Column(group, measure, f"{_LOCOMO_TITLES[group]} {count:,}", heading, count)
        for group, count in LOCOMO_COUNTS.items()
        for measure, heading in measures.items()
    )


def _halumem(group: str, title: str, headings: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(group, measure, title, heading) for measure, heading in headings.items())


_OUTCOMES = {"correct": "C", "hallucination": "H", "omission": "O"}
_UPDATE = _halumem("update", "Updating", _OUTCOMES)
_QA = _halumem("qa", "QA", _OUTCOMES)


def _halumem_variants() -> tuple[Variant, ...]:
    def metrics(scope: str) -> dict[str, str]:
        return {
            "extraction/recall": f"recall({scope})",
            "extraction/weighted_recall": f"weighted_recall({scope})",
            "extraction/target_precision": f"target_accuracy({scope})",
            "extraction/accuracy": f"weighted_accuracy({scope})",
            "extraction/resistance": f"interference_accuracy({scope})",
            **{f"update/{label}": f"{label}_update_memory_ratio({scope})" for label in _OUTCOMES},
            **{f"qa/{label}": f"{label}_qa_ratio({scope})" for label in _OUTCOMES},
        }

    return (
        Variant("failed judges count", {"extraction/f1": "memory_extraction_f1", **metrics("all")}, "all"),
        Variant("failed judges left out", metrics("valid"), "all"),
        Variant(
            "strict judge of answers, failed judges count",
            {f"qa/{label}": f"strict_{label}_qa_ratio(all)" for label in _OUTCOMES},
            "all",
        ),
    )


LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "locomo": (
        Layout(
            "locomo",
            "LoCoMo, as in Table 1 of the DeltaMem paper",
            _locomo({"bleu1": "B1", "f1": "F1", "judge": "LJ"}),
            (
                Variant("F1 of Mem0 (set_f1), lenient judge", {"bleu1": "bleu1", "f1": "set_f1", "judge": "lenient"}),
                Variant("F1 of LoCoMo (locomo_f1), strict judge", {"f1": "locomo_f1", "judge": "strict"}),
                Variant("F1 of MemOS (token_set_f1)", {"f1": "token_set_f1"}),
            ),
            by_measure=True,
            note="Papers do not say which F1 theirs is. Columns are told apart by their counts, because names are swapped "
            "between harnesses. The lenient judge is the one to compare with the papers' LJ.",
        ),
        Layout(
            "abstention",
            "LoCoMo category 5: share of questions without an answer at which the run abstained",
            (
                Column("adversarial", "abstention", "Adversarial 446", "official rule", 446),
                Column("adversarial", "abstention_judge", "Adversarial 446", "judge", 446),
            ),
            (Variant("", {"abstention": "abstention", "abstention_judge": "abstention_judge"}),),
        ),
        Layout(
            "queries",
            "LoCoMo, searches of the system by memory that it wrote, as in Table 7 of the DeltaMem paper",
            (
                Column("all", "queries_per_memory", "Queries per memory"),
                Column("all", "judge", "LJ", "", LOCOMO_COUNTS["all"]),
            ),
            (Variant("lenient judge", {"judge": "lenient"}),),
        ),
    ),
    "personamem": (
        Layout(
            "personamem",
            "PersonaMem 32k, as in Table 2 of the DeltaMem paper",
            (
                *(Column(name, "accuracy", f"{LABELS[name]} {count}", "", count) for name, count in COUNTS_32K.items()),
                Column("all", "accuracy", f"Overall {sum(COUNTS_32K.values())}", "", sum(COUNTS_32K.values())),
            ),
            (Variant("", {"accuracy": "accuracy"}),),
        ),
    ),
    "halumem": (
        Layout(
            "halumem",
            "HaluMem, as in Tables 3 and 6 of the DeltaMem paper",
            (Column("extraction", "f1", "Extraction", "F1"), *_UPDATE, *_QA),
            _halumem_variants(),
            note="QA: question answering. C: correct, H: hallucination, O: omission. Published rows are of HaluMem-Medium.",
        ),
        Layout(
            "operations",
            "HaluMem, as in Table 3 of the HaluMem paper",
            (
                *_halumem(
                    "extraction",
                    "Extraction",
                    {
                        "recall": "R",
                        "weighted_recall": "Weighted R",
                        "target_precision": "Target P",
                        "accuracy": "Acc.",
                        "resistance": "FMR",
                        "f1": "F1",
                    },
                ),
                *_UPDATE,
                *_QA,
            ),
            _halumem_variants(),
        ),
    ),
}
"""By benchmark."""
