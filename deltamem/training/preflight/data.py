"""Checks of the data set: every row readable, persons kept apart, enough for one step."""

from __future__ import annotations

from deltamem.provenance import file_sha256
from deltamem.sessions import read_sessions
from deltamem.training.preflight.context import Context
from deltamem.training.preflight.finding import Finding, fail, ok, warn


def check_data(context: Context) -> Finding:
    """All lines of the sessions file, and the rows drawn from it."""
    path = context.need_sessions()
    people: dict[str, set[str]] = {"train": set(), "heldout": set()}
    keys: set[str] = set()
    sessions = 0
    for labelled in read_sessions(path):
        sessions += 1
        people[labelled.split].add(labelled.session.person_id)
        keys.add(labelled.key)
    if both := sorted(people["train"] & people["heldout"]):
        return fail(f"{path}: {len(both)} persons are trained on and held out, {both[0]} is the first")
    if len(keys) < sessions:
        return fail(f"{path}: {sessions - len(keys)} sessions are there twice")
    exported = context.exported
    batch = context.config.data.train_batch_size
    steps = exported.train_sessions // batch * context.config.trainer.total_epochs
    if context.config.trainer.total_training_steps is not None:
        steps = context.config.trainer.total_training_steps
    if exported.train_sessions < batch:
        return fail(f"{path}: {exported.train_sessions} training sessions are fewer than data.train_batch_size={batch}")
    text = (
        f"{exported.train_sessions} training sessions of {len(people['train'])} persons, {steps} steps; "
        f"{exported.heldout_sessions} held-out sessions of {len(people['heldout'])} persons; sha256 {file_sha256(path)[:12]}"
    )
    if (saves := context.config.trainer.save_freq) <= 0 or saves > steps:
        return warn(f"{text}; trainer.save_freq={saves} saves {'nothing' if saves <= 0 else 'only the last step'}")
    return ok(text)
