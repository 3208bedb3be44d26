"""What the records of a run are made with: its configuration, endpoints, served models, commit, versions, taken answers.

Two servers may call different models by one name, and a model may be trained again in the same folder. So each record of a
run bears the hash of the fingerprint under which it was made, a run is not resumed under another one unless that is asked
for, and the response cache keeps the answers of each served model apart. Answers of a finished run may be taken over by
another one whose judges differ.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import computed_field

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError
from deltamem.prompts import Prompt
from deltamem.runs import atomic_writer, config_hash, git_commit, read_records, versions
from eval.answer import AnswerRequest
from eval.config import BenchmarkConfig
from eval.models import Models, check_models
from eval.policy import served_model
from eval.records import AnswerRecord, PointRecord, QuestionRecord
from eval.systems.kinds import asks_model, system_kind, system_names

_STABLE = ("id", "root", "owned_by", "weights")
"""What tells one served model from another. The window does not change answers, and ``created`` is the time of the call."""


MANIFEST_FILE = "manifest.json"
_FINGERPRINTS = "fingerprints"  # Key of that file; the others are the configuration
_NAMED_FIRST = ("benchmark", "system")  # Where these differ, so does much else, which would say less


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The configuration and the fingerprints with which the records of a folder were made; empty if there are none.

    Raises:
        DeltaMemError: If they cannot be read.
    """
    path = folder / MANIFEST_FILE
    try:
        noted: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, []
    except ValueError as error:
        raise DeltaMemError(f"{path}: not valid JSON") from error
    return noted, noted.pop(_FINGERPRINTS, [])


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The keys at which JSON values differ, with the value before and the value now."""
    now = json.loads(json.dumps(now))
    for key in sorted({*before, *now}, key=lambda key: (key not in _NAMED_FIRST, key)):
        if before.get(key) != now.get(key):
            yield key, before.get(key), now.get(key)


def _refuse(what: str, differing: Iterable[tuple[str, Any, Any]], advice: str) -> None:
    """Raise a `DeltaMemError` that names the first difference, if there is one."""
    for key, before, now in differing:
        raise DeltaMemError(f"{what} made with {key} = {before!r}, not {now!r}; {advice}")


class Fingerprint(StrictModel):
    """What is compared when a run is resumed. Parts of a run whose models were not needed are not in it."""

    commit: str | None  # With `-dirty` if tracked files were changed since
    versions: dict[str, str]  # Of deltamem and the packages of the system
    endpoints: dict[str, str | None]  # By part
    served: dict[str, dict[str, Any]]  # By part what the endpoint lists of its model; empty if it lists none
    canaries: dict[str, tuple[str, ...]]  # By part the hashes of all replies to the canary request so far

    @computed_field  # type: ignore[prop-decorator]
    @property
    def made(self) -> str:
        """A short hash, which records bear."""
        return config_hash(self.model_dump(mode="json", exclude={"canaries", "made"}))[:10]

    def differences(self, before: Fingerprint) -> Iterator[tuple[str, Any, Any]]:
        """What differs, with the value before and the value now; of the models that both runs asked."""
        parts = self.served.keys() & before.served.keys()
        return _differences(before._flat(parts), self._flat(parts))

    def _flat(self, parts: Collection[str]) -> dict[str, Any]:
        served = {f"served.{part}": self.served[part] for part in parts}
        groups: dict[str, Mapping[str, Any]] = {"versions": self.versions, "endpoints": self.endpoints, **served}
        return {"commit": self.commit} | {f"{group}.{key}": of for group, own in groups.items() for key, of in own.items()}


def _endpoints(config: BenchmarkConfig) -> dict[str, str | None]:
    """Where the models are of the parts that a model plays."""
    playing = {"answer": config.answer.answerer == "llm", "judge": config.judged, "manager": asks_model(config)}
    urls = {part: getattr(config, part).base_url for part, plays in playing.items() if plays}
    return {part: url and url.rstrip("/") for part, url in urls.items()}


def cache_identity(served: Mapping[str, Any]) -> str | None:
    """What the keys of the response cache hold of a served model; None if nothing is known of it."""
    known = {name: served[name] for name in _STABLE if served.get(name) is not None}
    return config_hash(known)[:16] if known else None


class RunManifest:
    """The configuration and, in order, the fingerprints under which the records of a folder were made."""

    def __init__(
        self, folder: Path, run_config: Mapping[str, Any], *, mixed: bool = False, taken: TakenAnswers | None = None
    ) -> None:
        """Read those of an output folder; a `mixed` run goes on although its fingerprint has changed.

        Raises:
            DeltaMemError: If the records were made with another configuration; names the first difference.
        """
        if taken is not None:
            run_config = {**run_config, TAKEN_FROM: taken.made}
        self._folder, self._run_config, self._mixed, self._taken = folder, run_config, mixed, taken
        before, fingerprints = _read(folder)
        differing = _differences(before, run_config) if before else ()
        _refuse(f"{folder} holds results that were", differing, "choose another out=... or remove the folder")
        known = [Fingerprint(**{key: of for key, of in one.items() if key != "made"}) for one in fingerprints]
        self._known = {one.made: one for one in known}

    @property
    def last(self) -> Fingerprint | None:
        """The newest; None if there is no run yet."""
        return next(reversed(self._known.values()), None)

    @property
    def made(self) -> str:
        """What records are marked with that are made now."""
        return self.last.made if self.last is not None else ""

    async def resume(self, config: BenchmarkConfig, models: Models, needed: Collection[str] | None) -> None:
        """Fail early if a model that is needed is unreachable, or if it is not the one that the run was begun with.

        The cache of `models` learns what is served. `needed` are the parts whose models will be asked; None if nothing is
        left to do, when the models need not be there: what they were is known.

        Raises:
            DeltaMemError: If a model does not answer, or the run was begun otherwise and may not be mixed.
        """
        endpoints = _endpoints(config)
        clients = {part: llm for part in endpoints if (llm := getattr(models, part)) is not None}
        if self.last is not None:  # also where nothing is left to ask
            self._check(self.last.model_copy(update={"endpoints": endpoints}).differences(self.last))
        if self.last is None or needed is not None:
            canaries = await check_models(config, models, needed or ())
            asked = {part: llm for part, llm in clients.items() if part in canaries}
            served = {} if self.last is None else self.last.served  # of the parts that are not needed now
            listed = await asyncio.gather(*map(served_model, asked.values()))
            packages = system_kind(config.system).packages if config.system in system_names() else ()
            found = versions(("sentence-transformers", *packages))
            self._add(
                Fingerprint(
                    commit=await asyncio.to_thread(git_commit),
                    versions={name: of for name, of in found.items() if name not in ("python", "platform")},
                    endpoints=endpoints,
                    served=served | dict(zip(asked, listed, strict=True)),
                    canaries={part: (canaries[part],) for part in asked},
                )
            )
        if models.cache is not None and self.last is not None:
            for part, llm in clients.items():
                if identity := cache_identity(self.last.served.get(part, {})):
                    models.cache.served[llm.base_url, llm.model] = identity

    def _add(self, fingerprint: Fingerprint) -> None:
        """Note that the run goes on under a fingerprint, together with its canaries so far."""
        if self.last is not None and fingerprint.made not in self._known:
            self._check(fingerprint.differences(self.last))
        same = self._known.pop(fingerprint.made, None)
        earlier = same.canaries if same is not None else {}
        canaries = {
            part: tuple(dict.fromkeys((*earlier.get(part, ()), *fingerprint.canaries.get(part, ()))))
            for part in {**earlier, **fingerprint.canaries}
        }
        self._known[fingerprint.made] = fingerprint.model_copy(update={"canaries": canaries})

    def _check(self, differing: Iterable[tuple[str, Any, Any]]) -> None:
        if not self._mixed:
            advice = "choose another out=..., or go on with mixed=true, of which every output will warn"
            _refuse(f"{self._folder} holds results that were", differing, advice)

    def write(self) -> None:
        """Note what decides the records of the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self._folder / MANIFEST_FILE) as file:
            json.dump({**self._run_config, _FINGERPRINTS: self._noted()}, file, indent=2)

    def as_dict(self) -> dict[str, Any]:
        """For the summary: the newest, all of them if there are several, and those of answers that were taken over."""
        noted = self._noted()
        every = {"all": noted} if len(noted) > 1 else {}
        taken = {} if self._taken is None else {TAKEN_FROM: self._taken.fingerprints}
        return (noted[-1] if noted else {}) | every | taken

    def _noted(self) -> list[dict[str, Any]]:
        return [one.model_dump(mode="json") for one in self._known.values()]

    def warnings(self) -> Iterator[str]:
        """What is mixed, one sentence each."""
        for before, now in pairwise(self._known.values()):
            changed = [f"{key} ({old!r}, then {new!r})" for key, old, new in now.differences(before)]
            if changed:
                yield f"results of different fingerprints are mixed: {'; '.join(changed)}"
        for part, replies in (self.last.canaries if self.last is not None else {}).items():
            if len(replies) > 1:
                yield (
                    f"the model of {part} has given {len(replies)} different answers to one greedy request, at "
                    "different times: it may have been exchanged under the same name"
                )
        if self._taken is not None:
            made = self._taken.made
            yield f"answers are taken over from a finished run (made under {made}); only judges and scores are new"


TAKEN_FROM = "answers_from"
"""Key of the run's configuration: under which fingerprint the last of the answers was made."""

_MAY_DIFFER = {"judge", "judges", "prompts", TAKEN_FROM}


class TakenAnswers:
    """The answers of the finished run that a configuration names, without verdicts; stands for its answerer."""

    def __init__(self, config: BenchmarkConfig, run_config: Mapping[str, Any], prompt: Prompt | None) -> None:
        """Read them; `prompt` is that of the answerer, None if no model answers.

        Raises:
            DeltaMemError: If there is no such run, or it differs in something else than its judges; names the first.
        """
        assert config.answers_from is not None
        self.name: str = config.answer.answerer
        self._folder = folder = config.answers_from
        before, self.fingerprints = _read(folder)  # Under which they were made
        if not before:
            raise DeltaMemError(f"answers_from={folder} is not the folder of a run")
        now = dict(run_config)
        for of in (before, now):
            of["answer prompt"] = prompt and of["prompts"].get(prompt.name)
        differing = (one for one in _differences(before, now) if one[0] not in _MAY_DIFFER)
        _refuse(f"answers_from={folder} was", differing, "only the judges may differ")
        self._questions = read_records(folder / "questions.jsonl", QuestionRecord, _key)

    @property
    def made(self) -> str:
        """Hash of the last fingerprint."""
        return str(self.fingerprints[-1]["made"]) if self.fingerprints else "unknown"

    def check_complete(self, keys: Collection[str]) -> None:
        """Refuse a run in which some of these questions have no answer, or a failed one."""
        missing = [key for key in keys if (record := self._questions.get(key)) is None or not _answered(record)]
        if missing:
            raise DeltaMemError(
                f"answers_from={self._folder} lacks answers to {len(missing):,} of {len(keys):,} questions, for example "
                f"{missing[0]}; finish that run first"
            )

    def copy(self, out: Path) -> None:
        """Bring all but the verdicts into the folder of a run that has not begun: answers stand beside what was found."""
        out.mkdir(parents=True, exist_ok=True)
        for name in ("sessions.jsonl", "passages.jsonl"):
            shutil.copyfile(self._folder / name, out / name)
        verdicts = {"answers": {"__all__": {"verdicts"}}}
        lines = []
        for key, found in read_records(self._folder / "retrieved.jsonl", QuestionRecord, _key).items():
            asked = self._questions.get(key, found)
            # A search that failed, or that a later session made void, has no answer; nor has another one.
            same = found.error is None and (asked.retrieved, asked.deeper) == (found.retrieved, found.deeper)
            record = asked if same else found
            lines.append(
                record.model_dump_json(exclude=verdicts | {"budgets": {"__all__": verdicts}}, exclude_defaults=True)
            )
        _write(out / "retrieved.jsonl", lines)
        if (source := self._folder / "points.jsonl").exists():
            points = read_records(source, PointRecord, _key).values()
            # Those that were not searched for are made of the data and the sessions.
            bare = (point.model_dump_json(exclude={"verdict"}, exclude_defaults=True) for point in points if point.searched)
            _write(out / source.name, bare)

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        """Stands for the answerer, who is only asked again where the model had said nothing: that stays so."""
        return AnswerRecord(text=None, silent=True, error="the answerer had returned nothing")


def _key(record: QuestionRecord | PointRecord) -> str:
    return record.key


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_writer(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def _answered(record: QuestionRecord) -> bool:
    answers = [*record.answers, *record.at_budgets]
    return record.error is None and bool(answers) and all(answer.error is None or answer.silent for answer in answers)
