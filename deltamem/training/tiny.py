"""A Qwen3 model of about a million parameters and its tokenizer, from scratch: started so that it can copy, then trained."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from deltamem.episode import EpisodeConfig, MemoryField, Message
from deltamem.sessions import LabelledSession
from deltamem.training.chatml import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START
from deltamem.training.config import TinyModelConfig, WarmStartConfig
from deltamem.training.teacher import ANSWER_THOUGHT, SEARCH_THOUGHT, target_trajectory
from deltamem.training.warm_start import Batch, Descent, examples, pad

_SHARED = 0.2
"""Value of embedding dimension 0 in every token: a constant from which position-only queries and keys can be made."""
_SHARPNESS = 2.3
"""Weight of the query and key norms in the two layers; their product scales the attention logits."""
_WRITE_SCALE = 0.35
_OFFSET_FREQUENCIES = 4
"""The fastest rotary frequencies tell neighbouring positions apart."""
_SLOW_FREQUENCY = 0.006
"""Content is matched in rotary dimensions slower than this, which distance leaves nearly untouched."""


@torch.no_grad()
def structured_start(model: Qwen3ForCausalLM, *, seed: int) -> None:
    """Write the copying circuit into the first two layers of a model, which must have room for it."""
    config = model.config
    hidden, dim = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if config.num_hidden_layers < 2 or heads < 4 or kv_heads < 2 or hidden < 4 * dim:
        raise ValueError("the structured start needs 2 layers, 4 heads, 2 key-value heads and hidden_size >= 4 head_dim")
    half = dim // 2
    frequencies = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(half) / half)
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = _SHARED
    token, previous, before_previous, copied = _orthogonal_subspaces(hidden, dim, seed)

    first = model.model.layers[0].self_attn
    query, key, value, output = _by_head(first, heads, kv_heads, dim)
    key[0] *= 0.1
    key[0, :_OFFSET_FREQUENCIES, 0] = 1.0
    for head, offset in ((0, 1), (1, 2)):
        query[head] *= 0.1
        angle = -offset * frequencies[:_OFFSET_FREQUENCIES]
        query[head, :_OFFSET_FREQUENCIES, 0] = angle.cos()
        query[head, half : half + _OFFSET_FREQUENCIES, 0] = angle.sin()
    value[0] = token * embedding.norm(dim=1).mean() / hidden**0.5
    scale = _WRITE_SCALE / (embedding[:, 1:].norm(dim=1).mean() * (dim / hidden) ** 0.5)
    output[:, 0] = previous.T * scale
    output[:, 1] = before_previous.T * scale

    slow = [index for index in range(half) if frequencies[index] < _SLOW_FREQUENCY]
    content = [*slow, *(index + half for index in slow)]
    second = model.model.layers[1].self_attn
    query, key, value, output = _by_head(second, heads, kv_heads, dim)
    for kv_head, head, stored, sought in ((0, 0, previous, token), (1, heads // kv_heads, before_previous, previous)):
        key[kv_head] *= 0.05
        query[head] *= 0.05
        key[kv_head, content] = stored[: len(content)]
        query[head, content] = sought[: len(content)]
        value[kv_head] = copied * 0.5
        output[:, head] = copied.T * 0.5
    for attention in (first, second):
        attention.q_norm.weight.fill_(_SHARPNESS)
        attention.k_norm.weight.fill_(_SHARPNESS)


def _orthogonal_subspaces(hidden: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four orthogonal projections ``(dim, hidden)``, blind to the shared dimension."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.linalg.qr(torch.randn(hidden, min(4 * dim, hidden - 1), generator=rng))[0].T
    padded = torch.zeros(4 * dim, hidden)
    padded[: len(rows)] = rows
    padded[:, 0] = 0
    token, previous, before_previous, copied = padded.split(dim)
    return token, previous, before_previous, copied


def _by_head(attention: Qwen3Attention, heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of the projections, split by head."""
    query, key, value, output = (
        projection.weight for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    )
    return (
        query.view(heads, dim, -1),
        key.view(kv_heads, dim, -1),
        value.view(kv_heads, dim, -1),
        output.view(output.shape[0], heads, dim),
    )


_PIECES = r" ?[A-Z][b-df-hj-np-tv-z]*(?=[aeiou])| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
"""Where BPE may not merge across. A word with a capital is cut before its first vowels, so that all names, known and new,
are cut alike and end with a token that tells most of them apart; words that are no names are left whole (`_COMMON`)."""
_COMMON = 0.05
"""Share of the people whose conversations have a word, from which it counts as no name. Names are too many for that."""
_CAPITALISED = re.compile(r"[A-Z][a-z]*")
_RARE = 0.01
"""BPE merges nothing that fewer than this share of the people have: else a name becomes one token, as those of held-out
people, all new, never are. Syllables are common enough."""
_ROLES = ("system", "user", "assistant")
_MEMORY_IDS = tuple(f"m{number}" for number in range(1, 100))


def scaffolds(fields: Sequence[MemoryField]) -> list[str]:
    """The fixed pieces of the wire format that get a token each, so that a trajectory stays short.

    `fields` is the order of the keys in the tool's answer.
    """
    first, *rest = fields
    record_end = '."' if fields[-1] == "text" else '"'
    pieces = [
        f'<think>{SEARCH_THOUGHT}</think><tool_call>{{"name": "search_memory", "arguments": {{"query_list": ["',
        '", "',
        '"]}}</tool_call>',
        f'<think>{ANSWER_THOUGHT}</think><outputs>{{"operations": [{{"text": "',
        f'<think>{ANSWER_THOUGHT}</think><outputs>{{"operations": []}}</outputs>',
        '.", "event": "ADD"}',
        '.", "event": "UPDATE", "target_memory_id": "',
        '.", "event": "NONE", "target_memory_id": "',
        '"}',
        ', {"text": "',
        "]}</outputs>",
        "<tool_response>[]</tool_response>",
        f'<tool_response>[{{"{first}": "',
        f'{record_end}}}, {{"{first}": "',
        f"{record_end}}}]</tool_response>",
    ]
    previous = first
    for field in rest:
        pieces.append(f'{"." if previous == "text" else ""}", "{field}": "')
        previous = field
    return pieces


def train_tokenizer(
    sessions: Sequence[LabelledSession], episode: EpisodeConfig, config: TinyModelConfig, *, seed: int
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on target trajectories, in which wire-format scaffolds and memory ids are tokens."""
    rng = random.Random(seed)
    template = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)
    people: dict[str, list[str]] = {}
    for labelled in sessions:
        text = chat_text(target_trajectory(labelled, episode, rng, drop=0.0), template)
        people.setdefault(labelled.session.person_id, []).append(text)
    corpus = list(people.values())
    # The scaffolds are cut out first, so that BPE spends its vocabulary on language; each piece counts once a person.
    fixed = (*scaffolds(episode.memory_fields), *_MEMORY_IDS)
    between = re.compile(
        "|".join(map(re.escape, sorted((*fixed, END_OF_TEXT, TURN_START, TURN_END), key=len, reverse=True)))
    )
    said = [[part for text in texts for part in between.split(text)] for texts in corpus]
    known = Counter(word for parts in said for word in {word for part in parts for word in _CAPITALISED.findall(part)})
    common = sorted(word for word, people in known.items() if people > max(2, _COMMON * len(corpus)))
    cut = Regex("|".join([*(rf" ?{word}(?!\p{{L}})" for word in common), _PIECES]))
    split = pre_tokenizers.Split(cut, "isolated")
    pieces: list[str] = []
    for parts in said:
        pieces += dict.fromkeys(piece for part in parts for piece, _ in split.pre_tokenize_str(part))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        min_frequency=max(2, round(_RARE * len(corpus))),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in fixed])
    tokenizer.add_tokens([AddedToken(role, normalized=False, single_word=True) for role in _ROLES])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """Make a Qwen3 model with the structured start; its vocabulary equals the tokenizer's length."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.mlp_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    structured_start(model, seed=seed)
    return model


def chat_text(messages: Sequence[Message], tokenizer: PreTrainedTokenizerFast) -> str:
    """The whole conversation as the model sees it."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    return str(text)


def build(
    folder: Path, sessions: Sequence[LabelledSession], episode: EpisodeConfig, config: TinyModelConfig, *, seed: int
) -> None:
    """Train the tokenizer on target trajectories (a few thousand suffice), make the model, and save both in a folder."""
    tokenizer = train_tokenizer(sessions, episode, config, seed=seed)
    model = new_model(config, tokenizer, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    config: WarmStartConfig,
    *,
    seed: int,
    report: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> None:
    """Warm-start the model in place: copying, then target trajectories, so that GRPO begins above zero.

    Each session is used once a pass, with new omissions of the teacher. `report` is called after every step with its
    ``phase``, ``step``, ``loss`` and ``accuracy``.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model.to(torch.device(config.device)).train()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=config.matrix_lr),
        torch.optim.AdamW(others, lr=config.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    descent = Descent(model, optimizers, config.copy_steps + config.steps, warm_up=30, decay_share=config.decay_share)
    complete = round(config.complete_share * config.steps)

    def taught(careless: tuple[float, float]) -> Iterator[Batch]:
        return trajectory_batches(tokenizer, sessions, episode, config, rng, careless=careless)

    phases = chain(
        zip(repeat("copy"), islice(_copy_batches(len(tokenizer), config.batch_size, rng), config.copy_steps), strict=False),
        zip(repeat("trajectories"), islice(taught((0.0, 0.0)), complete), strict=False),
        zip(repeat("trajectories"), islice(taught(config.careless), config.steps - complete), strict=False),
    )
    for step, (phase, batch) in enumerate(phases, start=1):
        figures = descent.take(step, [batch.to(config.device)])
        report({"phase": phase, "step": step, "loss": figures["loss"], "accuracy": figures["accuracy"]})
    model.eval()


def _copy_batches(vocabulary: int, batch_size: int, rng: random.Random) -> Iterator[Batch]:
    """Random tokens, repeated after a random period; only the repetition is predictable."""
    width, rows = 96, batch_size * 3 // 2
    while True:
        ids = torch.zeros((rows, width), dtype=torch.long)
        weights = torch.zeros((rows, width))
        for row in range(rows):
            period = rng.randint(6, width // 2)
            once = torch.tensor([rng.randrange(3, vocabulary) for _ in range(period)])
            ids[row] = once.repeat(width // period + 1)[:width]
            weights[row, period + 1 :] = 1.0
        yield Batch(ids, weights)


def trajectory_batches(
    tokenizer: PreTrainedTokenizerFast,
    sessions: Sequence[LabelledSession],
    episode: EpisodeConfig,
    config: WarmStartConfig,
    rng: random.Random,
    *,
    careless: tuple[float, float],
) -> Iterator[Batch]:
    """Batches of similar length: a few batches are drawn, sorted and cut, so that little is padded."""
    weigh = Weigher(tokenizer, config)

    def tokenize(messages: list[Message]) -> tuple[list[int], list[float]]:
        token_ids = tokenizer(chat_text(messages, tokenizer), add_special_tokens=False)["input_ids"]
        return token_ids, weigh(token_ids)

    drawn = examples(sessions, episode, tokenize, careless=careless, rng=rng)
    while True:
        pool = sorted(islice(drawn, 8 * config.batch_size), key=lambda one: len(one.token_ids))
        batches = [pool[start : start + config.batch_size] for start in range(0, len(pool), config.batch_size)]
        rng.shuffle(batches)
        yield from map(pad, batches)


class Weigher:
    """Loss weights of a tokenised conversation: what the assistant writes, what decides, and the rest."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: WarmStartConfig) -> None:
        """Look the marks of turns and events up."""
        self._start, self._end, self._assistant = tokenizer.convert_tokens_to_ids([TURN_START, TURN_END, "assistant"])
        self._config = config
        self._events = {index for token, index in tokenizer.get_vocab().items() if '"event"' in token}

    def __call__(self, token_ids: Sequence[int]) -> list[float]:
        """One weight a token."""
        weights = []
        own = False
        for place, token in enumerate(token_ids):
            # An assistant turn begins after "<start> assistant newline" and includes its end token.
            if place >= 3 and token_ids[place - 3] == self._start:
                own = token_ids[place - 2] == self._assistant
            decides = token in self._events or token_ids[place - 1] in self._events
            weights.append((self._config.decision_weight if decides else 1.0) if own else self._config.context_weight)
            if token == self._end:
                own = False
        return weights


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalised (Muon), in the precision of the weights and for all matrices of a shape at once.

    `torch.optim.Muon` takes the same steps matrix by matrix in bfloat16, which a CPU without bfloat16 units emulates: there
    it took as long as the whole backward pass of the tiny model.
    """

    def __init__(self, matrices: Sequence[Tensor], lr: float, momentum: float = 0.95) -> None:
        """Take the matrices to train, each of shape ``(rows, columns)``."""
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; every matrix needs a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for (rows, columns), matrices in by_shape.items():
                gradient = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
                state = self.state[matrices[0]]
                average = state.setdefault("average", torch.zeros_like(gradient))
                average.lerp_(gradient, 1 - group["momentum"])
                direction = _orthogonalised(gradient.lerp(average, group["momentum"]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_add_(matrices, list(direction.unbind()), alpha=-scale)


def _orthogonalised(matrices: Tensor) -> Tensor:
    """Bring all singular values of each matrix of a stack ``(n, rows, columns)`` near 1 (.7 to 1.2).

    Five Newton-Schulz steps with the polynomial that Muon uses, which rises steeply near 0 instead of converging.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    wide: Tensor = matrices.mT if tall else matrices
    wide = wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.mT
        wide = 3.4445 * wide + (2.0315 * gram @ gram - 4.7750 * gram) @ wide
    return wide.mT if tall else wide
