"""A small Qwen3 checkpoint on this machine's CPU as a policy; concurrent requests are sampled together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from deltamem.chat_turns import turn_format
from deltamem.episode import Message
from deltamem.errors import DeltaMemError
from deltamem.generation import BatchGenerator, Generated
from deltamem.policy import Completion

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

_QUIET_SECONDS = 0.05
"""A batch starts when no further request has arrived for this long, so that episodes in step share it."""


class CheckpointPolicy:
    """Samples from a checkpoint folder.

    With a fixed seed and the same episodes in the same order the texts are the same, as long as all episodes run at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        max_new_tokens: int = 512,
        threads: int | None = None,
        thinking: bool = True,
    ) -> None:
        """Load model and tokenizer.

        Args:
            folder: Hugging Face folder of a dense Qwen3 model with a chat template.
            temperature: Of the sampling; 0 is greedy.
            seed: Of the sampling.
            max_new_tokens: Of one assistant text.
            threads: Of torch; by default one for each core.
            thinking: As in `deltamem.episode.EpisodeConfig`; the chat template is told.

        Raises:
            DeltaMemError: If the folder holds no such model, or its chat template does not fit.
        """
        import torch

        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self._tokenizer, model = _load(folder)
        self.name = str(folder)
        self._template_options = {} if thinking else {"enable_thinking": False}
        self._format = turn_format(
            self._tokenizer,
            template_options=self._template_options,
            eos_ids=model.generation_config.eos_token_id,
        )
        try:
            self._format.check(thinking=thinking)
        except DeltaMemError as error:
            raise DeltaMemError(f"{folder}: {error}") from error
        self._generator = BatchGenerator(model.eval(), eos_ids=set(self._format.ends), seed=seed)
        self._context = int(model.config.max_position_embeddings)
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._waiting: list[tuple[list[int], asyncio.Future[Generated]]] = []
        self._batching: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text."""
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self._template_options
        )
        token_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(token_ids) >= self._context:
            return Completion("", truncated=True, tokens=0)
        future: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self._waiting.append((token_ids, future))
        if self._batching is None or self._batching.done():
            self._batching = asyncio.create_task(self._run_batches())
        generated = await future
        own = self._tokenizer.decode(generated.token_ids[:-1] if generated.stopped else generated.token_ids)
        return Completion(self._format.opening + own, not generated.stopped, len(generated.token_ids))

    async def _run_batches(self) -> None:
        while self._waiting:
            count = 0
            while count != len(self._waiting):
                count = len(self._waiting)
                await asyncio.sleep(_QUIET_SECONDS)
            batch, self._waiting = self._waiting, []
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._sample, [token_ids for token_ids, _ in batch]
                )
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), generated in zip(batch, results, strict=True):
                # Whoever gave up waiting has cancelled the future; the others must get theirs all the same.
                if not future.done():
                    future.set_result(generated)

    def _sample(self, prompts: list[list[int]]) -> list[Generated]:
        limits = [min(self._max_new_tokens, self._context - len(prompt)) for prompt in prompts]
        return self._generator.generate(prompts, limits, [self._temperature] * len(prompts))


def _load(folder: Path) -> tuple[PreTrainedTokenizerBase, Qwen3ForCausalLM]:
    """Load tokenizer and model.

    Raises:
        DeltaMemError: If the folder holds no whole Qwen3 model with a chat template.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    if not (folder / "config.json").is_file():
        raise DeltaMemError(f"{folder}: no checkpoint there (config.json is missing)")
    transformers_logging.disable_progress_bar()
    # What is wrong with the folder is told in one sentence below, not in a report of many lines.
    transformers_logging.set_verbosity_error()
    try:
        kind = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
        if kind != "qwen3":
            raise DeltaMemError(f"{folder}: expected a dense Qwen3 checkpoint, not one of type {kind!r}")
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, loading = Qwen3ForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except DeltaMemError:
        raise
    except Exception as error:  # a damaged file shows as a different exception in every library
        reason = str(error).partition("\n")[0]
        raise DeltaMemError(f"{folder}: cannot be loaded as a Qwen3 checkpoint ({reason})") from error
    if loading["missing_keys"]:
        # transformers would go on with random weights in their place.
        raise DeltaMemError(f"{folder}: the weights lack {min(loading['missing_keys'])}")
    if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
        raise DeltaMemError(f"{folder}: the tokenizer needs a chat template and an end-of-turn token")
    return tokenizer, model
