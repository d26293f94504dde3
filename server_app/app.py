"""ServerApp: read the run config, build, start. No algorithm here."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.serve import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes; results go to its `output` directory."""
    serve(grid, Settings.from_mapping(context.run_config))
