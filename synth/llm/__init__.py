"""The writer that asks a language model: prompts, schemas, a tolerant parser, repairs, and a pool of endpoints."""

from synth.llm.pool import EndpointPool
from synth.llm.settings import LLMSettings
from synth.llm.writer import LLMWriter

__all__ = ["EndpointPool", "LLMSettings", "LLMWriter"]
