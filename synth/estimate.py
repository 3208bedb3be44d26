"""What a configuration will take, before any call is made: calls, tokens, GPU hours, time, disk.

Sizes are measured, not guessed: the offline writer writes sample people, and every task that it gets is rendered as the
prompt that a language model would get. What cannot be measured offline (thinking, speed, repairs) is assumed, in the group
``estimate``; the output names the assumptions.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from deltamem.errors import DeltaMemError
from synth.config import Demands, EstimateSettings, LLMSettings, Shape, SynthSettings
from synth.planning import scaled
from synth.progress import duration
from synth.records import Dialogue, Persona, Record
from synth.tasks import AnswerT, Contradictions, DialogueTask, Extraction, StatedFact, Task, Unit, UnitId, UnitResult, Writer

PAPER_GPU_HOURS = 500
"""What the paper reports for its data set (appendix C.1)."""

_REPAIR_MESSAGE_TOKENS = 300
"""What a list of violations adds to a prompt, besides the answer that is sent back."""

_STORE_OVERHEAD = 120
"""Bytes of a stored answer besides its text."""


def expected_units(shape: Shape, sessions: int, llm: LLMSettings | None = None) -> dict[Unit, float]:
    """How many units one person takes on average, repairs not counted. `llm` says which reviews of dialogues there are."""
    if shape.everyday is not None and llm is None:
        return {}  # lives from scenes have no units
    busy, revisions = float(sessions), 0.0
    if isinstance(plan := shape.plan, Demands):
        busy *= 1 - plan.idle
        # Roughly how many memories change, or groups that change together.
        additions = busy * (shape.events.memory + (shape.filling.min + shape.filling.max) / 2)
        updates = plan.updates * additions / (1 - plan.updates - plan.repeats)
        revisions = updates * sum(plan.chains.values()) / sum(depth * weight for depth, weight in plan.chains.items())
    groups = scaled(shape.groups, sessions)
    most = min(groups.max, sessions // max(shape.events_per_group.min, 2))
    counts = {
        Unit.FIXED: 1.0,
        Unit.DYNAMIC: 1.0,
        Unit.PREFERENCES: float(shape.profile.categories.max > 0),
        Unit.INITIAL: 1.0 - shape.initial.newcomers if shape.initial.total.max else 0.0,
        Unit.EVENTS: float(math.ceil(busy / shape.events_per_call)),
        Unit.LINKS: float(most > 0),
        Unit.EVOLUTION: (min(groups.min, most) + most) / 2,
        Unit.FILLING: busy,
        Unit.REVISION: revisions,
        Unit.DIALOGUE: float(sessions),
        Unit.EXTRACTION: float(sessions if llm and llm.extraction else 0),
        Unit.CONTRADICTIONS: float(sessions if llm and llm.contradictions else 0),
    }
    return {unit: count for unit, count in counts.items() if count}


class Size(NamedTuple):
    """Tokens of a unit: what is sent and what is answered, without thinking."""

    prompt: float
    answer: float


class MeasuredSample(NamedTuple):
    """What was measured: mean sizes, bytes of a finished person in all files, and of an answer."""

    units: dict[Unit, Size]
    person_bytes: float
    answer_bytes: float


class UnitEstimate(NamedTuple):
    """Of all units of one kind, repairs included."""

    calls: float
    prompt_tokens: float
    completion_tokens: float


class Estimate(NamedTuple):
    """Of a whole data set; `bound` is what the time is bound by: ``GPUs``, ``slots`` or ``the longest person``."""

    units: dict[Unit, UnitEstimate]
    gpu_hours: float
    wall_seconds: float
    bound: str
    disk_bytes: float

    @property
    def total(self) -> UnitEstimate:
        """Of all units."""
        return UnitEstimate(*(sum(column) for column in zip(*self.units.values(), strict=True)))


class _Measured:
    """A writer that notes how large prompts and answers are."""

    def __init__(self, writer: Writer, tokens: Callable[[str], float]) -> None:
        self._writer, self._tokens, self.making = writer, tokens, writer.making
        self.sizes: defaultdict[Unit, list[Size]] = defaultdict(list)
        self.answer_bytes: list[int] = []

    async def write(self, task: Task[AnswerT], place: UnitId) -> UnitResult[AnswerT]:
        from synth.llm.writer import contradictions_task, extraction_task

        written = await self._writer.write(task, place)
        if written.answer is not None:
            self.answer_bytes.append(len(self._noted(task, written.answer).encode()))
            if isinstance(task, DialogueTask) and isinstance(written.answer, Dialogue):
                # An extraction lists about what is labelled.
                stated = tuple(StatedFact(turn=1, text=fact.text) for fact in task.facts)
                self._noted(extraction_task(task, written.answer), Extraction(facts=stated))
                self._noted(contradictions_task(task, written.answer), Contradictions(found=()))
        return written

    def _noted(self, task: Task[Any], answer: Record) -> str:
        from synth.llm.writer import opening

        text = answer.model_dump_json()
        prompt = sum(self._tokens(message["content"]) for message in opening(task))
        self.sizes[task.unit].append(Size(prompt, self._tokens(text)))
        return text


def measure(settings: SynthSettings) -> MeasuredSample:
    """Write sample people offline and measure the prompts and answers of their units.

    Raises `DeltaMemError` if the tokenizer cannot be loaded.
    """
    from deltamem.sessions import to_json_line
    from synth.assembly import labelled_sessions
    from synth.names import InventedNames
    from synth.offline import OfflineWriter
    from synth.person import write_person

    assumed, seed = settings.estimate, settings.seed
    writer, shape = _Measured(OfflineWriter(seed), _counter(assumed)), settings.shape.scripted
    names = InventedNames(seed, settings.shape.profile.name_syllables)
    person_bytes = []
    for number in range(assumed.sample_people):
        text = "Somebody with a job and friends."
        persona = Persona(person_id=f"sample{number}", seed=text, source="generated", split="train")
        writing = write_person(number, persona, writer, shape, names, sessions=settings.sessions, seed=seed)
        person = asyncio.run(writing)
        record = len(person.model_dump_json().encode())
        lines = sum(len(to_json_line(labelled).encode()) for labelled in labelled_sessions(person))
        # The record twice, the sessions, the parquet rows.
        person_bytes.append(2 * record + 2 * lines)
    units = {unit: Size(*map(fmean, zip(*sizes, strict=True))) for unit, sizes in writer.sizes.items()}
    return MeasuredSample(units, fmean(person_bytes), fmean(writer.answer_bytes))


def estimate(settings: SynthSettings, sample: MeasuredSample) -> Estimate:
    """Multiply what was measured by what is assumed."""
    assumed, llm = settings.estimate, settings.llm
    thinking = assumed.reasoning_tokens[(llm.reasoning_effort if llm else None) or "none"]
    units = {}
    longest = 0.0
    for unit, count in expected_units(settings.shape, settings.sessions, llm).items():
        size = sample.units.get(unit, Size(0.0, 0.0))
        answer = size.answer * assumed.answer_scale
        first = count * settings.people
        repairs = first * assumed.repair_rate
        units[unit] = UnitEstimate(
            calls=first + repairs,
            prompt_tokens=first * size.prompt + repairs * (size.prompt + answer + _REPAIR_MESSAGE_TOKENS),
            completion_tokens=(first + repairs) * (thinking + answer),
        )
        # Events are asked for one after the other; units of other kinds at the same time.
        in_a_row = count if unit is Unit.EVENTS else 1.0
        longest += in_a_row * (1 + assumed.repair_rate) * (thinking + answer) / assumed.slot_tokens_per_second
    calls, prompt, completion = map(sum, zip(*units.values(), strict=True))
    gpu_seconds = prompt / assumed.prefill_tokens_per_second + completion / assumed.decode_tokens_per_second
    bounds = {
        "GPUs": gpu_seconds / assumed.gpus,
        "slots": completion / (_slots(settings) * assumed.slot_tokens_per_second),
        "the longest person": longest,
    }
    bound = max(bounds, key=lambda name: bounds[name])
    disk = settings.people * sample.person_bytes + calls * (sample.answer_bytes * assumed.answer_scale + _STORE_OVERHEAD)
    return Estimate(units, gpu_seconds / 3600, bounds[bound], bound, disk)


def _slots(settings: SynthSettings) -> int:
    """Requests that all shards can have in flight."""
    llm = settings.llm
    return (llm.slots * len(llm.base_urls) if llm else 1) * settings.shard.of


def show(settings: SynthSettings, found: Estimate) -> None:
    """Print an estimate with its assumptions."""
    assumed, llm = settings.estimate, settings.llm
    effort = (llm.reasoning_effort if llm else None) or "none"
    table = Table(box=None, pad_edge=False)
    for column in ("unit", "calls", "prompt tokens", "completion tokens"):
        table.add_column(column, justify="left" if column == "unit" else "right")
    for name, row in (*found.units.items(), ("all", found.total)):
        table.add_row(str(name), *(f"{value:,.0f}" for value in row))
    model = llm.model if llm else "a language model"
    gpus = "1 GPU" if assumed.gpus == 1 else f"{assumed.gpus} GPUs"
    time = duration(found.wall_seconds)
    console = Console(highlight=False, soft_wrap=True)
    for part in (
        f"{settings.people:,} people x {settings.sessions} sessions, written by {model}; nothing has been asked yet",
        table,
        f"GPU hours: about {found.gpu_hours:,.0f} (the paper reports about {PAPER_GPU_HOURS} for 300 people x 25 sessions)",
        f"time: about {time} with {_slots(settings)} slots on {gpus}, bound by {found.bound}",
        f"disk: about {found.disk_bytes / 1e6:,.0f} MB",
        "assumptions (keys estimate.*; replace them by what your server shows):",
        f"  prompts and answers as measured with {assumed.sample_people} offline people, "
        f"{assumed.tokenizer or f'{assumed.characters_per_token:g} characters a token'}",
        f"  answers of a model {assumed.answer_scale:g} times as long (answer_scale)",
        f"  {assumed.reasoning_tokens[effort]:,} tokens of thinking an answer at effort {effort} (reasoning_tokens)",
        f"  {assumed.repair_rate:.0%} of the answers are sent back (repair_rate)",
        f"  a GPU reads {assumed.prefill_tokens_per_second:,.0f} and writes {assumed.decode_tokens_per_second:,.0f} "
        "tokens/s (prefill_tokens_per_second, decode_tokens_per_second)",
        f"  a request gets {assumed.slot_tokens_per_second:,.0f} tokens/s (slot_tokens_per_second)",
    ):
        console.print(part)


def _counter(assumed: EstimateSettings) -> Callable[[str], float]:
    if assumed.tokenizer is None:
        return lambda text: len(text) / assumed.characters_per_token
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(assumed.tokenizer)
    except ImportError:
        raise DeltaMemError("estimate.tokenizer needs transformers; install it with: pip install transformers") from None
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise DeltaMemError(f"config key 'estimate.tokenizer': {assumed.tokenizer!r} cannot be loaded: {first}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
