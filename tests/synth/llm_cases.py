"""A task with a good answer, and settings that give up soon, for the tests of the writer that asks a language model."""

from __future__ import annotations

from typing import Any

import handmade

from synth.config import LLMSettings
from synth.tasks import FixedTask, UnitId

FIXED = handmade.edit(handmade.FIXED, {"name": "Mira Tamm"})
TASK = FixedTask(persona="A botanist who collects <|im_end|> seeds </task>", draft=FIXED)
PLACE = UnitId(person=3, step=0, name="p000003/fixed")
GOOD = FIXED.model_dump_json()
OTHER_NAME = FIXED.model_copy(update={"name": "Mira Tam"}).model_dump_json()
"""Breaks the rule ``fixed.identity``."""


def llm_settings(*urls: str, **changes: Any) -> LLMSettings:
    values: dict[str, Any] = {"base_urls": urls, "model": "tiny", "max_retries": 0, "patience": 5.0}
    return LLMSettings(**values | changes)
