"""The audit finds what was planted, and leaves the rest alone."""

import time
from datetime import datetime

import numpy as np
import pytest
from offline_people import people

from deltamem.audit import MOST_PAIRS, Audit, Finding, FindingKind, audit
from deltamem.embedding import Embedder, Vectors
from deltamem.memory import Memory, MemoryState
from deltamem.text import words
from synth.assembly import labelled_sessions

TIME = datetime(2026, 4, 5, 20, 1)


def state_of(*texts: str) -> MemoryState:
    return MemoryState(Memory(f"m{number}", text, TIME) for number, text in enumerate(texts, start=1))


def bags(texts: list[str]) -> Vectors:
    """Unit vectors of word counts: texts that share words are similar."""
    listed = [[word.casefold() for word in words(text)] for text in texts]
    column = {word: index for index, word in enumerate(sorted({word for found in listed for word in found}))}
    vectors = np.zeros((len(texts), max(1, len(column))), dtype=np.float32)
    for row, found in zip(vectors, listed, strict=True):
        for word in found:
            row[column[word]] += 1
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def run(*texts: str, sources: dict[str, str | None] | None = None, **options: float) -> Audit:
    return audit(state_of(*texts), bags(list(texts)), sources or {}, person_name="Ana", **options)


def found(result: Audit) -> list[tuple[FindingKind, tuple[str, ...]]]:
    return [(finding.kind, finding.memory_ids) for finding in result.findings]


def test_exact_duplicates_are_one_finding_a_group() -> None:
    result = run("Ana runs.", "Ana bakes bread.", "ana  RUNS", "Ana runs!")
    assert result.findings == (Finding(FindingKind.EXACT_DUPLICATE, ("m1", "m3", "m4"), None, '3 memories say "Ana runs."'),)


def test_near_duplicates_agree_in_numbers_names_and_negations() -> None:
    first = "Ana plays the old violin in the big orchestra of Rome."
    others = [f"Ana plays the violin in the big orchestra of {city}." for city in ("Rome", "Oslo")]
    pairs = found(run(first, *others))
    assert (FindingKind.NEAR_DUPLICATE, ("m1", "m2")) in pairs and (FindingKind.NEAR_DUPLICATE, ("m1", "m3")) not in pairs
    peanuts = ("Ana is not allergic to peanuts at all.", "Ana is allergic to peanuts at all.")
    assert found(run(*peanuts, near=0.8, related=1.1)) == []


@pytest.mark.parametrize(
    ("first", "second", "detail"),
    [
        ("Ana lives in Boston.", "Ana lives in Denver.", 'one says "boston", the other "denver"'),
        ("Ana pays 1,200 euros of rent.", "Ana pays 1,350 euros of rent.", 'one says "1200", the other "1350"'),
        ("Ana flies on May 3, 2026 at noon.", "Ana flies on May 5, 2026 at noon.", '"2026-05-03", the other "2026-05-05"'),
        ("Ana has two cats.", "Ana has three cats.", 'one says "2", the other "3"'),
        ("Ana likes New York most.", "Ana likes San Francisco most.", '"new york", the other "san francisco"'),
        ("Ana is allergic to peanuts.", "Ana is not allergic to peanuts.", "one denies what the other says"),
    ],
)
def test_contradictions_differ_in_one_thing(first: str, second: str, detail: str) -> None:
    (finding,) = run(first, second, related=0.5, near=1.1).findings
    assert (finding.kind, finding.memory_ids) == (FindingKind.CONTRADICTION, ("m1", "m2"))
    assert detail in finding.detail and finding.similarity is not None and 0.5 <= finding.similarity < 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Ana has a friend in Oslo called Petra.", "Ana has a friend in Rome called Luca."),
        ("Ana travels in May to Oslo.", "Ana travels in June to Rome."),
        ("Ana knows Tom.", "Ana knows Tom Miller."),
        ("Ana bakes in Rome.", "Ana sings in Oslo."),
        ("Ana has a cat.", "Ana has a cat named Tom."),
    ],
)
def test_two_facts_are_no_contradiction(first: str, second: str) -> None:
    assert run(first, second, related=0.3, near=1.1).findings == ()


@pytest.mark.parametrize(
    ("text", "source", "missing"),
    [
        ("Ana lives in Denver.", "I live in Boston.", "denver"),
        ("Ana has three dogs.", "I have two dogs.", "3"),
        ("Ana is a dentist.", "I work as a nurse.", "dentist"),
        ("Ana plays the cello.", "I play the flute.", "cello"),
        ("Ana pays 1,200 euros to Tom Miller.", "I pay 1,300 euros to Tom.", "1200, miller"),
        ("Ana moved on 2025/01/01.", "I moved.", "2025-01-01"),
        ("Ana lives in Denver.", "", "denver"),
    ],
)
def test_unsupported_memory_names_the_missing_words(text: str, source: str, missing: str) -> None:
    (finding,) = run(text, sources={"m1": source}).findings
    assert finding == Finding(FindingKind.UNSUPPORTED, ("m1",), None, f"its session does not say: {missing}")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Ana lives in Denver.", "We moved to DENVER!"),
        ("Ana moved into her flat on 2026/04/04.", "I moved into the flat yesterday."),
        ("Ana moved into her flat on April 5, 2026.", "I moved into the flat."),
        ("Ana turned 34 on Sunday.", "I turned thirty... 34 that is!"),
        ("Ana pays 1,200 euros of rent.", "My rent is 1200 euros."),
        ("Ana has three dogs.", "Our 3 dogs bark."),
        ("Ana studies journalism.", "I want to be a journalist, I study that."),
        ("Ana enjoys hiking in the mountains.", "I love to hike up mountains."),
        ("安娜住在北京。", "我搬到了北京"),
    ],
)
def test_supported_memory_is_left_alone(text: str, source: str) -> None:
    assert run(text, sources={"m1": source}).findings == ()


def test_memories_without_source_are_counted_not_judged() -> None:
    result = run("Ana lives in Denver.", "Ana bakes bread.", "Ana runs.", sources={"m1": None, "m2": "I bake bread."})
    assert result == Audit((), 3, 2)
    assert run() == Audit((), 0, 0)
    with pytest.raises(ValueError, match="1 vectors for 2 memories"):
        audit(state_of("a", "b"), bags(["a"]), {})


def unit_rows(count: int, length: int) -> Vectors:
    vectors = np.random.default_rng(0).normal(size=(count, length)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_blocks_find_what_one_matrix_finds() -> None:
    texts, vectors = [f"Ana met guest {number} of the old hotel." for number in range(600)], unit_rows(600, 8)
    result = audit(state_of(*texts), vectors, {}, related=0.9, near=1.1, person_name="Ana")
    rows, columns = np.nonzero(np.triu(vectors @ vectors.T >= 0.9, 1))
    expected = {(f"m{row + 1}", f"m{column + 1}") for row, column in zip(rows, columns, strict=True)}
    assert len(expected) > 50 and {finding.memory_ids for finding in result.findings} == expected


def test_many_memories_take_seconds() -> None:
    vectors = unit_rows(1_500, 384)
    state = state_of(*(f"Ana met guest number {number} in Town{number % 97}." for number in range(1_500)))
    dialogue = "I met someone. " * 200
    begin = time.thread_time()
    result = audit(state, vectors, dict.fromkeys(state, dialogue), person_name="Ana")
    assert len(result.findings) == 1_500 and time.thread_time() - begin < 5


@pytest.mark.slow
def test_planted_faults_are_found_with_a_real_embedder(real_embedder: Embedder) -> None:
    said = {
        "Ana lives in Boston.": "I live in Boston now.",
        "Ana lives in Denver.": "We moved to Denver last week.",
        "Ana's sister Clara is 34 years old.": "My sister Clara is 34.",
        "Ana's sister Clara is 36 years old.": "Clara, my sister, is 36 now.",
        "Ana plays the violin in the Riverside orchestra.": "I play the violin in the Riverside orchestra.",
        "Ana plays violin in the orchestra Riverside.": "I play the violin in the Riverside orchestra.",
        "Ana drives a silver Volvo.": "I bought a Volvo, a silver one.",
        "Ana has a friend in Oslo called Petra.": "My friend Petra from Oslo is here.",
        "Ana has a friend in Rome called Luca.": "Luca is a friend of mine in Rome.",
        "Ana reads about glaciers.": "I read a book about volcanoes.",
        "Ana learns the oboe from Hegrix.": "Hegrix teaches me the oboe.",
        "Ana prefers tea over coffee.": "I'd rather drink tea than coffee.",
    }
    state = state_of(*said)
    vectors = real_embedder.documents(list(said))
    result = audit(state, vectors, dict(zip(state, said.values(), strict=True)), person_name="Ana")
    assert found(result) == [
        (FindingKind.NEAR_DUPLICATE, ("m5", "m6")),
        (FindingKind.CONTRADICTION, ("m1", "m2")),
        (FindingKind.CONTRADICTION, ("m3", "m4")),
        (FindingKind.UNSUPPORTED, ("m10",)),
    ]


@pytest.mark.slow
def test_synthetic_memories_fit_their_own_sessions_and_no_others(real_embedder: Embedder) -> None:
    memories = right = wrong = 0
    for person in people(3, 8, sizes="paper"):
        labelled = list(labelled_sessions(person))
        sources: dict[str, str | None] = {}
        for item in labelled:
            dialogue = "\n".join(turn.content for turn in item.session.dialogue)
            sources |= {key: dialogue for key in item.next_state if item.prior_state.get(key) != item.next_state[key]}
        state = labelled[-1].next_state
        vectors = real_embedder.documents([memory.text for memory in state.memories])
        name = labelled[0].session.person_name
        memories += len(sources)
        right += len(audit(state, vectors, sources, person_name=name).findings)
        said, half = list(sources.values()), len(sources) // 2
        strangers = dict(zip(sources, said[half:] + said[:half], strict=True))
        findings = audit(state, vectors, strangers, person_name=name).findings
        wrong += sum(finding.kind is FindingKind.UNSUPPORTED for finding in findings)
    assert memories > 150
    assert right <= 0.05 * memories
    assert wrong >= 0.85 * memories


def test_of_pairs_without_number_the_first_are_listed() -> None:
    texts = [f"Ana measured {number} degrees." for number in range(100)]
    result = run(*texts, related=0.5, near=1.1)
    assert len(result.findings) == MOST_PAIRS and not result.complete
    assert run(*texts[:40], related=0.5, near=1.1).complete
