"""The tiny model: its teacher, tokenizer and copying circuit."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from lazy import lazy, names
from tiny_cases import COMPACT, SMALL, sessions, tokenizer_for

from deltamem.episode import EpisodeConfig, Message
from deltamem.training.config import WarmStartConfig
from deltamem.training.teacher import target_trajectory

torch = lazy("torch")
AutoTokenizer, Qwen3Config, Qwen3ForCausalLM = names("transformers", "AutoTokenizer Qwen3Config Qwen3ForCausalLM")
build, chat_text, new_model, scaffolds, structured_start, train = names(
    "deltamem.training.tiny", "build chat_text new_model scaffolds structured_start train"
)

EPISODES = [
    COMPACT,
    replace(COMPACT, memory_fields=("id", "time", "text")),
    replace(COMPACT, memory_fields=("time", "text", "id")),
]
by_fields = pytest.mark.parametrize("episode", EPISODES, ids=lambda episode: "-".join(episode.memory_fields))


def trajectory(number: int, episode: EpisodeConfig = COMPACT) -> list[Message]:
    return target_trajectory(sessions()[number], episode, random.Random(number), drop=0.0)


def test_the_vocabulary_of_the_model_is_the_length_of_the_tokenizer():
    tokenizer = tokenizer_for()
    model = new_model(SMALL, tokenizer, seed=0)
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().num_embeddings
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_any_text_survives_encoding_and_decoding():
    tokenizer = tokenizer_for()
    for text in ("", " ", "Zoë ✓ 日本\n\t  x", 'a "quoted" {json}', "m1 m10 m99 m100 team1"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@by_fields
def test_the_wire_format_is_made_of_single_tokens(episode):
    """Between the words there is nothing but scaffold tokens: the JSON of a turn costs one token a joint."""
    tokenizer = tokenizer_for(episode)
    pieces = set(scaffolds(episode.memory_fields))
    used = set()
    for number in range(0, len(sessions()), 5):
        for message in trajectory(number, episode)[2:]:
            content = message["content"]
            if message["role"] == "tool":
                content = f"<tool_response>{content}</tool_response>"
            tokens = tokenizer.convert_ids_to_tokens(tokenizer(content, add_special_tokens=False)["input_ids"])
            used |= pieces & set(tokens)
            for token in tokens:
                # A JSON sign outside a scaffold would mean that a scaffold was missed.
                assert token in pieces or not re.search(r'["\[\]{}<>]', token), (token, tokens)
    events = [labelled.operations for labelled in sessions()[::5]]
    assert {operation.event for operations in events for operation in operations} == {"ADD", "UPDATE", "NONE"}
    unused = pieces - used
    # Only what these sessions do not need: empty answers, and the join of two facts where each has its own.
    assert all(piece.endswith(("[]}</outputs>", "[]</tool_response>")) for piece in unused), unused


@by_fields
def test_a_conversation_survives_and_the_chat_template_is_prefix_stable(episode):
    tokenizer = tokenizer_for(episode)
    messages = trajectory(1, episode)
    whole = chat_text(messages, tokenizer)
    whole_ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert max(whole_ids) < len(tokenizer) and tokenizer.decode(whole_ids, skip_special_tokens=False) == whole
    for count in range(1, len(messages) + 1):
        text = chat_text(messages[:count], tokenizer)
        assert whole.startswith(text)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert whole_ids[: len(ids)] == ids
    # The generation prompt is how an assistant message begins.
    opening = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert whole.startswith(opening + messages[2]["content"] + "<|im_end|>\n")


def test_a_built_folder_can_be_loaded_and_is_the_same_for_the_same_seed(tmp_path):
    few = sessions()[:12]
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build(tmp_path / name, few, COMPACT, SMALL, seed=seed)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    model = Qwen3ForCausalLM.from_pretrained(tmp_path / "a")
    assert len(tokenizer) == model.config.vocab_size
    text = chat_text(trajectory(2), tokenizer_for())
    assert chat_text(trajectory(2), tokenizer) == text
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def plain_model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    rope = {"rope_type": "default", "rope_theta": 1e6}
    return Qwen3ForCausalLM(Qwen3Config(rope_parameters=rope, **sizes, **heads, **ends))


def copying_accuracy(model: Qwen3ForCausalLM) -> float:
    """How often the most likely token is right in the second half of random tokens that are said twice."""
    rng = torch.Generator().manual_seed(99)
    once = torch.randint(3, 300, (32, 40), generator=rng)
    with torch.inference_mode():
        predicted = model.eval()(torch.cat([once, once], 1)).logits[:, 40:-1].argmax(-1)
    return float((predicted == once[:, 1:]).float().mean())


@pytest.mark.slow
def test_the_structured_start_learns_to_copy_far_sooner_than_a_plain_start():
    plain, structured = plain_model(0), plain_model(0)
    structured_start(structured, seed=0)
    vocabulary = MagicMock(get_vocab=dict, convert_tokens_to_ids=lambda token: 0)  # as much of a tokenizer as copying needs
    vocabulary.__len__.return_value = 300
    for model in (plain, structured):
        train(model, vocabulary, [], COMPACT, WarmStartConfig(copy_steps=20, steps=0, batch_size=8), seed=0)
    before, after = copying_accuracy(plain), copying_accuracy(structured)
    assert after > 0.5 and after > before + 0.4, (before, after)


def test_everything_of_the_structured_start_stays_trainable_and_finite():
    model = plain_model(1)
    structured_start(model, seed=1)
    model(torch.randint(0, 300, (2, 20)), labels=torch.randint(0, 300, (2, 20))).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.requires_grad and torch.isfinite(weight).all(), name
        assert weight.grad is not None and torch.isfinite(weight.grad).all() and weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("change", [{"layers": 1}, {"heads": 2}, {"kv_heads": 1}, {"hidden_size": 32}])
def test_a_model_too_small_for_the_structured_start_is_refused(change):
    with pytest.raises(ValueError, match="structured start needs"):
        new_model(SMALL.model_copy(update=change), tokenizer_for(), seed=0)
