"""The estimate: counts that real people have, sizes of real prompts, and arithmetic that can be checked by hand."""

import re
import sys
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from handmade import edit
from offline_people import people as offline_people
from synth_runs import settings

from synth.estimate import MeasuredSample, Size, estimate, expected_units, measure
from synth.llm.writer import system_prompt
from synth.tasks import REVIEWS, Unit

SAMPLE = MeasuredSample({unit: Size(1_000, 200) for unit in Unit}, person_bytes=10_000, answer_bytes=800)


@pytest.mark.parametrize(
    ("shape", "sessions", "people", "tolerance"),
    [("demanding_tiny", 8, 15, 0.3), ("demanding", 25, 3, 0.3), ("paper", 25, 2, 0.3)],
)
def test_the_expected_units_are_those_of_people(tmp_path, shape, sessions, people, tolerance):
    config = settings(tmp_path, shape)
    written = offline_people(people, sessions, seed=11, sizes=shape)
    counts = Counter({unit: sum(person.usage[unit].units for person in written if unit in person.usage) for unit in Unit})
    counts = +counts
    expected = expected_units(config.shape, sessions, config.llm)
    assert set(expected) == {Unit(unit) for unit in counts}
    demanding = {Unit.FILLING, Unit.REVISION} if shape != "paper" else set()
    for unit, count in expected.items():
        drawn = unit in {Unit.INITIAL, Unit.EVOLUTION, *demanding}  # these differ from person to person
        assert counts[unit] / people == pytest.approx(count, rel=tolerance if drawn else 0), unit


def test_prompts_are_measured_as_they_would_be_sent(tmp_path):
    config = settings(tmp_path, "paper", sessions=3, estimate__characters_per_token=1.0, estimate__sample_people=1)
    sample = measure(config)
    assert set(sample.units) >= set(expected_units(config.shape, 3)) - {Unit.LINKS, Unit.EVOLUTION}
    for unit, size in sample.units.items():
        assert size.prompt > len(system_prompt(unit)) and size.answer > 0
    coarse = measure(edit(config, {"estimate.characters_per_token": 4.0}))
    assert coarse.units[Unit.DIALOGUE].prompt == pytest.approx(sample.units[Unit.DIALOGUE].prompt / 4)
    assert coarse.person_bytes == sample.person_bytes > 2 * sample.answer_bytes


def test_demanding_people_are_measured_without_what_templates_cannot_tell(tmp_path):
    config = settings(tmp_path, "demanding", sessions=12, estimate__sample_people=1)
    sample = measure(config)
    assert set(sample.units) == set(Unit)
    found = estimate(edit(config, {"writer": "llm"}), sample)
    assert set(found.units) == set(Unit) - set(REVIEWS)
    # Chains, families and events of the shape are in the prompts, however short the facts are.
    assert 1_500 < sample.units[Unit.REVISION].prompt < sample.units[Unit.FILLING].prompt < 6_000
    assert expected_units(config.shape, 12) == {}, "lives from scenes have no units"


ASSUMED = {
    "writer": "llm", "people": 10, "llm__reasoning_effort": "high", "llm__slots": 1, "estimate__gpus": 1,
    "estimate__repair_rate": 0.0, "estimate__answer_scale": 1.0, "estimate__reasoning_tokens__high": 800,
    "estimate__decode_tokens_per_second": 100.0, "estimate__prefill_tokens_per_second": 1_000.0,
    "estimate__slot_tokens_per_second": 10.0,
}  # fmt: skip


def test_the_arithmetic(tmp_path):
    config = settings(tmp_path, **ASSUMED)
    calls = sum(expected_units(config.shape, config.sessions).values()) * 10
    found = estimate(config, SAMPLE)
    assert found.total.calls == pytest.approx(calls)
    assert found.total.prompt_tokens == pytest.approx(calls * 1_000)
    assert found.total.completion_tokens == pytest.approx(calls * 1_000)
    assert found.gpu_hours == pytest.approx(calls * (1_000 / 1_000 + 1_000 / 100) / 3600)
    assert (found.bound, found.wall_seconds) == ("slots", pytest.approx(calls * 1_000 / 10))
    assert found.disk_bytes == pytest.approx(10 * 10_000 + calls * 920)


def test_what_the_time_is_bound_by(tmp_path):
    assert estimate(settings(tmp_path, **ASSUMED | {"llm__slots": 1_000}), SAMPLE).bound == "GPUs"
    assert estimate(settings(tmp_path, **ASSUMED | {"people": 1}), SAMPLE).bound == "slots"


def test_the_command_says_it_all_and_writes_nothing(tmp_path, command):
    done = command("estimate", "writer=llm", "sessions=3", "estimate.sample_people=1", f"out={tmp_path / 'data'}")
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert text.startswith("300 people x 3 sessions, written by openai/gpt-oss-120b; nothing has been asked yet\n")
    assert re.search(r"^dialogue +1,125 +[\d,]+ +[\d,]+$", text, re.MULTILINE)
    assert re.search(r"^GPU hours: about [\d,]+ \(the paper reports about 500 ", text, re.MULTILINE)
    assert re.search(r"^time: about .* with 64 slots on 1 GPU, bound by ", text, re.MULTILINE)
    assert "25% of the answers are sent back (repair_rate)" in text
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_is_not_there_is_told(tmp_path, command, monkeypatch):
    # The real package takes six seconds to say so.
    loading = SimpleNamespace(from_pretrained=Mock(side_effect=OSError("no such tokenizer\nat all")))
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=loading))
    done = command("estimate", f"estimate.tokenizer={tmp_path}")
    assert done.returncode == 2
    sentence = f"config key 'estimate.tokenizer': '{tmp_path}' cannot be loaded: no such tokenizer"
    assert done.stderr == f"error: {sentence}\n"


def test_reviews_are_estimated_only_where_they_are_asked_for(tmp_path):
    plain = settings(tmp_path, writer="llm", estimate__repair_rate=0.0, estimate__sample_people=1)
    both = edit(plain, {"llm.extraction": True, "llm.contradictions": True})
    sample = measure(both)
    without, found = estimate(plain, sample), estimate(both, sample)
    assert found.units.keys() - without.units.keys() == set(REVIEWS)
    for unit in REVIEWS:
        assert found.units[unit].calls == found.units[Unit.DIALOGUE].calls
        # A reader gets the dialogue, and not the events and facts that it was written from.
        assert 0 < found.units[unit].prompt_tokens < found.units[Unit.DIALOGUE].prompt_tokens
    assert found.gpu_hours > without.gpu_hours
