"""The transition reward once more, from its specification: plain dictionaries and all matchings, nothing from `rewards`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Text = str
Op = tuple[str, str | None, str, tuple[str | tuple[str, ...], ...], tuple[str, ...]]
"""event, target id, text, keywords (one text, or several of which any will do), outdated values"""


def readable(prior: dict[str, Text], operations: Sequence[Op]) -> list[Op]:
    """Operations that the state allows: known ids, some text, no repetition, no two texts for one memory."""
    kept: list[Op] = []
    for event, key, text, keywords, outdated in operations:
        if event == "ADD":
            key = None
        known = event == "ADD" or key in prior
        if known and (event == "NONE" or text.strip()) and (event, key, text) not in [op[:3] for op in kept]:
            kept.append((event, key, text, keywords, outdated))
    rewritten = [op[1] for op in kept if op[0] == "UPDATE"]
    return [op for op in kept if op[0] != "UPDATE" or rewritten.count(op[1]) == 1]


def after(prior: dict[str, Text], operations: Sequence[Op], side: str) -> dict[object, Text]:
    states: dict[object, Text] = dict(prior)
    for number, (event, key, text, *_) in enumerate(operations):
        if event == "ADD":
            states[(side, number)] = text
        if event == "UPDATE":
            states[key] = text
    return states


def plain(text: Text) -> Text:
    return " ".join(text.casefold().split())


def occurs(keyword: set[str], text: Text) -> bool:
    return len([wording for wording in keyword if plain(text).count(wording) > 0]) > 0


def whole_words(value: str, text: Text) -> bool:
    def bare(of: str) -> str:
        return "".join(character if character.isalnum() else " " for character in of.casefold())

    return f" {' '.join(bare(value).split())} " in f" {' '.join(bare(text).split())} "


def matchings(rows: Sequence[int], columns: frozenset[int], valid: set[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    if not rows:
        yield []
        return
    for rest in matchings(rows[1:], columns, valid):
        yield rest
    for column in columns:
        if (rows[0], column) in valid:
            for rest in matchings(rows[1:], columns - {column}, valid):
                yield [(rows[0], column), *rest]


def oracle(
    prior: dict[str, Text],
    predicted: Sequence[Op] | None,
    target: Sequence[Op],
    cosine: Callable[[Text, Text], float],
    *,
    tau: float,
    lexical_fidelity: bool,
    paper_literal: bool,
    stale_weight: float,
    match_overwritten: bool,
    match_other_targets: bool,
    weigh_new_keywords: bool,
    outdated_weight: float,
) -> list[tuple[float, float, float, float, float]]:
    """The reward, precision, recall, positive and negative distance.

    Of matchings that tie in similarity those that score best are meant; where several do, any of them is right.
    """
    predicted_state = after(prior, readable(prior, predicted or []), "predicted")
    target_state = after(prior, target, "target")
    keywords = {("target", n): op[3] for n, op in enumerate(target) if op[0] == "ADD"}
    keywords |= {op[1]: op[3] for op in target if op[0] == "UPDATE"}
    outdated = {("target", n): op[4] for n, op in enumerate(target) if op[0] == "ADD"}
    outdated |= {op[1]: op[4] for op in target if op[0] == "UPDATE"}

    dp = [key for key, text in predicted_state.items() if target_state.get(key) != text]
    dt = [key for key, text in target_state.items() if predicted_state.get(key) != text]
    due = {key for key in prior if target_state[key] != prior[key]}
    touched = {key for key in prior if predicted_state[key] != prior[key]}
    unexpected = touched - due
    stale = (due - touched) & set(dp)
    if predicted is None:
        return [(0.0, 0.0, 0.0, len(dp), len(dt))]
    changed = predicted_state != prior, target_state != prior
    if not paper_literal and changed != (True, True):
        value = 1.0 if changed == (False, False) else 0.0
        return [(value, value, value, len(dp), len(dt))]

    def score(text: Text, key: object, similarity: float) -> float:
        wanted: list[set[str]] = []
        for keyword in keywords.get(key, ()):
            wordings = {plain(wording) for wording in ([keyword] if type(keyword) is str else keyword) if plain(wording)}
            if wordings and wordings not in wanted:
                wanted.append(wordings)
        worth = similarity
        if lexical_fidelity and wanted:
            worth = sum(occurs(keyword, text) for keyword in wanted) / len(wanted)
        new = [keyword for keyword in wanted if key in due and not occurs(keyword, prior[key])]
        if weigh_new_keywords and new:
            worth *= sum(occurs(keyword, text) for keyword in new) / len(new)
        wrong = {plain(value) for value in outdated.get(key, ())}
        said = [value for value in wrong if whole_words(value, text) and not whole_words(value, target_state[key])]
        return worth / (1 + outdated_weight * len(said))

    similarity = {(i, j): cosine(predicted_state[a], target_state[b]) for i, a in enumerate(dp) for j, b in enumerate(dt)}
    valid = {
        (i, j)
        for (i, j), value in similarity.items()
        if value >= tau
        and dp[i] not in unexpected
        and (paper_literal or dp[i] not in stale)
        and (match_overwritten or dt[j] not in unexpected)
        and (match_other_targets or dp[i] not in prior or dp[i] == dt[j])
    }
    agreed = [] if paper_literal else [key for key in due if predicted_state[key] == target_state[key]]
    bonus = sum(score(target_state[key], key, 1.0) for key in agreed)
    candidates = list(matchings(range(len(dp)), frozenset(range(len(dt))), valid))
    totals = [sum(similarity[pair] for pair in matching) for matching in candidates]
    results = []
    for matching, total in zip(candidates, totals, strict=True):
        if total < max(totals) - 1e-9:
            continue
        credit = bonus + sum(score(predicted_state[dp[i]], dt[j], similarity[i, j]) for i, j in matching)
        n_predicted, n_target = len(dp) + len(agreed), len(dt) + len(agreed)
        worth_something = {dp[i] for i, j in matching if score(predicted_state[dp[i]], dt[j], similarity[i, j])}
        missed = due & set(dp) - worth_something
        weighted = len(dp) + (stale_weight - 1) * len(missed) + len(agreed)
        precision = credit / weighted if weighted else 0.0
        recall = credit / n_target if n_target else 0.0
        f1 = 0.0 if precision + recall == 0 else 2 * precision * recall / (precision + recall)
        results.append((f1, precision, recall, n_predicted - credit, n_target - credit))
    best = max(recall for _, _, recall, _, _ in results)
    return [result for result in results if result[2] > best - 1e-9]
