"""Persona seeds: one sentence from which each synthetic person is made, and the split by person."""

from synth.personas.drawing import draw_personas, write_generated
from synth.personas.settings import LICENCES, PersonaSettings

__all__ = ["LICENCES", "PersonaSettings", "draw_personas", "write_generated"]
