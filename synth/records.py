"""What is known of a synthetic person, as immutable and bounded records: persona, profile, events, memories, dialogues."""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from deltamem.config import StrictModel
from deltamem.memory import Event, Keyword
from deltamem.sessions import FactKind, KeywordSchema, OperationDifficulty, Provenance, Signal, Split

Name = Annotated[str, StringConstraints(strip_whitespace=True, max_length=80)]
Line = Annotated[str, StringConstraints(strip_whitespace=True, max_length=400)]
Paragraph = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2_500)]
Wording = Annotated[str, StringConstraints(strip_whitespace=True, max_length=80)]
Wordings = Annotated[tuple[Wording, ...], Field(max_length=6)]
Keywords = Annotated[tuple[Annotated[Keyword, KeywordSchema(Wording)], ...], Field(max_length=6)]


class Record(StrictModel):
    """Base of all records."""


class Track(StrEnum):
    """The four change streams of a life (paper, appendix A)."""

    CAREER = "career"
    HEALTH = "health"
    RELATIONSHIP = "relationship"
    PREFERENCE = "preference"


class Domain(StrEnum):
    """Where in life an event belongs (paper, appendix A)."""

    WORK = "work"
    SOCIAL = "social"
    HEALTH = "health"
    LEISURE = "leisure"
    ADMIN = "admin"
    FINANCE = "finance"


class FactChange(StrEnum):
    """What an event does to a fact: the operators O of the paper (appendix A), and two that leave nothing but an end."""

    NEW = "new"
    EXPAND = "expand"
    ADJUST = "adjust"
    SHIFT = "shift"
    PARTIAL_DELETION = "partial_deletion"
    RETRACT = "retract"
    EXPIRE = "expire"


class Method(StrEnum):
    """How later events change the view of a memory anchor (paper, section 3.2, inter-event evolution)."""

    EMOTIONAL = "emotional_update"
    MEANING = "meaning_update"
    SELF_BELIEF = "self_belief"


class Persona(Record):
    """The seed of one person: a sentence to start from, its source (``generated``, ``file``, ``personahub``), the split."""

    person_id: str
    seed: Line
    source: str
    split: Split


class Family(Record):
    """Parents, partner and children, in words."""

    parents: Line
    partner: Line
    children: Line


class LifeGoal(Record):
    """What the person wants to reach in life."""

    kind: Name
    statement: Line
    motivation: Line
    target: Line


class FixedPart(Record):
    """What does not change over the sessions (HaluMem, stage 1)."""

    name: Name
    gender: Name
    birth_date: date
    location: Name
    degree: Name
    major: Name
    mbti: Annotated[str, StringConstraints(pattern="^[EI][SN][TF][JP]$")]
    traits: Annotated[tuple[Name, ...], Field(min_length=1, max_length=6)]
    family: Family
    life_goal: LifeGoal


class Career(Record):
    """Work at the time of the first memories; amounts in the currency of the place, per month and in all."""

    status: Name
    industry: Name
    employer: Name
    job: Name
    monthly_income: Annotated[int, Field(ge=0, le=10_000_000)]
    savings: Annotated[int, Field(ge=0, le=1_000_000_000)]
    description: Paragraph


class Health(Record):
    """Health at the time of the first memories; conditions are empty if there are none."""

    physical: Name
    physical_conditions: Line
    mental: Name
    mental_conditions: Line
    reason: Paragraph


class Relationship(Record):
    """Somebody whom the person knows, by full name."""

    name: Name
    kind: Name
    description: Line


class DynamicPart(Record):
    """What events may change (HaluMem, stage 1)."""

    career: Career
    health: Health
    relationships: Annotated[tuple[Relationship, ...], Field(max_length=6)]


class Preference(Record):
    """Something that is liked or disliked, and why."""

    item: Line
    reason: Line


class PreferenceGroup(Record):
    """Likes and dislikes of one kind, for example ``music``."""

    category: Name
    likes: Annotated[tuple[Preference, ...], Field(max_length=5)]
    dislikes: Annotated[tuple[Preference, ...], Field(max_length=5)]


class Preferences(Record):
    """The preference part (HaluMem, stage 1)."""

    groups: Annotated[tuple[PreferenceGroup, ...], Field(max_length=10)]


class Fact(Record):
    """One atomic fact: the memory sentence, in the third person, and keywords that a faithful memory must contain.

    A keyword has one wording or several alternatives, at least one of which stands in the text.
    """

    text: Line
    keywords: Keywords


class SaidFact(Fact):
    """A fact that a session brings up; `misspoken` is the wrong value said first where it is corrected there."""

    misspoken: Wording = ""


class FactPlan(Record):
    """The program's plan of one fact.

    Facts of the same `family` number are siblings, of the same kind and wording with one slot changed; 0 stands alone. A
    `dated` fact has a date, which the user will say in relation to the day of the session; a `temporary` one ends on a date
    that it names. Without a `kind`, any will do.
    """

    family: int = 0
    kind: FactKind | None = None
    provenance: Provenance = "said"
    dated: bool = False
    temporary: bool = False


class TrackedFact(Fact):
    """A fact that an event may change; those of no track (family, education) are left alone.

    `subject` is the full name (relationship) or the category (preference) that it is about; empty in other tracks.
    """

    track: Track | None
    subject: Name


class Profile(Record):
    """Stage 1: who the person is, and the facts of the initial memory state S0, which carry the time `start`."""

    persona: Persona
    fixed: FixedPart
    dynamic: DynamicPart
    preferences: Preferences
    start: datetime
    initial: tuple[TrackedFact, ...]

    @property
    def name(self) -> str:
        """How memories name the person."""
        return self.fixed.name


class PlannedChange(Record):
    """A change that an event has to make."""

    track: Track
    change: FactChange


class EventSlot(Record):
    """The program's plan of one event, which the writer fills.

    It takes place from `not_before` to `not_after`; the next slot begins later. `reused` is how many earlier memories the
    session repeats (NONE), `days_after` how many days after the event it takes place. In the session of an `idle` slot
    nothing happens and nothing is told. `given_up` are planned changes with which no answer kept the rules.
    """

    index: int
    not_before: date
    not_after: date
    domain: Domain
    life_goal: bool
    changes: tuple[PlannedChange, ...]
    reused: int
    days_after: int = 0
    idle: bool = False
    topic: Line = ""
    given_up: tuple[PlannedChange, ...] = ()


class Participant(Record):
    """Somebody who takes part in an event, by full name."""

    name: Name
    relationship: Name


class StateDelta(Fact):
    """What one event does to one fact (paper, appendix A).

    `previous_text` is the fact as it was, word for word, empty for a new one; `text` as it holds after the event. One
    keyword at least is also one of the previous fact's.
    """

    track: Track
    change: FactChange
    subject: Name
    previous_text: Line


class LifeEvent(Record):
    """Stage 2: something that happens and is talked about in one session; `memory` is the event itself as a memory."""

    index: Annotated[int, Field(ge=0, le=999)]
    date: date
    domain: Domain
    valence: Annotated[str, StringConstraints(pattern="^(positive|neutral|negative|bittersweet)$")]
    agency: Annotated[str, StringConstraints(pattern="^(happens_to_user|user_initiated|co_created)$")]
    title: Name
    narrative: Paragraph
    participants: Annotated[tuple[Participant, ...], Field(max_length=5)]
    grounding: Annotated[tuple[Line, ...], Field(max_length=4)]
    result: Line
    emotion: Line
    follow_ups: Annotated[tuple[Line, ...], Field(max_length=4)]
    serves_life_goal: bool
    changes: Annotated[tuple[StateDelta, ...], Field(max_length=8)]
    memory: Fact | None = None


class PastEvent(Record):
    """What later units are told of an event."""

    index: int
    date: date
    title: Line
    narrative: Paragraph

    @classmethod
    def of(cls, event: LifeEvent) -> PastEvent:
        """Leave out what only the event's own units need."""
        return cls(index=event.index, date=event.date, title=event.title, narrative=event.narrative)


class EventGroup(Record):
    """Linked events, by increasing index: the first is the source of a memory anchor (paper, section 3.2)."""

    events: Annotated[tuple[Annotated[int, Field(ge=0, le=999)], ...], Field(max_length=8)]
    thread: Line


class Evolution(Record):
    """How one memory anchor changes over the events of its group: a memory an event, each subsumes the earlier ones."""

    method: Method
    memories: Annotated[tuple[Fact, ...], Field(max_length=8)]


class PlannedRevision(Record):
    """The program's plan of one change of a memory: how it shows and comes up, and the day and event of its session."""

    change: FactChange
    signal: Signal
    provenance: Provenance
    dated: bool
    today: date
    event: PastEvent


class RevisedFact(SaidFact):
    """A memory after one change; `outdated` are values of an earlier text that are wrong now."""

    outdated: Wordings = ()


class RevisionStep(Record):
    """What one change makes of each memory that it concerns."""

    facts: Annotated[tuple[RevisedFact, ...], Field(max_length=4)]


class Revision(Record):
    """The changes of one memory, or of several that change together, in order of time."""

    steps: Annotated[tuple[RevisionStep, ...], Field(max_length=4)]


class FactOrigin(StrEnum):
    """Which part of memory generation a session's fact comes from."""

    EVENT = "event"
    DELTA = "delta"
    EVOLUTION = "evolution"
    FILLING = "filling"
    REVISION = "revision"
    REUSE = "reuse"


class KeywordOrigin(StrEnum):
    """Where a manager takes a keyword from: it is said, computed from a date, or stands in the memory that is updated."""

    SAID = "said"
    FROM_DATE = "from_date"
    FROM_MEMORY = "from_memory"


class SessionFact(Record):
    """A fact that a session has to tell, and the operation that it asks for.

    Facts are numbered in the order of the story. `previous_text` is empty for ADD and equal to `text` for NONE. `origins`
    says where each keyword comes from; empty means that all are ``said``. UPDATEs of one `statement` above 0 are changed by
    one statement of the user. Without a planned difficulty, an UPDATE says both the old and the new text.
    """

    id: Annotated[str, StringConstraints(pattern="^f[0-9]{1,3}$")]
    event: Event
    text: Line
    previous_text: Line
    keywords: Keywords
    origin: FactOrigin
    origins: tuple[KeywordOrigin, ...] = ()
    misspoken: Wording = ""
    outdated: Wordings = ()
    statement: int = 0
    difficulty: OperationDifficulty | None = None

    @property
    def spoken(self) -> Keywords:
        """The keywords that come from the session itself."""
        if not self.origins:
            return self.keywords
        pairs = zip(self.keywords, self.origins, strict=True)
        return tuple(keyword for keyword, origin in pairs if origin is KeywordOrigin.SAID)

    @property
    def signal(self) -> Signal:
        """How the change shows, if it is one."""
        return self.difficulty.signal if self.difficulty else "explicit"

    @property
    def provenance(self) -> Provenance:
        """How the fact comes up."""
        return self.difficulty.provenance if self.difficulty else "said"


class AsideKind(StrEnum):
    """What is said in a session without stating a fact."""

    ASSISTANT_CLAIM = "assistant_claim"
    CHIT_CHAT = "chit_chat"
    HYPOTHETICAL = "hypothetical"
    RUMOUR = "rumour"
    QUESTION = "question"
    CUE = "cue"


class Aside(Record):
    """Something planned that asks for no operation: it says words of a memory that is left as it is, or a cue of change."""

    id: Annotated[str, StringConstraints(pattern="^a[0-9]{1,3}$")]
    kind: AsideKind
    words: Wordings
    memory: Line


class Voice(Record):
    """How the user of a session writes, and who and what else turns up in it; what is empty is left to the writer.

    `style` is of the whole life, `manner` of this session; words of a `language` are dropped now and then. A `guest` types
    one turn instead of the user. The line of `interference` stands, off the subject, in one of the assistant's answers, word
    for word.
    """

    style: Line = ""
    manner: Line = ""
    language: Line = ""
    guest: Name = ""
    guest_purpose: Line = ""
    interference: Line = ""


class Exchange(Record):
    """One turn of the paper's dialogues: an utterance of the user and the answer of the assistant."""

    user: Paragraph
    assistant: Paragraph


class PlannedFact(Record):
    """The work plan's entry of one fact; turns count from 1.

    `previous_turn` is where the user mentions what held before an UPDATE, not later than `turn`; 0 for other facts.
    """

    fact_id: Annotated[str, StringConstraints(pattern="^f[0-9]{1,3}$")]
    turn: Annotated[int, Field(ge=1, le=99)]
    previous_turn: Annotated[int, Field(ge=0, le=99)]


class PlannedAside(Record):
    """The turn of an aside, counted from 1."""

    aside_id: Annotated[str, StringConstraints(pattern="^a[0-9]{1,3}$")]
    turn: Annotated[int, Field(ge=1, le=99)]


class Dialogue(Record):
    """A session with its map from facts to turns. The plan comes first, so that a model plans before it writes.

    `guest_turn` is the one in which a guest types, from 1; 0 if there is none.
    """

    plan: Annotated[tuple[PlannedFact, ...], Field(max_length=40)]
    asides: Annotated[tuple[PlannedAside, ...], Field(max_length=10)] = ()
    guest_turn: Annotated[int, Field(ge=0, le=99)] = 0
    turns: Annotated[tuple[Exchange, ...], Field(max_length=40)]


class SynthSession(Record):
    """Stages 3 and 4 of one event, its facts in the order of the operations.

    A rejected session has no dialogue; its facts change the memory state all the same.
    """

    index: int
    time: datetime
    goal: str
    summary: str
    facts: tuple[SessionFact, ...]
    dialogue: Dialogue | None


class Rejection(Record):
    """A unit, at a place of its kind, whose answer broke rules to the last repair, with a reason for each violation."""

    unit: str
    where: str
    rules: tuple[str, ...]
    reasons: tuple[str, ...]


class UnitUsage(Record):
    """What the units of one kind took: answers are the first and the repairs, tokens as the server counts them.

    `reasoning_tokens` is the part of `completion_tokens` that was thinking; 0 if the server does not say.
    """

    units: int = 0
    attempts: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


class Person(Record):
    """Everything that was written of one person; the labelled sessions follow from it (`synth.assembly`).

    A rejected profile, or rejected events, reject the person. `groups` are those whose memory thread was written, `dropped`
    the facts of the filling that repeat what is remembered elsewhere. `checked` and `violations` count answers by rule,
    repaired ones included; `usage` goes by the value of `synth.tasks.Unit`.
    """

    persona: Persona
    profile: Profile | None = None
    slots: tuple[EventSlot, ...] = ()
    events: tuple[LifeEvent, ...] = ()
    groups: tuple[EventGroup, ...] = ()
    evolutions: tuple[Evolution, ...] = ()
    sessions: tuple[SynthSession, ...] = ()
    dropped: int = 0
    rejections: tuple[Rejection, ...] = ()
    checked: dict[str, int] = Field(default={})
    violations: dict[str, int] = Field(default={})
    usage: dict[str, UnitUsage] = Field(default={})
