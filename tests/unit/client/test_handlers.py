from __future__ import annotations

import gc
import weakref

from client_app.app import app
from dqnfed_flwr.client.cache import client_for
from dqnfed_flwr.client.handlers import forget_clients
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.grid import InProcessGrid
from dqnfed_flwr.engine.serve import serve
from tests.helpers.runs import TINY


def test_clients_are_kept_for_the_next_message_and_let_go_when_asked() -> None:
    settings = Settings.from_mapping({**TINY, "rounds": 1})
    serve(InProcessGrid(app, settings.clients, settings.flat()), settings)
    client = weakref.ref(client_for(settings, 0))
    gc.collect()
    assert client() is client_for(settings, 0)
    forget_clients()
    gc.collect()
    assert client() is None
