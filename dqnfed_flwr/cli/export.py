"""`dqnfed export`: a finished run's model as files for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dqnfed_flwr.cli.failures import reported


@reported
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of a finished run.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Where the files go; by default the run's folder.")
    ] = None,
) -> None:
    """Write a run's model as model.safetensors, model.pt2 and MODEL_CARD.md.

    The weights need safetensors to be read, the program (torch.export) torch; neither needs this package. The card
    says what the model was trained on and how fair it came out; fill in its licence and its use.

    Exit status: 0 written, 1 not a finished run, or something is missing.
    """
    from dqnfed_flwr.engine.export import export_run

    for path in export_run(run, to or run):
        typer.echo(str(path))
