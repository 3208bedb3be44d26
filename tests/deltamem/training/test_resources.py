"""The memory estimate against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from deltamem.training.config import SupervisedConfig
from deltamem.training.resources import CONTEXTS, ModelShape, Plan, host, rollout, update, warm_start

QWEN3_8B = ModelShape(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=12288, vocabulary=151936, tied=False)
QWEN3_4B = ModelShape(36, 2560, 32, 8, 128, 9728, 151936, True)
QWEN3_06B = ModelShape(28, 1024, 16, 8, 128, 3072, 151936, True)
PAPER = Plan(
    shards=8,
    weight_bytes=4,
    lora_rank=0,
    tokens=24576,
    checkpointing=True,
    weights_stay=True,
    optimizer_stays=True,
    tensor_parallel=1,
    utilization=0.65,
    max_model_len=20480,
    max_sequences=128,
    batched_tokens=8192,
)


def test_parameters_are_those_of_the_published_checkpoints_and_of_a_real_model() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    published = {QWEN3_8B: 8_190_735_360, QWEN3_4B: 4_022_468_096, QWEN3_06B: 596_049_920}
    assert {shape: shape.parameters for shape in published} == published
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(vocab_size=300, tie_word_embeddings=False, **sizes, **heads)
    assert ModelShape.of(config).parameters == Qwen3ForCausalLM(config).num_parameters()


def test_update_of_8b_on_eight_gpus() -> None:
    found = update(QWEN3_8B, PAPER)
    # 8,190,735,360 float32 weights in eight parts.
    assert (found.weights, found.gradients, found.optimizer) == (4_095_367_680, 4_095_367_680, 8_190_735_360)
    # A layer has 192,946,432 parameters, embedding and head 622,329,856 each: (2 + 1) layers and (2 + 1) of those, 2 bytes.
    assert found.gathered == 2 * (3 * 192_946_432 + 3 * 622_329_856)
    # Inputs of 36 layers (4096 x 2 bytes); 2 x 24,576 x 151,936 x 2 bytes of logits.
    kept = 24576 * 36 * 4096 * 2
    assert found.logits == kept + 14_935_916_544
    # 77,824 bfloat16 and 13,312 float32 numbers a token, twice.
    assert QWEN3_8B.layer_activations() == 77_824 * 2 + 13_312 * 4
    assert found.activations == kept + 2 * 24576 * 208_896
    assert found.total == 4_095_367_680 * 4 + found.gathered + kept + 14_935_916_544 + CONTEXTS
    assert 45e9 < found.total < 60e9


def test_rollout_of_8b() -> None:
    gpu = 80 * 2**30
    found = rollout(QWEN3_8B, PAPER, gpu)
    assert QWEN3_8B.cache_per_token == 147_456  # 2 x 36 x 8 x 128 x 2
    assert found.training == 4_095_367_680 * 3
    assert found.engine == int(gpu * 0.65)
    assert found.weights == 16_381_470_720
    working = 8192 * (2 * 12288 + 4 * 4096) * 2 + 2 * 128 * 151936 * 4
    assert found.working == working
    assert found.cache_tokens == (found.engine - 16_381_470_720 - working) // 147_456
    assert found.total < gpu
    assert rollout(QWEN3_8B, replace(PAPER, weights_stay=False, optimizer_stays=False), gpu).training == 0


def test_the_cache_is_what_the_plan_says_where_it_does() -> None:
    found = rollout(QWEN3_8B, replace(PAPER, cache=10**10), 80 * 2**30)
    assert (found.cache, found.engine) == (10**10, found.weights + found.working + 10**10)
    assert rollout(QWEN3_8B, replace(PAPER, cache=10**10, utilization=0.1), 80 * 2**30) == found


def test_lora_trains_little_but_keeps_the_weights() -> None:
    # r x (inputs + outputs): 32 x (8192 + 5120 + 5120 + 8192 + 3 x 16384) x 36.
    assert QWEN3_8B.adapters(32) == 87_293_952
    found = update(QWEN3_8B, replace(PAPER, shards=1, lora_rank=32))
    assert found.weights == (8_190_735_360 + 87_293_952) * 4
    assert (found.gradients, found.optimizer) == (87_293_952 * 4, 87_293_952 * 8)


def test_host_memory() -> None:
    # The reference in bfloat16 once a node, and the first rank loads float32 weights.
    assert host(QWEN3_8B, PAPER, ranks=8, reference_bytes=2) == 8_190_735_360 * (2 + 4)
    # Tied embeddings: every rank loads the model.
    assert host(QWEN3_4B, PAPER, ranks=8, reference_bytes=None) == 4_022_468_096 * 4 * 8
    offloaded = replace(PAPER, weights_stay=False)
    assert host(QWEN3_8B, offloaded, ranks=8, reference_bytes=None) == 2 * 8_190_735_360 * 4


def test_without_checkpointing_every_layer_is_kept() -> None:
    whole = update(QWEN3_06B, replace(PAPER, checkpointing=False, tokens=1000))
    assert whole.activations == 1000 * (28 + 1) * QWEN3_06B.layer_activations()


def test_attention_without_flash_attn_fused_kernels_offloading_and_an_embedder() -> None:
    flash = update(QWEN3_8B, PAPER)
    dense = update(QWEN3_8B, replace(PAPER, flash=False))
    assert dense.logits - flash.logits == 24576 * 151936 * 4, "15 GB of log-softmax in float32"
    assert dense.activations - flash.activations == 3 * 24576**2, "the mask"
    fused = update(QWEN3_8B, replace(PAPER, fused=True))
    assert fused.logits == 24576 * (36 * 4096 * 2 + 4096 * 4)
    assert fused.gathered - flash.gathered == 151936 * 4096 * 4
    hosted = update(QWEN3_8B, replace(PAPER, shards=1, on_host=True))
    assert (hosted.weights, hosted.gradients, hosted.optimizer) == (0, 0, 0)
    beside = replace(PAPER, embedder=2 * 10**9)
    assert update(QWEN3_8B, beside).total - flash.total == 2 * 10**9
    assert rollout(QWEN3_8B, beside, 80 * 2**30).total - rollout(QWEN3_8B, PAPER, 80 * 2**30).total == 2 * 10**9
    assert flash.total == flash.fixed + max(flash.activations, flash.logits)


def test_a_step_of_a_warm_start() -> None:
    options = SupervisedConfig(
        **{"kind": "pretrained", "steps": 1, "tokens": 1000, "passes": 1, "layers": None, "lora_rank": None, "lr": 1e-5},
        **{"warm_up": 0, "decay_share": 1.0, "weight_decay": 0.0, "max_grad_norm": 1.0, "gradient_checkpointing": True},
        **{"careless": (0.0, 0.0), "heldout_sessions": 0, "test_every": 1, "save_every": 1},
    )
    count = 596_049_920
    found = warm_start(QWEN3_06B, options, own=300, on_gpu=True)
    # Float32 weights and what autocast has cast of them; the inputs of 28 layers and one of them twice.
    assert (found.weights, found.gradients, found.optimizer) == (6 * count, 4 * count, 8 * count)
    assert found.activations == 1000 * (28 * 1024 * 2 + 2 * QWEN3_06B.layer_activations())
    assert found.logits == 300 * 151936 * 14
    assert found.total == found.fixed + found.activations + found.logits
    on_cpu = warm_start(QWEN3_06B, options, own=300, on_gpu=False)
    assert (on_cpu.weights, on_cpu.logits) == (4 * count, 300 * 151936 * 12)
    assert on_cpu.total == on_cpu.fixed + 3 * (on_cpu.activations + on_cpu.logits)
    layers = options.model_copy(update={"layers": 2, "gradient_checkpointing": False})
    few = warm_start(QWEN3_06B, layers, own=300, on_gpu=False)
    assert (few.weights, few.gradients) == (4 * count, 4 * 2 * QWEN3_06B.layer_parameters)
    assert few.activations == 1000 * 3 * QWEN3_06B.layer_activations(4)
    adapters = options.model_copy(update={"lora_rank": 32})
    large = warm_start(QWEN3_8B, adapters, own=300, on_gpu=True)
    assert large.weights == 2 * 8_190_735_360 + 4 * 87_293_952 and large.optimizer == 8 * 87_293_952
    assert large.fixed < 20e9 < 16 * 8_190_735_360
