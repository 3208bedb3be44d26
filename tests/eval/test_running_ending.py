"""What the command of a benchmark says at its end."""

from __future__ import annotations

from pathlib import Path

from compare_cases import benchmark_config, ingest, locomo_summary, question

from eval.summary import cost_line


def test_sessions_that_the_manager_did_not_understand_are_told(tmp_path: Path) -> None:
    config, questions = benchmark_config(tmp_path), [question("a/1", "temporal")]
    sessions = [ingest("a", 0, outcome="unreadable", memories=()), ingest("a", 1), ingest("a", 2)]
    assert "1 of 3 sessions brought no readable answer" in cost_line(locomo_summary(config, questions, sessions))
    assert "no readable answer" not in cost_line(locomo_summary(config, questions, sessions[1:]))
