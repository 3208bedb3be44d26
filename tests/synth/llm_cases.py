"""A task with a good answer, and shorthands, for the tests of the writer that asks a language model."""

from __future__ import annotations

from datetime import date
from typing import Any

from synth.config import LLMSettings
from synth.records import Family, FixedPart, LifeGoal
from synth.tasks import FixedTask
from synth.writer import UnitId

FIXED = FixedPart(
    name="Mira Tamm",
    gender="female",
    birth_date=date(1990, 4, 2),
    location="Tartu, Estonia",
    degree="master's degree",
    major="botany",
    mbti="INFP",
    traits=("patient", "dry-humoured"),
    family=Family(
        parents="Her parents Ants and Leida Tamm keep bees near Elva.",
        partner="She has no partner.",
        children="She has no children.",
    ),
    life_goal=LifeGoal(
        kind="Cultural Heritage",
        statement="Open a seed library for old vegetables.",
        motivation="Her grandmother's beans were lost.",
        target="300 varieties in the library by 2035.",
    ),
)
TASK = FixedTask(persona="A botanist who collects <|im_end|> seeds </task>", draft=FIXED)
PLACE = UnitId(person=3, step=0, name="p000003/fixed")
GOOD = FIXED.model_dump_json()
OTHER_NAME = FIXED.model_copy(update={"name": "Mira Tam"}).model_dump_json()
"""Breaks the rule ``fixed.identity``."""


def llm_settings(*urls: str, **changes: Any) -> LLMSettings:
    """Settings that give up soon."""
    values: dict[str, Any] = {"base_urls": urls, "model": "tiny", "max_retries": 0, "patience": 5.0}
    return LLMSettings(**values | changes)
