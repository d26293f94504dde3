"""Names of the files in a run's output folder that others look for.

They stand alone, in a module that imports nothing, because programs that only look at a folder need not load torch.
"""

RUN = "run.json"
"""Settings, final figures and history; written last, so that it tells of a run that is at its end."""
MODEL = "model.npz"
"""Theta and buffers of the final model."""
EVENTS = "events.jsonl"
"""A line a round."""
CHECKPOINT = "checkpoint.npz"
"""What a run that was cut off goes on from; its long vectors lie beside it."""
PLOT = "plot.png"
"""Curves of the run, as `dqnfed run` draws them."""
