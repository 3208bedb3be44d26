"""The probe of a data set: figures of its texts, what is kept of it, and the command."""

from __future__ import annotations

import json
from datetime import datetime

from episode_texts import WordEmbedder
from offline_people import people
from output_cases import person, write

from deltamem.embedding import CachedEmbedder
from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import LabelledSession, Session, Turn
from synth.assembly import labelled_sessions
from synth.output import probe
from synth.output.probe import find, planned_turns, tables

TIME = datetime(2026, 4, 5, 20, 1)


def session(who: str, said: str, answer: str, prior: MemoryState, *operations: Operation, index: int = 0) -> LabelledSession:
    dialogue = (Turn("user", said), Turn("assistant", answer))
    split = "heldout" if who == "zoe" else "train"
    return LabelledSession(
        Session(who, who.title(), TIME, dialogue), index, split, prior, operations, apply(prior, operations, TIME)
    )


def some() -> tuple[list[LabelledSession], list[LabelledSession]]:
    bank = MemoryState([Memory("m1", "Ada lives in Oslo with a cat.", TIME)])
    moved = Operation(Event.UPDATE, "Ada lives in Bergen with a cat.", "m1", ("Bergen", "cat"))
    stays = Operation(Event.UPDATE, "Ada lives in Oslo with a dog, a cat.", "m1", ("Oslo", "Cat"))
    added = Operation(Event.ADD, "Zoe plays the cello.", None, ("cello",))
    return [
        session("ada", "I moved to the old town of Bergen.", 'So "Bergen", and “lovely weather”?', bank, moved),
        session("bea", "I travelled to the new harbour of Riga.", "I see.", bank, stays),
    ], [
        session("zoe", "Hi there.", "Hello.", MemoryState()),
        session("zoe", "Cello.", 'A "cello"!', MemoryState(), added, index=1),
    ]


def test_labels_and_texts_are_counted():
    found = find(*some())
    assert found["people"] == {"train": 2, "heldout": 1} and found["sessions"] == {"train": 2, "heldout": 2}
    labels, texts = found["labels"], found["texts"]
    assert (labels["operations"], labels["ADD"], labels["UPDATE"], labels["NONE"]) == (3, 0.3333, 0.6667, 0.0)
    assert (labels["idle_sessions"], labels["empty_banks"], labels["newcomers"]) == (0.25, 0.5, 0.3333)
    assert texts["update_keywords_in_old_text"] == 0.75 and texts["updates_with_all_keywords_in_old_text"] == 0.5
    assert (texts["quotes"], texts["quotes_of_keywords"], texts["keywords_quoted"]) == (3, 0.6667, 0.4)
    # Two sentences of six words or more, of two people, with the same skeleton.
    assert texts["shared_skeletons"] == 1.0 and texts["distinct_sentences"] == 1.0 and texts["distinct_3"] == 1.0
    assert found["policies"] == found["making"] == {}


def test_variety_is_measured_on_as_many_words_for_all(monkeypatch):
    monkeypatch.setattr(probe, "TOKENS", 6)
    bank = MemoryState()
    told = session("ada", "One two three four. One two three four. Nine ten eleven.", "Yes.", bank)
    texts = find([told], [])["texts"]
    assert texts["tokens"] == 6 and texts["distinct_3"] == 1.0  # of "one two three four one two"
    assert texts["distinct_sentences"] == 0.5


def test_policies_come_with_an_embedder_and_their_options():
    found = find(*some(), embedder=CachedEmbedder(WordEmbedder()))
    assert found["making"]["embedder"] == "words" and found["making"]["options"]["tau"] == 0.75
    [_, policies] = tables(found)
    names, transitions, *_, aims = (list(column.cells) for column in policies.columns)
    rows = {name.partition(":")[0]: row for name, *row in zip(names, transitions, aims, strict=True)}
    assert rows["gold"][0] == "1.000 [1.000, 1.000]"
    assert rows["do nothing"][0].startswith("0.500") and rows["copy all"][1] == "at most .45"
    assert found["cues"]["target_nearest"] is None  # nobody held out has an UPDATE
    assert json.loads(json.dumps(found)) == found


def test_the_plan_names_the_turns():
    for someone in people(3, 2):
        for labelled in labelled_sessions(someone):
            assert len(planned_turns(someone)[labelled.key]) == len(labelled.operations)
    assert planned_turns(person(0))["p000000/1"] == [1, 2]


def test_the_command_probes_everybody(tmp_path, command, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(probe, "load_embedder", lambda name: CachedEmbedder(WordEmbedder()))
    done = command("probe", str(tmp_path), "--json", "--tau", "0.5", "--stale-weight", "2")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "probe.json").read_text("utf-8"))
    assert found["making"]["options"]["stale_weight"] == 2.0 and found["policies"]["gold"]["parts"]
    shown = command("probe", str(tmp_path), "--embedder", "none")
    assert shown.returncode == 0 and "What shallow policies earn" not in shown.stdout
    assert "AUC of the words" in shown.stdout and "words that speak most for UPDATE: " in shown.stdout
    assert json.loads((tmp_path / "probe.json").read_text("utf-8"))["policies"] == {}


def test_one_split_alone_cannot_be_probed(tmp_path, command):
    write(tmp_path, [person(0)])
    done = command("probe", str(tmp_path))
    assert done.returncode == 2 and "there is nobody held out" in done.stderr
    assert command("probe", str(tmp_path / "nowhere")).returncode == 2
    assert command("probe", str(tmp_path), "--tau", "7").returncode == 2
