"""What an agent learns from its own work: episodes and reflections, kept in a bank by operations like memories.

Not to be confused with `deltamem.episode`, the ReAct run of the memory manager over one session. The names are looked up
when they are used, because the command line loads this package for every command.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from papers.episodic.memory import EpisodicMemory, IngestedTrajectory, Recalled
    from papers.episodic.records import AgentTrajectory, EpisodeSummary, Reflection, TurnAnalysis
    from papers.episodic.review import EpisodicSettings

__all__ = [
    "AgentTrajectory",
    "EpisodeSummary",
    "EpisodicMemory",
    "EpisodicSettings",
    "IngestedTrajectory",
    "Recalled",
    "Reflection",
    "TurnAnalysis",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "memory" if name in ("EpisodicMemory", "EpisodicSettings", "IngestedTrajectory", "Recalled") else "records"
    return getattr(import_module(f"{__name__}.{home}"), name)
