"""verl's FSDP engine on a CPU. verl imports this module through ``actor_rollout_ref.model.external_lib``."""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from deltamem.training.cpu import thread_count


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuFSDPEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """The FSDP engine with threads of its own and without pinned memory."""

    def initialize(self) -> None:
        """Build model and optimiser; the thread count is set here because the environment gives every process one."""
        torch.set_num_threads(thread_count())
        super().initialize()

    def _build_fsdp_module(self, module: torch.nn.Module) -> Any:
        # A forward-only model (the reference) would be offloaded to pinned memory, which needs an accelerator.
        config, forward_only = self.engine_config, self.engine_config.forward_only
        object.__setattr__(config, "forward_only", False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            object.__setattr__(config, "forward_only", forward_only)
