"""``python -m synth probe``: what can be read off the surface of a data set, and what shallow policies earn on it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltamem.embedding import CachedEmbedder, load_embedder
from deltamem.errors import DeltaMemError
from deltamem.intervals import interval_text
from deltamem.memory import Event
from deltamem.runs import atomic_writer
from deltamem.sessions import LabelledSession, read_sessions
from deltamem.text import STOP_WORDS, normalised, words
from rewards.cues import measure_cues, ranked_by_vectors, target_accuracy, user_sentences
from rewards.fidelity import folded, folded_keyword, found_in
from rewards.probes import run_probes
from rewards.reward import DEFAULT_OPTIONS, RewardOptions
from synth.output.files import PEOPLE_FILE, PROBE_FILE, SESSIONS_FILE, read_people
from synth.records import Person

Findings = dict[str, Any]

TOKENS = 28_000
"""Of users, on which variety is measured: it falls with the length of a text, so that only equal lengths compare."""
_LONG = 6
"""Words of a sentence whose skeleton counts; shorter ones ("I do not know yet.") recur in any language."""
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”")
_CARD_SESSIONS = {"train": 500, "heldout": 250}


class CardSample:
    """The first sessions of each split, of whole people, with the turns that their plans name: enough for a data card."""

    def __init__(self) -> None:
        self._sessions: dict[str, list[LabelledSession]] = {split: [] for split in _CARD_SESSIONS}
        self._known: dict[str, list[int | None]] = {}

    def add(self, person: Person, sessions: Sequence[LabelledSession]) -> None:
        """Keep a person's sessions, unless there are enough."""
        split = person.persona.split
        if len(self._sessions[split]) < _CARD_SESSIONS[split]:
            self._sessions[split] += sessions
            self._known |= planned_turns(person)

    def findings(self) -> Findings:
        """What is found without an embedding model (see `find`)."""
        return find(self._sessions["train"], self._sessions["heldout"], known=self._known)


def planned_turns(person: Person) -> dict[str, list[int | None]]:
    """For each session of a person the turn of the user, from 0, that says each operation, as the writer's plan has it."""
    found = {}
    for session in person.sessions:
        if session.dialogue is not None:
            turns = {entry.fact_id: entry.turn - 1 for entry in session.dialogue.plan}
            found[f"{person.persona.person_id}/{session.index}"] = [turns.get(fact.id) for fact in session.facts]
    return found


def find(
    train: Sequence[LabelledSession],
    heldout: Sequence[LabelledSession],
    *,
    known: Mapping[str, Sequence[int | None]] | None = None,
    embedder: CachedEmbedder | None = None,
    options: RewardOptions = DEFAULT_OPTIONS,
    seed: int = 0,
) -> Findings:
    """Measure labels, texts and cues and, with an embedder, what shallow policies earn.

    Args:
        train: Sessions of people to train on.
        heldout: Sessions of other people; cues and policies are judged on them.
        known: The turns that say the operations, where a plan knows them (`planned_turns`).
        embedder: For the policies; None leaves them out.
        options: Of their reward.
        seed: Of the bootstrap.

    Returns:
        Plain JSON: ``people`` and ``sessions`` by split; ``labels``, ``texts``, ``cues`` (figures by name, None where there
        is nothing to count); ``policies`` (see `rewards.probes.ProbeScore`) and ``making`` (embedder, options, seed), empty
        without an embedder.
    """
    sessions = [*train, *heldout]
    cues = measure_cues(train, heldout, known=known)._asdict() if train and heldout else {}
    policies = {} if embedder is None else run_probes(train, heldout, embedder, options=options, seed=seed)
    if embedder is not None:
        cues["target_nearest"] = target_accuracy(heldout, ranked_by_vectors(embedder))
    found: Findings = _rounded(
        {
            "people": {"train": _people(train), "heldout": _people(heldout)},
            "sessions": {"train": len(train), "heldout": len(heldout)},
            "labels": _labels(sessions),
            "texts": _texts(sessions),
            "cues": cues,
            "policies": {name: asdict(found) for name, found in policies.items()},
            "making": {} if embedder is None else {"embedder": embedder.name, "seed": seed, "options": asdict(options)},
        }
    )
    return found


def _people(sessions: Iterable[LabelledSession]) -> int:
    return len({labelled.session.person_id for labelled in sessions})


def _labels(sessions: Sequence[LabelledSession]) -> Findings:
    operations = [operation.event for labelled in sessions for operation in labelled.operations]
    return {
        "operations": len(operations),
        **{event.value: _share(kind is event for kind in operations) for event in Event},
        "sessions_with_update": _share(any(op.event is Event.UPDATE for op in labelled.operations) for labelled in sessions),
        "idle_sessions": _share(not labelled.operations for labelled in sessions),
        "empty_banks": _share(not labelled.prior_state for labelled in sessions),
        "newcomers": _share(not labelled.prior_state for labelled in sessions if labelled.session_index == 0),
    }


def _texts(sessions: Sequence[LabelledSession]) -> Findings:
    said = [(labelled.session.person_id, sentence) for labelled in sessions for sentence in user_sentences(labelled)]
    tokens: list[str] = []
    sampled: list[str] = []
    for _, sentence in said:
        if len(tokens) < TOKENS:
            sampled.append(sentence)
            tokens += [word.casefold() for word in words(sentence)]
    tokens = tokens[:TOKENS]
    threes = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    quoted = [_quotes(labelled) for labelled in sessions]
    quotes = [is_keyword for of_session, _ in quoted for is_keyword in of_session]
    updates = (
        (operation.keywords, folded(labelled.prior_state[operation.target_memory_id].text))
        for labelled in sessions
        for operation in labelled.operations
        if operation.event is Event.UPDATE and operation.keywords and operation.target_memory_id is not None
    )
    old = [[found_in(folded_keyword(keyword), before) for keyword in keywords] for keywords, before in updates]
    return {
        "tokens": len(tokens),
        "distinct_3": len(set(threes)) / len(threes) if threes else None,
        "distinct_sentences": len({normalised(sentence) for sentence in sampled}) / len(sampled) if sampled else None,
        "shared_skeletons": _shared([(who, skeleton(text)) for who, text in said if len(text.split()) >= _LONG]),
        "update_keywords_in_old_text": _share(found for keywords in old for found in keywords),
        "updates_with_all_keywords_in_old_text": _share(all(keywords) for keywords in old),
        "quotes": len(quotes),
        "quotes_of_keywords": _share(quotes),
        "keywords_quoted": _share(is_quoted for _, of_session in quoted for is_quoted in of_session),
    }


def skeleton(text: str) -> str:
    """A sentence without what it is about: its function words in order, each run of other words a gap."""
    kept: list[str] = []
    for word in map(str.casefold, words(text)):
        if word in STOP_WORDS:
            kept.append(word)
        elif kept[-1:] != ["_"]:
            kept.append("_")
    return " ".join(kept)


def _shared(said: Sequence[tuple[str, str]]) -> float | None:
    """Share of texts that somebody else says too; each comes with who says it."""
    people = defaultdict(set)
    for who, text in said:
        people[text].add(who)
    return _share(len(people[text]) > 1 for _, text in said)


def _quotes(labelled: LabelledSession) -> tuple[list[bool], list[bool]]:
    """Of each quotation of the assistant, whether it is a keyword; of each keyword, whether it is quoted."""
    spoken = " ".join(turn.content for turn in labelled.session.dialogue if turn.role == "assistant")
    quotes = [folded(straight or curly) for straight, curly in _QUOTED.findall(spoken)]
    keywords = [folded_keyword(keyword) for operation in labelled.operations for keyword in operation.keywords]
    known = frozenset[str]().union(*keywords)
    return [quote in known for quote in quotes], [not keyword.isdisjoint(quotes) for keyword in keywords]


def _share(values: Iterable[bool]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _rounded(value: Any) -> Any:
    """The same with numbers of four decimals: last bits differ between machines, and files shall not."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


class FigureRow(NamedTuple):
    """A figure as it is shown."""

    label: str
    value: str
    aim: str
    """What the shape `demanding` aims at; empty where it aims at nothing."""


_PARTS = ("transition", "retrieval", "reward")
_FIGURES = (
    ("labels", "ADD", "ADD, of operations", "%", ""),
    ("labels", "UPDATE", "UPDATE", "%", "22 to 28%"),
    ("labels", "NONE", "NONE", "%", "10%"),
    ("labels", "sessions_with_update", "sessions with an UPDATE", "%", ""),
    ("labels", "idle_sessions", "sessions without any operation", "%", "10%"),
    ("labels", "empty_banks", "sessions that begin with an empty bank", "%", ""),
    ("labels", "newcomers", "people who begin with an empty bank", "%", "20%"),
    ("texts", "distinct_3", "distinct word triples of users (distinct-3, on at most 28,000 words)", "n", "at least .60"),
    ("texts", "distinct_sentences", "distinct sentences of users, on the same words", "%", ""),
    ("texts", "shared_skeletons", "longer sentences whose skeleton another person uses too", "%", "at most 50%"),
    ("texts", "update_keywords_in_old_text", "keywords of an UPDATE that its old text holds", "%", ""),
    ("texts", "updates_with_all_keywords_in_old_text", "UPDATEs whose old text holds all their keywords", "%", "0%"),
    ("texts", "quotes_of_keywords", "quotations of the assistant that are keywords", "%", "about 50%"),
    ("texts", "keywords_quoted", "keywords that the assistant quotes", "%", ""),
    ("cues", "auc.ADD", "AUC of the words of a turn: holds an ADD", "n", "at most .90"),
    ("cues", "auc.UPDATE", "holds an UPDATE", "n", "at most .75"),
    ("cues", "auc.NONE", "holds a NONE", "n", "at most .75"),
    ("cues", "counts_exact", "sessions whose three numbers of such turns they give", "%", ""),
    ("cues", "turn_holds", "turns of users that hold an operation", "%", ""),
    ("cues", "first_turn_holds", "first turns that do", "%", ""),
    ("cues", "last_turn_holds", "last turns that do", "%", ""),
    ("cues", "order", "rank correlation of operations with the turns that say them", "n", "about 0"),
    ("cues", "length", "correlation of the numbers of turns and operations", "n", ""),
    ("cues", "unsaid", "operations of whose keywords no turn says any", "%", ""),
    ("cues", "target_words", "UPDATEs whose memory shares most words with the new text (TF-IDF)", "%", ""),
    ("cues", "target_words_of_turn", "UPDATEs whose memory shares most words with the turn", "%", "at most 65%"),
    ("cues", "target_nearest", "UPDATEs whose memory is nearest to the new text (embeddings)", "%", ""),
)
_AIMS = {"copy_all": "at most .45", "copy_new": "at most .45", "gold_as_add": "at most .90"}


def figure_rows(findings: Findings) -> list[FigureRow]:
    """The figures that could be measured, in order."""
    rows = []
    for section, path, label, kind, aim in _FIGURES:
        value: Any = findings[section]
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            rows.append(FigureRow(label, f"{value:.1%}" if kind == "%" else f"{value:.3f}", aim))
    return rows


def tables(findings: Findings) -> list[Table]:
    """The findings for the terminal."""
    judged = f"{findings['sessions']['heldout']:,} sessions of {findings['people']['heldout']:,} people held out"
    telling = [f"{event}: {', '.join(words)}" for event, words in findings["cues"].get("telling", {}).items() if words]
    told = "".join(f"\nwords that speak most for {line}" for line in telling)
    figures = Table("figure", title="What the surface gives away", title_justify="left", caption_justify="left")
    figures.caption = Text(f"cues: {judged}{told}")
    figures.add_column("found", justify="right")
    figures.add_column("aim")
    for row in figure_rows(findings):
        figures.add_row(*row)
    found = [figures]
    if findings["policies"]:
        policies = Table("policy", title="What shallow policies earn", title_justify="left")
        policies.caption = (
            f"{judged}; 95% intervals by person; {findings['making']['embedder']}. Format is 1 for all; without a search, "
            "retrieval is earned only where no memory is due."
        )
        for heading in _PARTS:
            policies.add_column(heading, justify="right", no_wrap=True)
        policies.add_column("aim", no_wrap=True)
        for name, policy in findings["policies"].items():
            transition, retrieval, reward = (interval_text(policy["parts"][part]) for part in _PARTS)
            cells = transition, retrieval.partition(" ")[0], reward.partition(" ")[0], _AIMS.get(name, "")
            policies.add_row(f"{name.replace('_', ' ')}: {policy['description']}", *cells)
        found.append(policies)
    return found


def write_findings(out: Path, findings: Findings) -> None:
    """Write ``probe.json``."""
    with atomic_writer(out / PROBE_FILE) as file:
        file.write(json.dumps(findings, ensure_ascii=False, indent=2) + "\n")


def probe(out: Path, *, embedder: str | None, options: RewardOptions, as_json: bool, console: Console) -> Findings:
    """Probe a finished data set, and show what is found.

    Writes ``probe.json``. It needs only ``sessions.jsonl``; with ``people.jsonl`` the turns are those of the plan. Without
    an embedder there are no policies. Raises `DeltaMemError` if there are no sessions of both splits, or the model is
    missing.
    """
    sessions = list(read_sessions(out / SESSIONS_FILE))
    train = [labelled for labelled in sessions if labelled.split == "train"]
    heldout = [labelled for labelled in sessions if labelled.split == "heldout"]
    if not train or not heldout:
        missing = "held out" if train else "to train on"
        raise DeltaMemError(f"{out}: probes need people to train on and others to judge, but there is nobody {missing}")
    people = read_people(out / PEOPLE_FILE) if (out / PEOPLE_FILE).exists() else ()
    known = {key: turns for person in people for key, turns in planned_turns(person).items()}
    model = None if embedder is None else load_embedder(embedder)
    findings = find(train, heldout, known=known, embedder=model, options=options)
    write_findings(out, findings)
    if as_json:
        console.print_json(data=findings)
    else:
        for table in tables(findings):
            console.print(table)
    return findings
