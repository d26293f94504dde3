"""ServerApp: read the run config, build, start, say what came of it. No algorithm here."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.notices import AuditLines, early_end
from dqnfed_flwr.engine.retrying_grid import retrying
from dqnfed_flwr.engine.run_folder import TAKEOVER_SECONDS, directory_lock, settings_of_run, with_folders
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import StalledError
from dqnfed_flwr.report.progress import LineProgress
from dqnfed_flwr.report.table import summary_table
from dqnfed_flwr.strategy.checkpoint import output_directory
from dqnfed_flwr.strategy.state import STALLED

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes; results go to its `output` directory.

    `StalledError`, after all was written, if its model stands still: the run shall not count as completed.
    """
    settings = with_folders(Settings.from_mapping(context.run_config), context.run_id)
    folder, console = output_directory(settings), Console(force_terminal=False, width=120)
    with directory_lock(folder, TAKEOVER_SECONDS):
        settings = settings_of_run(settings, context.run_id)
        listeners = [LineProgress(console), AuditLines()]
        result = serve(retrying(grid), settings, listeners=listeners, run_id=str(context.run_id))
    console.print(summary_table({settings.title: result}))
    if folder:
        console.print(f"Results, on the server: {folder}", soft_wrap=True, markup=False, highlight=False)
    if result.status == STALLED:
        raise StalledError(early_end(result), result)
