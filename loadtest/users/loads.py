"""What the users of one run send: requests of every model and form, made once at its start."""

from __future__ import annotations

import itertools
import random

from loadtest.wire.discover import NoServer, Reply, Server, choose, parse_models
from loadtest.wire.forms import FORMS, Request


class Loads:
    """Requests by model and form.

    ``models``: as ``--models``; empty for all that answer. Raises NoServer or NotMadeUp while it
    is made.
    """

    def __init__(self, server: Server, rows: int, models: str = "") -> None:
        weights = parse_models(models) or dict.fromkeys(server.model_names(), 1.0)
        if not weights:
            raise NoServer("the server has no model that answers: load one first")
        self.models = {name: server.model(name, rows) for name in weights}
        self._requests = {
            (name, form): itertools.cycle(model.requests(form, rows))
            for name, model in self.models.items()
            for form in FORMS
        }
        self._next_model = choose(weights, random.Random())

    def next(self, form: str) -> tuple[str, Request]:
        """Return the next model by weight, and a request of ``form`` for it."""
        name = self._next_model()
        return name, next(self._requests[name, form])

    def fault(self, model: str, request: Request, reply: Reply) -> str:
        """Return what is wrong with an answer; empty: nothing."""
        return self.models[model].fault(request, reply)
