"""Shallow policies beside an evaluated one: the rows, their order, and the sentence where nothing was learned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from episode_texts import WordEmbedder
from heldout_cases import ScriptedPolicy, graded, oracle, people, silent
from rich.console import Console
from rich.table import Table

from deltamem.episode import EpisodeConfig
from deltamem.sessions import to_json_line
from eval.heldout import evaluate
from eval.probes import cell_rows, cell_tables, not_better, probe_table, rows, score_probes
from rewards.reward import RewardOptions

CONFIG = EpisodeConfig(k=1)


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """A silent policy and one that answers perfectly, on people held out, and the probes beside them."""
    heldout, train = graded(people(3, 2)), people(2, 2, "train")
    file = tmp_path_factory.mktemp("data") / "sessions.jsonl"
    file.write_text("".join(to_json_line(item) + "\n" for item in (*heldout, *train)), encoding="utf-8")
    found = {}
    for name, script in (("silence", silent), ("perfection", oracle)):
        policy = ScriptedPolicy(heldout, script, CONFIG)
        found[name] = asyncio.run(evaluate(policy, heldout, WordEmbedder(), CONFIG, resamples=50)).summary
    found["silence"]["probes"] = score_probes(file, heldout, WordEmbedder(), resamples=50)
    return found


def test_rows_are_ordered_by_reward_and_those_that_know_the_target_come_last(summaries: dict[str, dict]) -> None:
    found = rows(summaries)
    blind = [row for row in found if not row.knows_target]
    assert found == blind + found[len(blind) :] and found[-1].knows_target
    estimates = [row.reward["estimate"] for row in blind if row.reward]
    assert estimates == sorted(estimates, reverse=True)
    by_name = {row.name: row for row in found}
    assert by_name["perfection"].update_recall == 1.0 == by_name["gold"].update_recall
    for name in ("silence", "do nothing"):
        assert by_name[name].reward["estimate"] == pytest.approx(0.1)
    # Two additions match, and the memory that was due an UPDATE stays: P = 2/3, R = 1.
    assert by_name["gold as add"].transition["estimate"] == pytest.approx(0.8)


def test_a_policy_that_earns_no_more_than_a_copier_is_told_so(summaries: dict[str, dict]) -> None:
    copiers = {name: probe for name, probe in summaries["silence"]["probes"].items() if name != "bag_of_words"}
    (sentence,) = not_better(rows({**summaries, "silence": summaries["silence"] | {"probes": copiers}}))
    assert sentence.startswith("silence earns 0.100, no more than copy ")
    # Users of this world say the very sentences, so that even a bag of words earns all there is.
    assert len(not_better(rows(summaries))) == 2
    assert not_better(rows({"perfection": summaries["perfection"]})) == []


def printed(*tables: Table, width: int = 120) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        for table in tables:
            console.print(table)
    return captured.get()


def test_the_table_names_every_row(summaries: dict[str, dict]) -> None:
    text = printed(probe_table(rows(summaries)))
    for told in ("perfection", "silence", "do nothing: no operation", "1.000 [1.000, 1.000]"):
        assert told in text, told


def test_rewards_by_difficulty_of_every_row(summaries: dict[str, dict]) -> None:
    found = rows(summaries)
    cells = cell_rows(found)
    assert list(cells) == ["signal", "rivals", "provenance", "time", "kind", "chain", "noise", "bank"]
    implied = cells["signal"][1]
    assert (implied.value, implied.sessions) == ("implied", 3)
    by_name = dict(zip([row.name for row in found], implied.rewards, strict=True))
    assert by_name["gold"]["estimate"] == by_name["perfection"]["estimate"] == 1.0
    assert by_name["silence"]["estimate"] == by_name["do nothing"]["estimate"] == pytest.approx(0.1)
    blind, knowing = printed(*cell_tables(found)).split("of policies that know the target")
    for told in ("signal", "  implied", "1.000 [1.000, 1.000]", "0.100 [0.100, 0.100]", " 3 "):
        assert told in blind, told
    assert "perfection" not in knowing and "  implied" in knowing and " 3 " in knowing
    assert cell_tables([row._replace(cells={}) for row in found]) == []


def test_figures_by_difficulty_are_whole_on_a_narrow_terminal_whatever_the_policy_is_called(
    summaries: dict[str, dict],
) -> None:
    found = rows({"smollm2-135m at http://127.0.0.1:8123/v1": summaries["silence"]})
    text = printed(*cell_tables(found), width=80)
    assert "…" not in text and "  implied  " in text
    (line,) = [line for line in text.partition("know the target")[0].splitlines() if "implied" in line]
    of_probes = [row.cells["signal=implied"]["estimate"] for row in found if row.description and not row.knows_target]
    assert [f"{one:.3f}" for one in of_probes] == line.replace("0.100 [0.100, 0.100]", "").split()[2:]


def test_a_summary_without_metrics_or_probes_has_a_row_all_the_same() -> None:
    (row,) = rows({"after": {}})
    assert (row.reward, row.transition, row.update_recall) == (None, None, None)
    assert not_better([row]) == [] == cell_tables([row]) and probe_table([row]).row_count == 1


def test_the_options_of_the_reward_are_those_of_the_evaluation(tmp_path: Path) -> None:
    heldout = people(2, 1)
    file = tmp_path / "sessions.jsonl"
    file.write_text("".join(to_json_line(item) + "\n" for item in heldout), encoding="utf-8")
    strict = score_probes(file, heldout, WordEmbedder(), options=RewardOptions(stale_weight=3.0), resamples=10)
    assert strict["gold_as_add"]["parts"]["transition"]["estimate"] == pytest.approx(2 * 0.4 / 1.4)
    assert score_probes(file, [], WordEmbedder()) == {}
