"""Every attack against the harness itself, through the real runner."""

from __future__ import annotations

import pytest

from eval.attacks import ATTACKS, Attack, Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("attacks"))


def test_honest_control(lab: Lab) -> None:
    """What attacks want to beat: nothing failed, and a naive harness prints the same."""
    honest = lab.honest
    assert honest.naive_score == pytest.approx(honest.score) == pytest.approx(40.6, abs=0.05)
    assert (honest.withheld, honest.summary.failures["count"]) == (False, 0)
    assert honest.naive_recall == pytest.approx(honest.recall) == pytest.approx(51.0, abs=0.05)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(attack: Attack, lab: Lab) -> None:
    outcome = attack.run(lab)
    assert outcome.held, f"it {attack.does}: printed {outcome.ours}, should print {attack.must}"


def test_catalogue() -> None:
    """The twelve of the issue, and no two of the same name."""
    names = [attack.name for attack in ATTACKS]
    wanted = (
        "silent answerer, yes-judge, prose judge, echo system, empty memory, gold leaker, provenance hoarder, context hog, "
        "model swap on resume, poisoned cache, mixed data, tiny sample under a big name"
    )
    assert set(wanted.split(", ")) <= set(names)
    assert len(set(names)) == len(names)
