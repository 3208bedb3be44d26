"""The data card, ``README.md`` of the data set, with the header that the Hugging Face hub reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from synth.output.files import HELDOUT_FILE, TRAIN_FILE
from synth.output.tables import rule_rows, usage_total
from synth.personas import LICENCES

_LICENCE_IDS = {"generated": "apache-2.0", "file": "unknown", "personahub": "cc-by-nc-sa-4.0"}
"""As the hub writes them."""

_LENGTHS = {
    "turns": "turns of a session",
    "operations": "operations of a session",
    "words": "words of a session",
    "user_words": "words of the user in a session",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def render_card(manifest: Mapping[str, Any], *, parquet: bool) -> str:
    """Render the card as Markdown.

    Args:
        manifest: As `synth.output.write_dataset` makes it.
        parquet: Whether there are parquet files.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: "-" if value is None else f"{value:,}"
    environment.filters["cell"] = _cell
    making, counts, statistics = manifest["making"], manifest["counts"], manifest["statistics"]
    writer = making.get("making", {})
    rules = rule_rows(manifest)
    source = making.get("personas", {}).get("source", "file")
    sessions = counts["train/sessions"] + counts["heldout/sessions"]
    return environment.get_template("card.md.j2").render(
        making=making,
        by_model=making.get("writer") == "llm",
        licence=_LICENCE_IDS[source],
        terms=LICENCES[source],
        facts=_facts(manifest),
        prompts=sorted(writer.get("prompts", {}).items()),
        size=next((name for limit, name in _SIZES if sessions < limit), "n>1M"),
        counts=counts,
        statistics=statistics,
        lengths=[(label, statistics["lengths"][name]) for name, label in _LENGTHS.items()],
        grids=[(title, sorted(rows.items())) for title, rows in _grids(statistics).items() if rows],
        said=_said(statistics),
        checked=[row for row in rules if row.checked],
        broken=[row for row in rules if row.violated],
        never=[row for row in rules if not row.checked],
        total=usage_total(manifest),
        parquet=parquet,
        train_file=TRAIN_FILE,
        heldout_file=HELDOUT_FILE,
    )


def _facts(manifest: Mapping[str, Any]) -> list[tuple[str, object]]:
    making = manifest["making"]
    writer = making.get("making", {})
    found = {
        "writer": making.get("writer"),
        "model": writer.get("model"),
        **{f"sampling: {name}": value for name, value in writer.get("sampling", {}).items()},
        "structured output": writer.get("structured"),
        "repairs at most": writer.get("repairs"),
        "seed": manifest["seed"],
        "people": making.get("people"),
        "sessions a person": making.get("sessions"),
        "share held out": making.get("heldout_share"),
        "persona seeds": making.get("personas", {}).get("source"),
        "similarity model of the rules": making.get("embedder"),
    }
    return [(name, value) for name, value in found.items() if value is not None]


def _grids(statistics: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    origins, changes = statistics["operations_by_origin"], statistics["changes_by_track"]
    return {
        "operations by origin": {origin: sum(kinds.values()) for origin, kinds in origins.items()},
        "changes by track": {track: sum(kinds.values()) for track, kinds in changes.items()},
        "changes by operator": dict(sum((Counter(kinds) for kinds in changes.values()), Counter())),
        "events by domain": statistics["events_by_domain"],
        "memory threads by method": statistics["memory_threads_by_method"],
    }


def _said(statistics: Mapping[str, Any]) -> str:
    counts = statistics["keywords"].values()
    every = sum(item["keywords"] for item in counts)
    return f"{sum(item['said'] for item in counts) / every:.1%}" if every else "none"


def _cell(text: object) -> str:
    """A text on one line in which nothing ends a table cell or begins markup."""
    flat = " ".join(str(text).split())
    return "".join("\\" + char if char in "\\`*_|<>[]" else char for char in flat)
