"""Templates are data: every YAML file fits its schema, what does not is refused, and all of them are packaged."""

from __future__ import annotations

import random
from datetime import date
from itertools import product
from pathlib import Path

import pytest
import yaml

from deltamem.errors import DeltaMemError
from synth import cards
from synth.names import Names, names
from synth.offline import speaker, templates, topics
from synth.offline.grammar import parse
from synth.personas import Parts, parts
from synth.planning import UPDATES, draft_fixed
from synth.pools import Pools, check_slots, load, pools, slots_in
from synth.records import Career, Domain, Family, Health, LifeGoal, Relationship, Track

PACKAGE = Path(__file__).parents[2] / "synth"
EVERYDAY = sorted((PACKAGE / "everyday").rglob("*.yaml"))
FILES = sorted(set(PACKAGE.rglob("*.yaml")).difference(EVERYDAY))
SCHEMAS = {
    "cards.yaml": (cards.Cards, cards.load_cards),
    "names.yaml": (Names, names),
    "personas.yaml": (Parts, parts),
    "pools.yaml": (Pools, pools),
    "words.yaml": (templates.WordLists, templates.words),
    "facts.yaml": (templates.Facts, templates.facts),
    "profile.yaml": (templates.ProfileTexts, templates.profile_texts),
    "events.yaml": (templates.EventTexts, templates.event_texts),
    "dialogue.yaml": (templates.DialogueTexts, templates.dialogue_texts),
    "topics.yaml": (topics.Topics, topics.topic_file),
    "talk.yaml": (speaker.Talk, speaker.talk),
}


def keys(node: yaml.Node) -> None:
    """Refuse mappings with a key that comes twice, of which YAML would keep the last."""
    if isinstance(node, yaml.MappingNode):
        found = [key.value for key, _ in node.value]
        assert len(set(found)) == len(found), found
    for part in getattr(node, "value", ()):
        for inner in part if isinstance(part, tuple) else (part,):
            if isinstance(inner, yaml.Node):
                keys(inner)


def test_every_file_has_a_schema_fits_it_and_has_no_key_twice() -> None:
    assert {path.name for path in FILES} == SCHEMAS.keys()
    for path in FILES:
        _, cached = SCHEMAS[path.name]
        assert cached()
    for path in (*FILES, *EVERYDAY):  # the schemas of scenes have tests of their own
        keys(yaml.compose(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


BROKEN = [
    ("cards.yaml", "topics:", "extras: [x]\ntopics:", r"cards.yaml: (?s:.*)extras"),
    ("names.yaml", "female: [\n      Emily,", "female: [\n      Grace,", "more than once: .*Grace"),
    ("personas.yaml", "{A} {occupation} in {place}", "{A} {job} in {place}", r"unknown slot \['job'\]"),
    ("pools.yaml", "youngest: [18, ", "youngest: [", "one age for each degree"),
    ("pools.yaml", "title: physician, level: 4", "title: physician, level: 5", "a level that no degree has"),
    ("words.yaml", "[two, three", "[two, two", "more than once: .*two"),
    ("words.yaml", '"35", ', "35, ", "valid string"),
    ("facts.yaml", "      partial_deletion:", "      deletion:", "partial_deletion"),
    ("events.yaml", "  finance:\n", "  money:\n", "finance"),
    ("topics.yaml", "[nurse, teacher", "[nurse, nurse", "more than once: .*nurse"),
    ("talk.yaml", "rules:\n", 'rules:\n  x: ["a [b"]\n', "brackets that do not match"),
    ("talk.yaml", "rules:\n", 'rules:\n  x: ["a {b"]\n', "not a sentence"),
    ("talk.yaml", "{i am: ", "{I am: ", "given in small letters"),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), BROKEN, ids=lambda value: str(value)[:20])
def test_what_contradicts_itself_is_refused(name: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    (path,) = (path for path in FILES if path.name == name)
    text = path.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DeltaMemError, match=message):
        load(tmp_path / name, SCHEMAS[name][0])


def test_the_facts_of_the_paper_shape_say_their_keywords_and_change_as_their_track_does():
    facts = templates.facts()
    assert len(facts.named) == len(facts.kinds)
    for kind in facts.kinds:
        assert set(kind.changes) == (set(UPDATES) if kind.track else set()) and bool(kind.before) == bool(kind.track)
        check_slots(kind.before, kind.slots)
        for form in (kind, *kind.changes.values()):
            assert form.pattern  # each slot has words
            check_slots(form.said, form.slots)
            for keyword in form.keywords:
                assert all(keyword.casefold() in text.casefold() for text in (form.memory, *form.said)), (kind.name, keyword)
        for form in kind.changes.values():
            assert set(form.keywords) & set(kind.keywords), kind.name
            assert any(keyword.casefold() not in kind.memory.casefold() for keyword in form.keywords), kind.name


def test_profiles_name_fields_and_occasions_tell_their_domain():
    texts, draft = templates.profile_texts(), draft_fixed(random.Random(1), "Ana Ruiz", "female", date(2026, 1, 1))
    parts = {"family": Family, "life_goal": LifeGoal, "career": Career, "health": Health, "relationship": Relationship}
    for name, part in {**parts, "fixed": type(draft)}.items():
        assert getattr(texts, name).keys() <= part.model_fields.keys()
    domains = templates.event_texts().domains
    assert set(domains) == set(Domain)
    assert len(templates.event_texts().domain_of) == sum(len(texts.occasions) for texts in domains.values())


def variants(node) -> list[str]:
    """All sentences that a parsed one stands for, its slots as they are."""
    if node.kind == "choice":
        return [text for part in node.parts for text in variants(part)]
    if node.kind == "sequence":
        return ["".join(texts) for texts in product(*map(variants, node.parts))]
    return [f"{{{node.text}}}" if node.kind == "slot" else node.text]


def test_a_topic_says_what_it_remembers_and_of_whom():
    file = topics.topic_file()
    assert {topic.track for topic in file.topics} == set(Track)
    for topic in file.topics:
        assert set(topic.slots) == {topics.PERSON, topic.changeable} and topic.memory.endswith(f"{{{topics.PERSON}}}")
        assert len(file.lists[topic.changeable]) == 8
        for text in (text for line in topic.say for text in variants(parse(line))):
            assert set(slots_in(text)) == set(topic.slots), text
    # The word before the name tells topics apart, as the same name may stand in several.
    assert len({topic.memory.split()[-2] for topic in file.topics}) == len(file.topics)
    assert all(not slots_in(text) for line in file.past for text in variants(parse(line)))


def test_what_is_said_besides_facts_has_words_for_its_slots():
    given = {topics.PERSON, "clause", "old", "x", "y", "word"}
    for rule, texts in speaker.talk().rules.items():
        slots = {slot for line in texts for text in variants(parse(line)) for slot in slots_in(text)}
        assert slots <= given | topics.topic_file().lists.keys(), rule
