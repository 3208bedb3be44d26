"""Labelled sessions and a random model for the tests of training."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from lazy import lazy, names

from deltamem.memory import Event, Memory, MemoryState, Operation, apply
from deltamem.sessions import LabelledSession, Session, Split, Turn, to_json_line
from deltamem.training.chatml import CHAT_TEMPLATE

torch = lazy("torch")
Tokenizer, decoders, models, pre_tokenizers, trainers = names(
    "tokenizers", "Tokenizer decoders models pre_tokenizers trainers"
)
PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM = names(
    "transformers", "PreTrainedTokenizerFast Qwen3Config Qwen3ForCausalLM"
)

START = datetime(2026, 4, 5, 20, 1)
CITIES = ("Lisbon", "Oslo", "Quito", "Hanoi", "Perth", "Turin", "Accra", "Osaka")


def labelled_session(number: int, split: Split = "train") -> LabelledSession:
    """A person who moves to another city and gets a pet: one UPDATE, one ADD."""
    name = f"Person{number}"
    old, new = CITIES[number % 8], CITIES[(number + 3) % 8]
    facts = {"m1": f"{name} lives in {old}.", "m2": f"{name} likes tea."}
    prior = MemoryState([Memory(key, text, START - timedelta(days=9)) for key, text in facts.items()])
    operations = (
        Operation(Event.UPDATE, f"{name} lives in {new}.", "m1", (new,)),
        Operation(Event.ADD, f"{name} has a cat.", None, ("cat",)),
    )
    turns = (Turn("user", f"I have moved to {new} and got a cat."), Turn("assistant", "Nice!"))
    session = Session(f"p{number}", name, START, turns)
    return LabelledSession(session, 0, split, prior, operations, apply(prior, operations, START))


def write_sessions(path: Path, train: int, heldout: int) -> Path:
    """Write a ``sessions.jsonl`` of one session a person."""
    items = [labelled_session(number) for number in range(train)]
    items += [labelled_session(number, "heldout") for number in range(train, train + heldout)]
    path.write_text("".join(to_json_line(item) + "\n" for item in items), encoding="utf-8")
    return path


def make_model(folder: Path) -> Path:
    """A random model of 0.1 million parameters, saved with a tokenizer of the sessions."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([to_json_line(labelled_session(number)) for number in range(40)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes, **heads, **ends)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
