"""``python -m papers.momento``: a memory system under an agent that has to do the right thing, by models or by a script.

Exit code 0; 1 if trials failed or records could not be read (they are counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.table import Table

from deltamem.config import run_hydra, validated
from deltamem.intervals import percent_text
from eval import runner
from eval.benchmark import AskContext, Asker, Benchmark, Report, Results, Timeline, TimelineStep
from eval.compare.layout import ALL
from eval.html import render_page, write_page
from eval.records import Cost, QuestionRecord
from eval.summary import Summary, counted, score_cells, score_table
from eval.systems.base import StoreKey, System
from eval.systems.baselines import Evidence
from papers.momento.data import GIVEN_SUMMARIES, MomentoConfig, read_data
from papers.momento.judge import JUDGE, calibrate, judge_of
from papers.momento.recall import dialogue_sessions
from papers.momento.scores import LAYOUTS, SCORES, failure_counts, run_scores, trial_counts, trial_warnings, trials_of
from papers.momento.trial import open_trials

if TYPE_CHECKING:
    from omegaconf import DictConfig

TRIALS_PAGE = "trials.html"
_PROMPTS = "papers.momento.prompts:momento_"
_SCRIPTED = "scripted"
_PARTS = ("recall", "user", "judge")
"""What asks models in trials besides the agent."""


def table(summary: Summary) -> Table:
    """The scores of each kind of task; those by words and by order are on the page."""
    scores = [name for name in summary.scores if name not in ("word_coverage", "tool_recall_ordered")]
    caption = "coverage is the judge's where one was asked, else by words; 95% intervals over tasks"
    view = score_table(f"Momento, {summary.label()}: %", caption, ["tasks", *(name.replace("_", " ") for name in scores)])
    counts = counted(summary)
    cells = [score_cells(summary, name, counts) for name in scores]
    for kind, count, *row in zip(counts, counts.values(), *cells, strict=True):
        view.add_row(kind, f"{count:,}", *row)
    return view


def page(system: str, report: Report, questions: Sequence[QuestionRecord]) -> str:
    """Scores, and every trial with what was said, recalled, called and changed."""
    kinds = [ALL, *dict.fromkeys(question.category for question in questions)]
    template = Path(__file__).with_name("report.html.j2")
    rows = {
        kind: [percent_text(report.scores[metric].get(kind), brackets=True) for metric in report.scores] for kind in kinds
    }
    return render_page(template, system=system, report=report, rows=rows, trials=list(trials_of(questions)))


class Momento(Benchmark[MomentoConfig]):
    """A timeline for each task: its past sessions, then the task, whose answers are conversations of an agent."""

    name = "Momento"
    config_type = MomentoConfig
    config_dir = Path(__file__).parent / "configs"
    search_state = "session"
    answer_prompt = f"{_PROMPTS}agent"
    answer_fields = ("user_id", "date", "memory", "rounds")
    prompts: ClassVar = {
        f"{_PROMPTS}user": ("date", "instruction", "images"),
        f"{_PROMPTS}recall": ("date", "message"),
        f"{_PROMPTS}judge": ("instruction", "conversation", "items"),
        f"{_PROMPTS}summary": ("messages",),
    }
    asks = True
    tables = (table,)
    layouts = LAYOUTS

    def __init__(self, config: MomentoConfig) -> None:
        self.config, self.k = config, config.k
        self.tasks, self.catalogue = read_data(config)
        self.asked = {str(task.task_id): task for task in self.tasks.tasks[: config.limit]}

    def data_hashes(self) -> dict[str, str]:
        """Of the tasks."""
        return {"data_sha256": self.tasks.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One store for each task; nothing is ingested where the summaries of the data are recalled."""
        made = []
        for key, task in self.asked.items():
            store = StoreKey(f"task-{key}", task.user_id, batch_turns=2)
            sessions = () if self.config.system == GIVEN_SUMMARIES else tuple(dialogue_sessions(task))
            text = task.opening or task.instruction
            question = QuestionRecord(key=key, group=key, category=task.kind or "tasks", question=text)
            made.append(Timeline((store,), (TimelineStep((sessions,), (question,)),)))
        return made

    def evidence(self) -> Evidence:
        """By task and the user's first message."""
        return {f"task-{key}": {task.opening: task.evidence} for key, task in self.asked.items()}

    def vocabulary(self) -> list[str]:
        """Names of restaurants and dishes, and of where they are."""
        return self.catalogue.vocabulary

    def extras(self) -> dict[str, Callable[[], Any]]:
        """That the data has summaries, besides the usual."""
        return {**super().extras(), GIVEN_SUMMARIES: lambda: True}

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """The names of the scores: those of conversations are computed when they end."""
        return dict.fromkeys(SCORES, 0.0)

    def asking(self, context: AskContext) -> AbstractAsyncContextManager[Asker]:
        """Databases and the user's model, as long as there are trials to run."""
        return open_trials(self.config, self.asked, self.catalogue, context)

    async def probes(self, context: AskContext) -> list[dict[str, Any]]:
        """How often the judge is wrong on replies that are known to be right or wrong."""
        judge = judge_of(context, self.config, "calibration")
        return [] if judge is None else [await calibrate(judge, self.tasks.tasks, self.config.seed)]

    def report(self, results: Results) -> Report:
        """Scores over tasks; writes the page of all trials."""
        config, questions = self.config, results.questions
        tasks = {str(task.task_id): task for task in self.tasks.tasks}
        tried = [(tasks[question.key], trial) for question, _, trial in trials_of(questions)]
        trials = [trial for _, trial in tried]
        scores = run_scores(questions, resamples=config.resamples, seed=config.seed)
        agent, user = (config.answer.model, config.user.model) if config.by_model else (_SCRIPTED, _SCRIPTED)
        protocol = {name: getattr(config, name) for name in ("trials", "turns", "rounds", "k", "context_tokens")}
        made = Report(
            benchmark=self.name,
            protocol=protocol
            | {"database": config.database.partition(":")[0], "agent": agent, "user": user}
            | {"intervals": "95%, bootstrap over tasks; trials of one task do not count as more"},
            data=self.tasks.description() | {"chosen": len(self.asked), "published": self.tasks.published},
            scores=scores,
            headline=("passed",),
            judged_by={name: JUDGE for name in scores if name.startswith(("passed", "pass@", "pass^", "coverage"))},
            problems=self.tasks.problems,
            warnings=[*trial_warnings(trials, {"user": config.user.max_tokens, "judge": config.judge.max_tokens})],
            costs={part: sum((one.costs.get(part, Cost()) for one in trials), Cost()) for part in _PARTS},
            more={
                "mode": "answered" if config.by_model else _SCRIPTED,
                "trials": trial_counts(trials),
                "failed_at": failure_counts(tried),
            },
        )
        write_page(config.out / TRIALS_PAGE, page(config.system, made, questions))
        return made

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """What trials came to."""
        counts = summary.more["trials"]
        unreadable = f", {counts['unreadable_calls']:,} that could not be read" if counts["unreadable_calls"] else ""
        yield (
            f"{counts['done']:,} trials, {counts['failed']:,} failed; {counts['calls_of_tools']:,} calls of tools, "
            f"{counts['violations']:,} against a rule{unreadable}; every trial: {TRIALS_PAGE}"
        )
        failed = summary.more["failed_at"]
        if failed["not_passed"] and "passed" not in summary.withheld:
            metrics = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in failed["by_metric"].items())
            tools = [
                f"{tool} {of['missed']:,} of {of['expected']:,}" for tool, of in failed["by_tool"].items() if of["missed"]
            ]
            yield (
                f"{failed['not_passed']:,} of {failed['trials']:,} trials did not pass, for {metrics}; "
                f"tools most missed: {', '.join(tools[:3]) or 'none'}"
            )


def main(config: MomentoConfig) -> int:
    """Run, and show the result; see `eval.runner.main`."""
    config.check()  # what the runner only finds after an estimate
    return runner.main(Momento, config)


if __name__ == "__main__":

    def task(config: DictConfig) -> int:
        """Validate and run."""
        return main(validated(config, MomentoConfig))

    run_hydra(task, "momento", Momento.config_dir)
