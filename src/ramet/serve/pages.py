"""The endpoints that only read: models, trees, health and metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ramet.serve.asking import budget_facts
from ramet.serve.errors import RequestError
from ramet.serve.settings import ALIAS
from ramet.store.facts import tree_facts

if TYPE_CHECKING:
    from ramet.serve.app import Service


class Pages:
    """The endpoints that only read."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.created = int(time.time())

    async def models(self, request: Request) -> Response:
        self.service.account(request.scope)
        name, wanted = self.service.config.model, request.path_params.get("name")
        facts = [self._model(served) for served in dict.fromkeys((name, ALIAS))]
        if wanted is None:
            return JSONResponse({"object": "list", "data": facts})
        found = [fact for fact in facts if fact["id"] == wanted]
        if not found:
            raise RequestError(404, f"unknown model {wanted[:60]!r}", param="model", code="model_not_found")
        return JSONResponse(found[0])

    def _model(self, name: str) -> dict[str, Any]:
        budget = budget_facts(self.service.config.budget)
        return {"id": name, "object": "model", "created": self.created, "owned_by": "ramet", "budget": budget}

    async def tree(self, request: Request) -> Response:
        """A tree of this key, running or recent."""
        account = self.service.account(request.scope)
        tree_id: str = request.path_params["id"]
        running = self.service.running.get(tree_id)
        if running is not None and running.owner == account.name:
            return JSONResponse({"running": True, **tree_facts(running.asked.tree)})
        tree = await self.service.store.read(tree_id, account.name)
        if tree is None:
            raise RequestError(404, f"there is no recent tree {tree_id[:40]!r} of this key", code="not_found")
        return JSONResponse({"running": False, **tree_facts(tree)})

    async def health(self, request: Request) -> Response:
        del request
        service = self.service
        closed, problem = service.gate.closed, service.store.error
        status = "shutting down" if closed else "ok" if problem is None else "trees are not stored"
        facts = {
            "status": status,
            "model": service.config.model,
            "running": service.gate.running,
            "waiting": service.gate.waiting,
        }
        return JSONResponse(facts, status_code=503 if closed else 200)

    async def metrics(self, request: Request) -> Response:
        service = self.service
        service.account(request.scope)
        service.metrics.store_errors = service.store.errors
        text = service.metrics.text(running=service.gate.running, waiting=service.gate.waiting)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
