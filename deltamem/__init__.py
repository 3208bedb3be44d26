"""DeltaMem: one agent that keeps a person's long-term memory (arXiv 2604.01560)."""

__version__ = "0.1.0"
