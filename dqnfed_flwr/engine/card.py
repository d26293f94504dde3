"""The card of a model: data, training, fairness, who took part, versions."""

from __future__ import annotations

from collections import Counter

from dqnfed_flwr.engine.ending import early_end, held_up
from dqnfed_flwr.engine.result import RunResult

FIGURES = {
    "mean": "mean over clients",
    "std": "standard deviation over clients",
    "worst": "worst client",
    "worst10": "mean of the lowest 10 %",
    "best10": "mean of the highest 10 %",
    "jain": "Jain's index (1: all equal)",
}
"""Of `fairness_report`, those on the card; accuracies lie in [0, 1]."""
NAMED = 20
"""Most clients whose numbers stand in a line."""
LOADING = """```text
from safetensors.torch import load_file    # weights by name, for a module of your own
weights = load_file("model.safetensors")

import torch                               # or the whole program, without any code of the training
model = torch.export.load("model.pt2").module()
logits = model(batch)
```"""


def card_of(result: RunResult, parameters: int) -> str:
    """The card in Markdown; `parameters` is the number of the model's values."""
    settings = result.settings
    sections = {
        "Model": f"{_model(result, parameters)}\n\n{LOADING}",
        "Data": _data(result),
        "Training": _training(result),
        "Fairness": _fairness(result),
        "Clients": _clients(result),
        "Versions": "\n".join(f"- {name} {text}" for name, text in result.versions.items()),
        "Licence": "Not stated: for whoever passes the model on. It depends on the data that it was trained on.",
        "Use and limits": "Not stated: for whoever passes the model on to say what it is for, and what not.",
        "Settings": _changed(result),
    }
    head = f"# {settings.model} trained with {settings.title}"
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections.items())]) + "\n"


def _training(result: RunResult) -> str:
    settings, moved = result.settings, result.totals.moved
    lines = [
        f"- {settings.title}, step rule `{settings.rule}`, local work `{settings.local.work}`",
        f"- {len(result.events)} rounds, of which {moved} moved the model; ended as `{result.status}`; seed "
        f"{settings.seed}, {settings.dtype}",
        f"- {result.exchanges} exchanges, {result.bytes_up + result.bytes_down:,} bytes in all",
    ]
    if words := early_end(result):
        lines.append(f"- {words}")
    return "\n".join(lines)


def _model(result: RunResult, parameters: int) -> str:
    form = result.form
    shape = (
        f"; input {list(form.input_shape)} ({form.input_kind or 'samples'}), {form.num_classes} classes" if form else ""
    )
    values = " Images are scaled from 0..255 to [-1, 1]." if form and form.input_kind == "images" else ""
    return f"`{result.settings.model}`, {parameters:,} parameters{shape}.{values}"


def _data(result: RunResult) -> str:
    settings = result.settings
    split = {key: value for key, value in settings.flat().items() if key.startswith("split.")}
    words = ", ".join(f"`{key}` {value}" for key, value in split.items() if value != "")
    return (
        f"`{settings.data}`, partition `{settings.partition}` over {settings.clients} clients, participation "
        f"{settings.participation:g} ({words}). The server saw gradients and figures, no samples."
    )


def _fairness(result: RunResult) -> str:
    final = result.final
    lines = ["| test accuracy | value |", "|---|---|"]
    lines += [f"| {title} | {final[key]:.4f} |" for key, title in FIGURES.items() if key in final]
    totals = result.totals
    lines += [f"| rounds that moved the model | {totals.moved} of {totals.rounds} |"]
    if totals.judged:
        lines += [f"| every participant improved | {totals.improved} of {totals.judged} rounds that moved the model |"]
        lines += [f"| mean share of participants that improved, over these | {totals.improved_ratio:.4f} |"]
        lines += [f"| mean share of participants not harmed, over these | {totals.unharmed_ratio:.4f} |"]
    if totals.rounds:
        lines += [f"| clients heard of those asked, mean | {totals.heard:.1f} of {totals.asked:.1f} |"]
        lines += [f"| votes overruled | {sum(totals.overruled.values())} |"]
    return "\n".join(lines) + (
        "\n\nA participant improved where its training loss did not rise, and was not harmed where it improved or its "
        f"loss stayed below the entitlement (`guarantee.entitlement` {result.settings.guarantee.entitlement}). "
        "Participants are those of a round: clients that were left out of it have no part in it."
    )


def _clients(result: RunResult) -> str:
    joined = sorted({client for event in result.events for client in event.participants})
    lines = [f"- took part: {len(joined)} of {result.settings.clients} ({_named(joined)})"]
    drops = Counter((drop.reason, drop.client) for event in result.events for drop in event.dropped)
    for reason in sorted({reason for reason, _ in drops}):
        clients = sorted(client for found, client in drops if found == reason)
        times = sum(count for (found, _), count in drops.items() if found == reason)
        lines.append(f"- left out, `{reason}`: {times} times, clients {_named(clients)}")
    if overruled := result.totals.overruled:
        lines.append(f"- overruled: {sum(overruled.values())} times, clients {_named(list(overruled))}")
    if words := held_up(result.totals):
        lines.append(f"- held up the others by refusing steps: {words}")
    if missing := result.settings.clients - len(result.joined):
        lines.append(f"- gave neither a gradient nor an accuracy: {missing} of {result.settings.clients}")
    lines += [f"- left out at the end, {who}: {why}" for who, why in list(result.left_out.items())[:NAMED]]
    if not drops and not missing and not result.left_out:
        lines.append("- nobody was left out of a round")
    return "\n".join(lines)


def _named(clients: list[int]) -> str:
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return ", ".join(map(str, clients[:NAMED])) + more


def _changed(result: RunResult) -> str:
    defaults = type(result.settings)().flat()
    changed = {key: value for key, value in result.settings.flat().items() if value != defaults[key]}
    hidden = ("output", "metrics", "resume")
    lines = [f"- `{key}`: {value}" for key, value in changed.items() if key not in hidden]
    return "\n".join(lines) or "All defaults."
