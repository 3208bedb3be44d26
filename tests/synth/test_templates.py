"""Templates are data: every YAML file fits its schema, what does not is refused, and all of them are packaged."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

from deltamem.errors import DeltaMemError
from papers.stitch.writer import world
from synth import cards
from synth.names import Names, names
from synth.offline import scenes, speaker, templates, topics
from synth.personas import Parts, parts
from synth.pools import Pools, load, pools

PACKAGE = Path(__file__).parents[2] / "synth"
FILES = sorted(PACKAGE.rglob("*.yaml"))
SCHEMAS = {
    "came.yaml": (world.Sentences, world.sentences),
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
    "tiny_topics.yaml": (topics.Topics, partial(topics.topic_file, short=True)),
    "values.yaml": (topics.Values, topics.value_file),
    "talk.yaml": (speaker.Talk, speaker.talk_file),
    "tiny_talk.yaml": (speaker.TinyTalk, speaker.tiny_talk_file),
    "scenes.yaml": (scenes.Scenes, scenes.scene_file),
    "decoys.yaml": (scenes.Decoys, scenes.decoys),
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_has_a_schema_and_fits_it(path: Path) -> None:
    schema, cached = SCHEMAS[path.name]
    assert load(path, schema) == cached()
    keys(yaml.compose(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_unknown_key_is_refused_and_the_file_named(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8") + "\nextras: [x]\n")
    with pytest.raises(DeltaMemError, match=rf"{path.name}: (?s:.*)extras"):
        load(copy, SCHEMAS[path.name][0])


BROKEN = [
    ("names.yaml", "female: [\n      Emily,", "female: [\n      Grace,", "more than once: .*Grace"),
    ("personas.yaml", "{A} {occupation} in {place}", "{A} {job} in {place}", r"unknown slot \['job'\]"),
    ("pools.yaml", "youngest: [18, ", "youngest: [", "one age for each degree"),
    ("pools.yaml", "title: physician, level: 4", "title: physician, level: 5", "a level that no degree has"),
    ("words.yaml", "names: []", "names: [rest]", "the last group, and no other, has no names"),
    ("words.yaml", "[two, three", "[two, two", "more than once: .*two"),
    ("words.yaml", '"35", ', "35, ", "valid string"),
    ("facts.yaml", "mostly on the {number} o'clock", "mostly on the {hours} o'clock", "unknown slot .*hours"),
    ("facts.yaml", "memory: works as a {job}", "memory: works as a {jobs}", "no words for the slot 'jobs'"),
    ("facts.yaml", "I am a {job}, with", "I am one, with", "'{job}' is missing in .At {firm}"),
    ("facts.yaml", "So far I was a {job}", "So far I was a {area}", "unknown slot .*area"),
    ("facts.yaml", "      partial_deletion:", "      deletion:", "partial_deletion"),
    ("facts.yaml", "    before:\n      - I used", "    said_before:\n      - I used", "said_before|has `before`"),
    ("facts.yaml", "name: course", "name: sleep", "more than once: .*sleep"),
    ("facts.yaml", "name: likes", "name: fondness", "the writer needs the kinds .*likes"),
    (
        "facts.yaml",
        "fed the {animal} there.",
        "fed the {animal} of {place}.",
        "background, childhood: the writer gives no .*place",
    ),
    ("profile.yaml", "family:\n  parents:", "family:\n  uncles:", "family: no such field: .*uncles"),
    ("events.yaml", "  finance:\n", "  money:\n", "finance"),
    ("events.yaml", "What remained was the good", "The {place} was the good", "unknown slot .*place"),
    ("events.yaml", "shift handover, training day,", "shift handover, blood test,", "more than once: .*blood test"),
    ("dialogue.yaml", "the {occasion} at {place} means", "the {occasion} in {city} means", "unknown slot .*city"),
    (
        "topics.yaml",
        "works as a {post} at the {firm} in {spot}",
        "works at the {firm} in {spot}",
        "job: not all slots .* or others",
    ),
    ("topics.yaml", "I resigned from", "I left", "job: 'resigned' has to be said in 'I left"),
    ("topics.yaml", "{spot} wants a report on {day}s", "they want a report on {day}s", "it has to be clear by {spot}"),
    ("topics.yaml", '    ends:\n      - memory: "having *resigned*"', '    end:\n      - memory: "*resigned*"', "ends?"),
    ("topics.yaml", "calls me|lists me] as a {post}", "calls me] in {spot} a {post}", "job: .'spot'. must not be said here"),
    ("values.yaml", "[two, three", "[two, two", "more than once: .*two"),
    ("talk.yaml", "{clause}, [no longer", "{clauses}, [no longer", "rules.explicit_swap: unknown slot .*clauses"),
    ("talk.yaml", "[that has changed|", "[[that has changed|", "brackets that do not match"),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), BROKEN, ids=lambda value: str(value)[:20])
def test_what_contradicts_itself_is_refused(name: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    (path,) = (path for path in FILES if path.name == name)
    text = path.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DeltaMemError, match=message):
        load(tmp_path / name, SCHEMAS[name][0])
