"""What an agent learns from its own work: episodes and reflections, kept in a bank by operations like memories.

Not to be confused with `deltamem.episode`, the ReAct run of the memory manager over one session.
"""

from papers.episodic.memory import EpisodicMemory, EpisodicSettings, Ingested, Recalled
from papers.episodic.records import AgentTrajectory, EpisodeSummary, Reflection, TurnAnalysis

__all__ = [
    "AgentTrajectory",
    "EpisodeSummary",
    "EpisodicMemory",
    "EpisodicSettings",
    "Ingested",
    "Recalled",
    "Reflection",
    "TurnAnalysis",
]
