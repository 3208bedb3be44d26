"""The writer that asks a language model: prompts, schemas, a tolerant parser, repairs, and a pool of endpoints."""
