"""For those who run the server: health, metrics, the owners, and the switch that pauses the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from deltamem.config import StrictModel
from deltamem.errors import DeltaMemError
from deltamem.journal.jobs import JobState
from deltamem.server.access import SECURITY, Caller, Operator, allow, service_of
from deltamem.server.keys import Scope
from deltamem.server.problems import Problem, responses
from deltamem.server.service import Service

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Figures for Prometheus: requests by route, never by owner, and the state of the queue when they are asked for."""

    def __init__(self, service: Service) -> None:
        """Count nothing yet."""
        self.registry = CollectorRegistry()
        labels = ("method", "route")
        self._requests = Counter(
            "deltamem_requests", "Requests by route and status.", (*labels, "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "deltamem_request_seconds", "Time of a request.", labels, registry=self.registry, buckets=_SECONDS
        )
        self.registry.register(_Queue(service))

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. Methods that HTTP does not know count as one, so that nobody can make up labels."""
        method = method if method in _METHODS else "OTHER"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Queue(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("deltamem_jobs", "Sessions that were taken on, by state.", labels=["state"])
        for state, count in self._service.queue.counts().items():
            jobs.add_metric([str(state)], count)
        yield jobs
        yield GaugeMetricFamily("deltamem_paused", "Whether the model is not asked for now.", int(self._service.paused))


class HealthOut(StrictModel):
    """How the server is."""

    status: Literal["ok"]


class ReadyOut(HealthOut):
    """How the server is, and whether sessions are read."""

    model: bool
    paused: bool


class ModelOut(StrictModel):
    """The model that reads sessions, in which mode and why in this one; null without a model."""

    name: str | None
    mode: Literal["react", "assisted"] | None
    reason: str | None
    paused: bool
    waiting: int


class ModelIn(StrictModel, strict=True):
    """Whether the model shall be asked."""

    paused: bool


class OwnersOut(StrictModel):
    """The owners that a key opens and of whom something is known, by name."""

    owners: list[str]


def router() -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["operations"])
    routes.get("/health/live")(live)
    routes.get("/health/ready", responses=responses())(ready)
    guarded = APIRouter(dependencies=SECURITY, responses=responses())
    guarded.get("/metrics", response_class=MetricsResponse)(metrics)
    guarded.get("/v1/owners")(list_owners)
    guarded.get("/v1/admin/model")(get_model)
    guarded.put("/v1/admin/model")(set_model)
    routes.include_router(guarded)
    return routes


async def live() -> HealthOut:
    """Whether the process answers."""
    return HealthOut(status="ok")


def ready(request: Request) -> ReadyOut:
    """Whether the journal can be read and, if there is a model, the worker runs. The model itself is not asked."""
    service = service_of(request)
    try:
        paused = service.paused
    except DeltaMemError:
        raise Problem(503, "the journal cannot be read") from None
    if not service.running:
        raise Problem(503, "the server is stopping")
    return ReadyOut(status="ok", model=service.has_model, paused=paused)


class MetricsResponse(Response):
    """Prometheus' text format."""

    media_type = CONTENT_TYPE_PLAIN_0_0_4


def metrics(key: Caller, request: Request) -> MetricsResponse:
    """Figures for Prometheus; with API keys it needs one for all owners."""
    if key.owners is not None:
        raise Problem(403, "this needs an API key for all owners")
    return MetricsResponse(generate_latest(request.app.state.metrics.registry))


def list_owners(key: Caller, request: Request) -> OwnersOut:
    """The owners that the key opens."""
    allow(key, Scope.READ)
    return OwnersOut(owners=[owner for owner in service_of(request).store.owners() if key.opens(owner)])


def get_model(key: Operator, request: Request) -> ModelOut:
    """The model, and whether it is paused."""
    return _model(service_of(request))


async def set_model(body: ModelIn, key: Operator, request: Request) -> ModelOut:
    """Stop asking the model, or go on. Sessions are still taken on meanwhile; it outlasts a restart."""
    service = service_of(request)
    await anyio.to_thread.run_sync(service.pause, body.paused)
    service.wake()
    return await anyio.to_thread.run_sync(_model, service)


def _model(service: Service) -> ModelOut:
    counts = service.queue.counts()
    waiting = counts[JobState.QUEUED] + counts[JobState.RUNNING]
    name = service.policy.name if service.has_model else None
    mode, reason = service.mode or (None, None)
    return ModelOut(name=name, mode=mode, reason=reason, paused=service.paused, waiting=waiting)
