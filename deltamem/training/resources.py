"""How much memory a training run needs, from the shape of the model and the configuration; nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from deltamem.training.config import SupervisedConfig

_HALF, _FLOAT = 2, 4
"""Bytes of a bfloat16 number and of a float32 number."""

CONTEXTS = 3_000_000_000
"""What the CUDA contexts of trainer and vLLM, NCCL's buffers, CUDA graphs and the allocator's gaps take on a GPU."""

_PROCESS = 1_000_000_000
"""The CUDA context of a warm start and its allocator's gaps, or a process with torch and transformers."""

_EMBEDDER = 2_000_000_000
"""Qwen3-Embedding-0.6B in bfloat16, a batch and a CUDA context, on the first GPU of a node."""


def gb(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder of the Qwen3 kind (no biases, gated MLP, norms of queries and keys)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Read a Hugging Face configuration."""
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            mlp=config.intermediate_size,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )

    @property
    def queries(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the seven matrices of a layer."""
        hidden, mlp = self.hidden, self.mlp
        attention = ((hidden, self.queries), (hidden, self.keys), (hidden, self.keys), (self.queries, hidden))
        return (*attention, (hidden, mlp), (hidden, mlp), (mlp, hidden))

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return sum(rows * columns for rows, columns in self.projections) + 2 * self.hidden + 2 * self.head_dim

    @property
    def vocabulary_parameters(self) -> int:
        """Parameters of the embedding and of the head, which may be one matrix."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters + self.vocabulary_parameters + self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters at all matrices of the layers."""
        return self.layers * sum(rank * (rows + columns) for rows, columns in self.projections)

    @property
    def cache_per_token(self) -> int:
        """Keys and values of one token in bfloat16."""
        return 2 * self.layers * self.keys * _HALF

    def layer_activations(self, number: int = _HALF) -> int:
        """Bytes a token that a layer keeps for its backward pass, in numbers of so many; attention keeps no scores."""
        # Inputs of the matrices, projections, normed and rotated queries and keys, attention's output, four of the MLP.
        half = (
            2 * self.hidden + (self.queries + 2 * self.keys) + 2 * (self.queries + self.keys) + self.queries + 4 * self.mlp
        )
        # Norms are computed in float32.
        return half * number + (2 * self.hidden + self.queries + self.keys) * _FLOAT


def stored_bytes(fsdp: DictConfig) -> int:
    """Bytes of a weight as FSDP stores it."""
    return _HALF if fsdp.model_dtype in ("bf16", "bfloat16", "fp16") else _FLOAT


@dataclass(frozen=True)
class Plan:
    """What of a configuration decides about memory."""

    shards: int  # GPUs among which weights, gradients and optimiser are cut
    weight_bytes: int  # of a stored weight, 4 (float32) or 2 (bfloat16)
    lora_rank: int  # 0 trains all weights
    tokens: int  # most tokens of a micro-batch on one GPU
    checkpointing: bool  # layers are recomputed in the backward pass
    weights_stay: bool  # on the GPU while vLLM generates
    optimizer_stays: bool
    tensor_parallel: int
    utilization: float  # vLLM's share of the GPU
    max_model_len: int
    max_sequences: int  # that vLLM runs at once
    batched_tokens: int  # of one step of vLLM
    flash: bool = True  # attention and log-probs by flash-attn
    fused: bool = False  # log-probs in pieces, without the logits of all tokens
    on_host: bool = False  # weights, gradients and optimiser stay in host memory also in the update
    embedder: int = 0  # bytes that the embedding model takes beside verl
    cache: int = 0  # bytes of vLLM's cache, if they are given; utilization then says nothing

    @classmethod
    def of(cls, config: DictConfig) -> Plan:
        """Read a resolved training configuration."""
        model = config.actor_rollout_ref
        fsdp, sampling = model.actor.fsdp_config, model.rollout
        parallel = max(model.actor.ulysses_sequence_parallel_size, fsdp.ulysses_sequence_parallel_size)
        longest = config.data.max_prompt_length + config.data.max_response_length
        if model.actor.use_dynamic_bsz:
            tokens = max(model.actor.ppo_max_token_len_per_gpu, sampling.log_prob_max_token_len_per_gpu)
        else:
            tokens = model.actor.ppo_micro_batch_size_per_gpu * longest // parallel
        return cls(
            shards=fsdp.fsdp_size if fsdp.fsdp_size > 0 else config.trainer.n_gpus_per_node * config.trainer.nnodes,
            weight_bytes=stored_bytes(fsdp),
            lora_rank=model.model.lora_rank,
            tokens=tokens,
            checkpointing=model.model.enable_gradient_checkpointing,
            weights_stay=not (fsdp.param_offload or fsdp.offload_policy),
            optimizer_stays=not (fsdp.optimizer_offload or fsdp.offload_policy),
            tensor_parallel=sampling.tensor_model_parallel_size,
            utilization=sampling.gpu_memory_utilization,
            max_model_len=sampling.max_model_len or longest,
            max_sequences=sampling.max_num_seqs,
            batched_tokens=sampling.max_num_batched_tokens,
            flash=model.model.override_config.get("attn_implementation", "flash_attention_2") != "sdpa",
            fused=model.model.use_fused_kernels,
            on_host=fsdp.offload_policy,
            embedder=_EMBEDDER if str(config.deltamem.embedder.device).startswith("cuda") else 0,
            cache=OmegaConf.select(sampling, _PINNED) or 0,
        )

    def stored(self, shape: ModelShape) -> tuple[int, int, int]:
        """Bytes of weights, gradients and optimiser on one GPU."""
        trained = shape.adapters(self.lora_rank) if self.lora_rank else shape.parameters
        frozen = shape.parameters if self.lora_rank else 0
        one = trained * self.weight_bytes
        return (trained + frozen) * self.weight_bytes // self.shards, one // self.shards, 2 * one // self.shards


@dataclass(frozen=True)
class StepMemory:
    """Memory at the peak of a training step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    process: int  # contexts and gaps of the processes
    gathered: int = 0
    embedder: int = 0
    tokens: int = 0  # what grows with the tokens of a micro-batch

    @property
    def fixed(self) -> int:
        """What does not grow with the tokens."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.embedder + self.process

    @property
    def total(self) -> int:
        """All of it."""
        return self.fixed + self.tokens

    def described(self, *parts: str) -> str:
        """The total with these parts of it, for people."""
        names = ", ".join(f"{part.replace('optimizer', 'optimiser')} {gb(getattr(self, part))}" for part in parts)
        return f"{gb(self.total)} ({names})"


def update(shape: ModelShape, plan: Plan) -> StepMemory:
    """The peak of forward and backward pass of GRPO over one micro-batch, on one GPU."""
    weights, gradients, optimizer = (0, 0, 0) if plan.on_host else plan.stored(shape)
    # Two layers (one is fetched ahead), embedding and head in bfloat16, and gradients of a layer and the head.
    head = shape.vocabulary * shape.hidden
    gathered = (2 * shape.layer_parameters + shape.vocabulary_parameters) * _HALF
    if not plan.lora_rank:
        gathered += (shape.layer_parameters + head) * _HALF
    layer = shape.layer_activations()
    if plan.checkpointing:
        # The inputs of all layers, and one layer with its gradients.
        kept, working = shape.layers * shape.hidden * _HALF, 2 * layer
    else:
        kept, working = shape.layers * layer, layer
    # The logits and one copy; their gradient is written into them.
    logits = 2 * shape.vocabulary * _HALF
    # Without flash-attn every row's log-softmax is kept as well, in float32 under autocast.
    logits += 0 if plan.flash else shape.vocabulary * _FLOAT
    if plan.fused:
        # The gradient of the hidden states, and that of the head in float32.
        logits, gathered = shape.hidden * _FLOAT, gathered + head * _FLOAT
    activations = plan.tokens * (kept + working)
    # A dense mask, as booleans and as bfloat16 numbers.
    activations += 0 if plan.flash else plan.tokens**2 * (1 + _HALF)
    logits = plan.tokens * (kept + logits)
    # Logits are gone before the first layer is computed again: the larger counts.
    tokens = max(activations, logits)
    return StepMemory(weights, gradients, optimizer, activations, logits, CONTEXTS, gathered, plan.embedder, tokens)


def trained_parameters(shape: ModelShape, options: SupervisedConfig) -> int:
    """How many parameters a warm start trains."""
    if options.lora_rank is not None:
        return shape.adapters(options.lora_rank)
    return shape.parameters if options.layers is None else min(options.layers, shape.layers) * shape.layer_parameters


def warm_start(shape: ModelShape, options: SupervisedConfig, *, own: int, on_gpu: bool) -> StepMemory:
    """The peak of a supervised step on a GPU or in the process on a CPU; `own` tokens of a pass have logits."""
    trained, number = trained_parameters(shape, options), _HALF if on_gpu else _FLOAT
    adapters = options.lora_rank is not None
    weights = shape.parameters * (number if adapters else _FLOAT) + (trained * _FLOAT if adapters else 0)
    if on_gpu and not adapters:
        # Autocast keeps what it has cast until the backward pass.
        weights += trained * _HALF
    layers = shape.layers if options.layers is None else min(options.layers, shape.layers)
    layer = shape.layer_activations(number)
    kept = layers * shape.hidden * number + 2 * layer if options.gradient_checkpointing else (layers + 1) * layer
    # The logits as they come, in float32, their log-softmax and its gradient.
    logits = own * shape.vocabulary * (3 * _FLOAT + (_HALF if on_gpu else 0))
    activations = options.tokens * kept
    # The allocator of a CPU keeps what passes of other widths have left. Measured with 12 layers of SmolLM2-135M: 8.2 GB, of
    # which the rest is about 4.
    tokens = (activations + logits) * (1 if on_gpu else 3)
    return StepMemory(weights, trained * _FLOAT, 2 * trained * _FLOAT, activations, logits, _PROCESS, tokens=tokens)


@dataclass(frozen=True)
class RolloutMemory:
    """Memory of a GPU while vLLM generates."""

    training: int  # what the trainer keeps there
    engine: int  # vLLM's share
    weights: int  # weights within that share
    working: int  # its activations
    cache: int  # the rest, for keys and values
    cache_tokens: int  # tokens that it holds
    embedder: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.training + self.engine + self.embedder + CONTEXTS


def rollout(shape: ModelShape, plan: Plan, gpu: int) -> RolloutMemory:
    """The peak while vLLM generates on a GPU of `gpu` bytes."""
    stored, _, optimizer = plan.stored(shape)
    training = (stored if plan.weights_stay else 0) + (optimizer if plan.optimizer_stays else 0)
    weights = (shape.parameters + (shape.adapters(plan.lora_rank) if plan.lora_rank else 0)) * _HALF // plan.tensor_parallel
    # A step over all its tokens, two arrays as wide as the MLP, and float32 logits of every sequence with one copy.
    working = plan.batched_tokens * (2 * shape.mlp + 4 * shape.hidden) * _HALF
    working += 2 * plan.max_sequences * shape.vocabulary * _FLOAT
    engine = weights + working + plan.cache if plan.cache else int(gpu * plan.utilization)
    cache = max(engine - weights - working, 0)
    tokens = cache * plan.tensor_parallel // shape.cache_per_token
    return RolloutMemory(training, engine, weights, working, cache, tokens, plan.embedder)


_PINNED = "engine_kwargs.vllm.kv_cache_memory_bytes"


def with_pinned_cache(config: DictConfig, shape: ModelShape, gpu: int) -> DictConfig:
    """A copy of a resolved configuration that says how large vLLM's cache is on GPUs of `gpu` bytes, if it does not yet.

    Else vLLM measures what it has at its start, while the trainer is still loading and before the embedder and the optimiser
    are there; on the first GPU it may then lack room when it wakes up.
    """
    plan = Plan.of(config)
    if plan.cache or (cache := rollout(shape, plan, gpu).cache) < shape.cache_per_token * plan.max_model_len:
        return config
    config = config.copy()
    OmegaConf.update(config.actor_rollout_ref.rollout, _PINNED, cache, force_add=True)
    return config


def host(shape: ModelShape, plan: Plan, *, ranks: int, reference_bytes: int | None) -> int:
    """Bytes of host memory that a node with `ranks` GPUs needs: offloaded weights, the reference, and the model on loading.

    `reference_bytes` is the size of a weight of the reference, which FSDP2 always keeps on the host; None without one.
    """
    stored, _, optimizer = plan.stored(shape)
    kept = ranks * ((0 if plan.weights_stay else stored) + (0 if plan.optimizer_stays else optimizer))
    if reference_bytes is not None:
        kept += ranks * shape.parameters * reference_bytes // plan.shards
    # Models with tied embeddings are loaded whole by every rank, others by the first.
    loading = shape.parameters * plan.weight_bytes * (ranks if shape.tied else 1)
    return kept + loading
