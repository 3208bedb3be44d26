"""The episode configuration beside the weights: round trip, and messages that name the key."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamem.episode import EPISODE_FILE, EpisodeConfig, load_episode_config, save_episode_config
from deltamem.errors import DeltaMemError

configs = st.builds(
    EpisodeConfig,
    system_prompt=st.text(),
    session_prompt=st.text(),
    k=st.integers(1, 50),
    max_turns=st.integers(1, 50),
    memory_fields=st.permutations(["id", "time", "text"]).map(tuple),
    thinking=st.booleans(),
    max_invalid_calls=st.integers(0, 5),
)


@settings(max_examples=30, deadline=None)
@given(config=configs)
def test_round_trip(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("checkpoint")
    save_episode_config(folder, config)
    assert load_episode_config(folder) == config
    assert [path.name for path in folder.iterdir()] == [EPISODE_FILE]


def test_without_the_file_the_default_holds(tmp_path):
    assert load_episode_config(tmp_path) == EpisodeConfig()


def test_keys_that_are_not_given_keep_their_default(tmp_path):
    (tmp_path / EPISODE_FILE).write_text('{"k": 7}', encoding="utf-8")
    assert load_episode_config(tmp_path) == EpisodeConfig(k=7)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps({"k": "many"}), "k: "),
        (json.dumps({"turns": 3}), "turns: "),
        (json.dumps({"memory_fields": ["id", "when"]}), "memory_fields.1: "),
        ("{", "the file: "),
        ("[]", "the file: "),
    ],
)
def test_a_bad_file_is_told_in_one_sentence(tmp_path, text, told):
    path = tmp_path / EPISODE_FILE
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeltaMemError) as caught:
        load_episode_config(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {told}") and "\n" not in message
