"""How much memory a training run needs, from the shape of the model and the configuration; nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from deltamem.training.config import SupervisedConfig

_HALF = 2
"""A bfloat16 number."""


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
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the seven matrices of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (self.hidden, queries),
            (self.hidden, keys),
            (self.hidden, keys),
            (queries, self.hidden),
            (self.hidden, self.mlp),
            (self.hidden, self.mlp),
            (self.mlp, self.hidden),
        )

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
        return 2 * self.layers * self.kv_heads * self.head_dim * _HALF


_FLOAT = 4

CONTEXTS = 3_000_000_000
"""What the CUDA contexts of trainer and vLLM, NCCL's buffers, CUDA graphs and the allocator's gaps take on a GPU."""

_EMBEDDER = 2_000_000_000
"""Qwen3-Embedding-0.6B in bfloat16, a batch and a CUDA context, on the first GPU of a node."""


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
        )


@dataclass(frozen=True)
class Update:
    """Memory of a GPU at the peak of an update."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int
    embedder: int

    @property
    def tokens(self) -> int:
        """What grows with the micro-batch. Logits are gone before the first layer is computed again: the larger counts."""
        return max(self.activations, self.logits)

    @property
    def fixed(self) -> int:
        """What does not."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.embedder + CONTEXTS

    @property
    def total(self) -> int:
        """All of it."""
        return self.fixed + self.tokens


@dataclass(frozen=True)
class Rollout:
    """Memory of a GPU while vLLM generates."""

    training: int  # what the trainer keeps there
    engine: int  # vLLM's share
    weights: int  # weights within that share
    working: int  # its activations
    cache_tokens: int  # tokens of keys and values that the rest holds
    embedder: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.training + self.engine + self.embedder + CONTEXTS


def _stored(shape: ModelShape, plan: Plan) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimiser on one GPU."""
    trained = shape.adapters(plan.lora_rank) if plan.lora_rank else shape.parameters
    frozen = shape.parameters if plan.lora_rank else 0
    weights = (trained + frozen) * plan.weight_bytes // plan.shards
    return weights, trained * plan.weight_bytes // plan.shards, 2 * trained * plan.weight_bytes // plan.shards


def layer_activations(shape: ModelShape, number: int = _HALF) -> int:
    """Bytes a token that one layer keeps for its backward pass, in numbers of so many; attention keeps no scores."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Inputs of the matrices, projections, normed and rotated queries and keys, attention's output, four of the MLP.
    half = 2 * shape.hidden + (queries + 2 * keys) + 2 * (queries + keys) + queries + 4 * shape.mlp
    # Norms are computed in float32.
    full = 2 * shape.hidden + queries + keys
    return half * number + full * _FLOAT


def update(shape: ModelShape, plan: Plan) -> Update:
    """The peak of forward and backward pass over one micro-batch."""
    weights, gradients, optimizer = (0, 0, 0) if plan.on_host else _stored(shape, plan)
    # Two layers (one is fetched ahead), embedding and head in bfloat16, and gradients of a layer and the head.
    head = shape.vocabulary * shape.hidden
    gathered = (2 * shape.layer_parameters + shape.vocabulary_parameters) * _HALF
    if not plan.lora_rank:
        gathered += (shape.layer_parameters + head) * _HALF
    layer = layer_activations(shape)
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
    return Update(weights, gradients, optimizer, gathered, activations, plan.tokens * (kept + logits), plan.embedder)


@dataclass(frozen=True)
class WarmStart:
    """Memory at the peak of a step of supervised fine-tuning, on a GPU or of the process on a CPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    gaps: int

    @property
    def fixed(self) -> int:
        """What does not depend on the tokens of a pass."""
        return self.weights + self.gradients + self.optimizer + _PROCESS

    @property
    def total(self) -> int:
        """All of it."""
        return self.fixed + self.activations + self.logits + self.gaps


_PROCESS = 1_000_000_000
"""The CUDA context and its allocator's gaps, or a process with torch and transformers."""


def trained_parameters(shape: ModelShape, options: SupervisedConfig) -> int:
    """How many parameters a warm start trains."""
    if options.lora_rank is not None:
        return shape.adapters(options.lora_rank)
    return shape.parameters if options.layers is None else min(options.layers, shape.layers) * shape.layer_parameters


def warm_start(shape: ModelShape, options: SupervisedConfig, *, own: int, on_gpu: bool) -> WarmStart:
    """The peak of a step, of whose pass `own` tokens are the assistant's: only they have logits."""
    trained, number = trained_parameters(shape, options), _HALF if on_gpu else _FLOAT
    adapters = options.lora_rank is not None
    weights = shape.parameters * (number if adapters else _FLOAT) + (trained * _FLOAT if adapters else 0)
    if on_gpu and not adapters:
        # Autocast keeps what it has cast until the backward pass.
        weights += trained * _HALF
    layers = shape.layers if options.layers is None else min(options.layers, shape.layers)
    layer = layer_activations(shape, number)
    kept = layers * shape.hidden * number + 2 * layer if options.gradient_checkpointing else (layers + 1) * layer
    # The logits as they come, in float32, their log-softmax and its gradient.
    logits = own * shape.vocabulary * (3 * _FLOAT + (_HALF if on_gpu else 0))
    activations = options.tokens * kept
    # The allocator of a CPU keeps what passes of other widths have left. Measured with 12 layers of SmolLM2-135M: 8.2 GB, of
    # which the rest is about 4.
    gaps = 0 if on_gpu else 2 * (activations + logits)
    return WarmStart(weights, trained * _FLOAT, 2 * trained * _FLOAT, activations, logits, gaps)


def rollout(shape: ModelShape, plan: Plan, gpu: int) -> Rollout:
    """The peak while vLLM generates on a GPU of `gpu` bytes."""
    stored, _, optimizer = _stored(shape, plan)
    training = (stored if plan.weights_stay else 0) + (optimizer if plan.optimizer_stays else 0)
    engine = int(gpu * plan.utilization)
    weights = (shape.parameters + (shape.adapters(plan.lora_rank) if plan.lora_rank else 0)) * _HALF // plan.tensor_parallel
    # A step over all its tokens, two arrays as wide as the MLP, and float32 logits of every sequence with one copy.
    working = plan.batched_tokens * (2 * shape.mlp + 4 * shape.hidden) * _HALF
    working += 2 * plan.max_sequences * shape.vocabulary * _FLOAT
    left = max(engine - weights - working, 0)
    return Rollout(training, engine, weights, working, left * plan.tensor_parallel // shape.cache_per_token, plan.embedder)


def host(shape: ModelShape, plan: Plan, *, ranks: int, reference_bytes: int | None) -> int:
    """Bytes of host memory that a node with `ranks` GPUs needs: offloaded weights, the reference, and the model on loading.

    `reference_bytes` is the size of a weight of the reference, which FSDP2 always keeps on the host; None without one.
    """
    stored, _, optimizer = _stored(shape, plan)
    kept = ranks * ((0 if plan.weights_stay else stored) + (0 if plan.optimizer_stays else optimizer))
    if reference_bytes is not None:
        kept += ranks * shape.parameters * reference_bytes // plan.shards
    # Models with tied embeddings are loaded whole by every rank, others by the first.
    loading = shape.parameters * plan.weight_bytes * (ranks if shape.tied else 1)
    return kept + loading
