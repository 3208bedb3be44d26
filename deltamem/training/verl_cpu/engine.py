"""verl's FSDP engine on a CPU. verl imports this module through ``actor_rollout_ref.model.external_lib``."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from deltamem.training.verl_cpu import thread_count


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuFSDPEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """The FSDP engine with threads of its own, without pinned memory, and with the log-probs of whole micro-batches.

    verl's engine computes log-probs token by token where there is no GPU kernel for them, which costs as much as half the
    model.
    """

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

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask the model for logits only from where the first response of the micro-batch begins."""
        inputs, args = super().prepare_model_inputs(micro_batch)
        if _plain(micro_batch):
            begin = int(micro_batch["prompts"].offsets().diff().min()) - 1
            inputs["logits_to_keep"] = inputs["input_ids"].shape[1] - begin
            args["padded_input_ids"] = inputs["input_ids"]
        return inputs, args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Any]:
        """Log-prob of every next token, as a nested tensor; those within the prompts, which nobody reads, are zero."""
        if not _plain(micro_batch):
            return dict(super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func))
        input_ids, logits = output_args["padded_input_ids"], output.logits
        if not output_args["temperature_is_one"]:
            logits = logits / output_args["temperature"].clamp(min=1e-8)[:, None, None]
        next_ids = input_ids.roll(-1, dims=1)[:, -logits.shape[1] :, None]
        log_probs = torch.log_softmax(logits, dim=-1).gather(-1, next_ids).squeeze(-1)
        padded = torch.nn.functional.pad(log_probs, (input_ids.shape[1] - logits.shape[1], 0))
        offsets = micro_batch["input_ids"].offsets()
        real = torch.arange(padded.shape[1]) < offsets.diff()[:, None]
        return {"log_probs": torch.nested.nested_tensor_from_jagged(padded[real], offsets)}


def _plain(micro_batch: TensorDict) -> bool:
    """Whether only log-probs of padded text are asked for."""
    extras = ("use_remove_padding", "use_fused_kernels", "calculate_entropy", "calculate_sum_pi_squared")
    return not any(tu.get_non_tensor_data(data=micro_batch, key=key, default=False) for key in extras)
