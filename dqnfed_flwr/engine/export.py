"""A finished run's model in forms that need no dqnfed-flwr to be read, with a card that says where it comes from."""

from __future__ import annotations

import math
import shutil
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.data.dataset import as_data_set
from dqnfed_flwr.data.dealing import only_classes
from dqnfed_flwr.data.own_folder import import_again
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.engine.notices import early_end, held_up, listed, one_line
from dqnfed_flwr.engine.result import RunResult, read_result
from dqnfed_flwr.engine.start import FROZEN, OWN, model_for
from dqnfed_flwr.errors import DataError, RunError, writing
from dqnfed_flwr.params import NOTHING_FROZEN, ParamSpec, count_reals, frozen_fingerprint, left_behind
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import adapted
from dqnfed_flwr.telemetry.events import TEST
from dqnfed_flwr.types import ACCURACY, Figure, decimals

if TYPE_CHECKING:
    from torch import nn

WEIGHTS, PROGRAM, CARD = "model.safetensors", "model.pt2", "MODEL_CARD.md"
ADAPTER, PEFT = "adapter.safetensors", "adapter"
SPREAD = {
    "mean": "mean over clients",
    "std": "standard deviation over clients",
    "worst": "worst client",
    "worst10": "mean of the {worst} 10 %",
    "best10": "mean of the {best} 10 %",
}
"""Of `fairness_report`, those on the card, in the unit of the figure; shares lie in [0, 1]."""
JAIN = "Jain's index (1: all equal)"
NAMED = 20
"""Most clients whose numbers stand in a line."""
LOADING = """from safetensors.torch import load_file    # weights by name, for a module of your own
weights = load_file("model.safetensors")
"""
LOADING_PROGRAM = """
import torch                               # or the whole program, without any code of the training
model = torch.export.load("model.pt2").module()
{outputs} = model(batch)
"""


def export_run(run: Path, target: Path) -> list[Path]:
    """Write `model.safetensors`, `model.pt2` and `MODEL_CARD.md` of a finished run to `target`; their paths.

    Of a model with a frozen part, `model.safetensors` is whole, with adapters merged; what was trained is written by
    itself, too. The form of the samples of a user's task is not known here, so there is no `model.pt2` of its model.

    `run` is its output directory; `target` is made if it is not there. `RunError` if the run is not finished,
    something is missing or cannot be written, or the model is built with another frozen part.
    """
    if find_spec("safetensors") is None:
        raise RunError("model.safetensors needs the package safetensors; install dqnfed-flwr[export]")
    result = read_result(run)
    module = trained_module(result)
    _check_frozen(module, result.form, run)
    _check_storable(module)
    program = None if result.form.input_kind == OWN else _program(module, result.form, result.settings)
    weights, card = target / WEIGHTS, target / CARD
    with writing(target, "; name another folder"):
        target.mkdir(parents=True, exist_ok=True)
        adapter = _write_adapter(module, result.form, target)
        whole = task_of(result.settings).merged(module)
        missing = left_behind(whole)
        _write_weights(whole, missing, result, weights)
        if program is not None:
            _save(program, target / PROGRAM)
        card.write_text(card_of(result, count_reals(whole), missing), "utf-8")
        for path in (weights, *(path for path in adapter if path.is_file())):
            shutil.copymode(card, path)  # safetensors makes files that only their owner can read
    return [weights, *adapter, *([target / PROGRAM] if program is not None else []), card]


def trained_module(result: RunResult) -> nn.Module:
    """The run's model, in evaluation mode."""
    import_again(result.settings, result.modules)
    module = model_for(result.settings, result.form)
    spec = ParamSpec.of(module)
    spec.unflatten(torch.from_numpy(np.array(result.theta)), module)
    spec.write_buffers({name: torch.from_numpy(np.array(value)) for name, value in result.buffers.items()}, module)
    return module.eval()


def _check_frozen(module: nn.Module, form: Form, run: Path) -> None:
    """Refuse a module whose frozen part is not that of the run: `RunError`."""
    if form.frozen and frozen_fingerprint(module) != form.frozen:
        raise RunError(
            f"{run}: the model is built here with other frozen parameters than on the nodes; put the weights that it "
            "was fine-tuned from in their place"
        )


def _check_storable(module: nn.Module) -> None:
    """Refuse a module with values that safetensors has no dtype for: `RunError`."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    if wide := [name for name, tensor in tensors if tensor.dtype is torch.complex128]:
        raise RunError(
            f"{wide[0]} is complex128, which safetensors has no name for; train with dtype float32, or take the "
            "weights from model.npz"
        )


def _write_adapter(module: nn.Module, form: Form, target: Path) -> list[Path]:
    """Write what was trained of a module with frozen parameters; the paths, none where all was trained.

    `adapter.safetensors` holds trained parameters and buffers by the module's own names, and the setting `start.model`
    takes it. Models of `peft` are saved to the folder `adapter` too, as `PeftModel.from_pretrained` reads them.
    """
    from safetensors.torch import save_file

    if all(parameter.requires_grad for parameter in module.parameters()):
        return []
    spec = ParamSpec.of(module)
    trained = {**spec.split(spec.flatten(module)), **spec.read_buffers(module)}
    path = target / ADAPTER
    save_file({name: value.clone() for name, value in trained.items()}, path, {"format": "pt", FROZEN: form.frozen})
    folders = []
    for name, part in adapted(module):
        folders.append(target / PEFT / name if name else target / PEFT)
        part.save_pretrained(str(folders[-1]))
    return [path, *folders]


def _write_weights(module: nn.Module, missing: Sequence[str], result: RunResult, path: Path) -> None:
    from safetensors.torch import save_model

    cast(Any, module).register_state_dict_post_hook(partial(_without, missing))
    about = {"format": "pt", "model": result.settings.model, "method": result.settings.method}
    save_model(module, str(path), metadata=about | {f"version {name}": text for name, text in result.versions.items()})


def _without(names: Sequence[str], module: nn.Module, state: dict[str, Any], prefix: str, about: object) -> None:
    """A hook of torch's `state_dict`: the entries `names` of the whole module are not in it."""
    del module, prefix, about
    for name in names:
        state.pop(name, None)


def _save(program: torch.export.ExportedProgram, path: Path) -> None:
    try:
        torch.export.save(program, path)
    except OSError:
        raise
    except Exception as error:  # such as tensors that are sparse
        path.unlink(missing_ok=True)
        raise RunError(f"{path.name}: torch cannot save it ({error}); take the weights from model.npz") from error


def _program(module: nn.Module, form: Form, settings: Settings) -> torch.export.ExportedProgram:
    """The traced module: a batch of any size [N, *input_shape] to its outputs [N, ...], or a `RunError`."""
    dtype = torch.int64 if form.input_kind == "tokens" else DTYPES[settings.dtype]
    example = torch.zeros((2, *form.input_shape), dtype=dtype)  # a batch of one would be taken for a fixed size
    batch = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings():
        # torch's own LSTM puts its flat weights together anew while it is traced.
        warnings.filterwarnings("ignore", message="The tensor attributes")
        try:
            return torch.export.export(module, (example,), dynamic_shapes=batch)
        except Exception as error:  # whatever the tracer makes of layers of the user's own
            first = str(error).strip().partition("\n")[0]
            raise RunError(
                f"{PROGRAM}: torch cannot trace {type(module).__name__} ({type(error).__name__}: {first}); write its "
                "forward without branches on values, or take the weights from model.npz"
            ) from error


def card_of(result: RunResult, parameters: int, missing: Sequence[str] = ()) -> str:
    """The card in Markdown; `parameters` is the number of the model's values, `missing` what no file holds."""
    settings = result.settings
    sections = {
        "Model": f"{_model(result, parameters)}{_missing(missing)}\n\n{_loading(result)}",
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
    settings, plan, sent = result.settings, resolve(result.settings), result.bytes_up + result.bytes_down
    lines = [
        f"- {settings.title}, step rule `{plan.rule.name}`, local work `{settings.local.work}`",
        f"- {len(result.events)} rounds, of which {result.totals.moved} moved the model; ended as `{result.status}`; "
        f"seed {settings.seed}, {settings.dtype}",
        f"- {result.exchanges} exchanges, {sent:,} bytes in all; {plan.rounded or 'whole messages'}",
    ]
    if words := early_end(result):
        lines.append(f"- {words}")
    return "\n".join(lines)


def _loading(result: RunResult) -> str:
    own = result.form.input_kind == OWN
    program = "" if own else LOADING_PROGRAM.format(outputs=_outputs(result)[0])
    return f"```text\n{LOADING}{program}```"


def _model(result: RunResult, parameters: int) -> str:
    form = result.form
    shape = f"; input {list(form.input_shape)} ({form.input_kind or 'samples'}), {_counted(form, result)}"
    values = " Images are scaled from 0..255 to [-1, 1]." if form.input_kind == "images" else ""
    trained = ""
    if form.frozen not in ("", NOTHING_FROZEN):
        trained = f" {form.dim:,} values were trained, beside a frozen part with fingerprint `{form.frozen}`."
    if result.settings.data_scale == "standardise":
        values += " Features are standardised, by each client's mean and deviation in its own training part."
    named = "".join(f"\n- {label}: {name}" for label, name in enumerate(_class_names(result)))
    return f"`{result.settings.model}`, {parameters:,} parameters{shape}.{trained}{values}" + (
        f"\n\nClasses:\n{named}" if named else ""
    )


def _missing(names: Sequence[str]) -> str:
    if not names:
        return ""
    some = ", ".join(f"`{name}`" for name in names[:NAMED]) + (" and more" if len(names) > NAMED else "")
    return (
        f"\n\nNot in `{WEIGHTS}`, which holds parameters and buffers alone: {some}. A module that is built anew has "
        "its own."
    )


def _class_names(result: RunResult) -> list[str]:
    """Names of the classes, where the data that the run was trained on lie here and have names."""
    settings, source = result.settings, source_of(result.settings.data)
    if not (source.is_decoded or source.kind == "archive"):  # others have none, and may have to be fetched
        return []
    try:
        if result.provenance.fingerprint is None or source.fingerprint() != result.provenance.fingerprint:
            return []
        data = only_classes(as_data_set(source.arrays(), source.name), settings.split.only_classes)
    except DataError:
        return []
    fits = data.class_names is None or len(data.class_names) == result.form.num_classes
    return data.class_names.tolist() if data.class_names is not None and fits else []


def _outputs(result: RunResult) -> tuple[str, str]:
    """What the model gives, and what it gives one of: by the name of the task, for a card needs no code of a task."""
    return {
        "classification": ("logits", "classes"),
        "multi-label": ("logits", "flags"),
        "segmentation": ("logits", "classes"),
        "next-token": ("logits", "classes"),
    }.get(result.settings.task, ("outputs", "outputs"))


def _counted(form: Form, result: RunResult) -> str:
    word = _outputs(result)[1]
    return f"{form.num_classes} {word if form.num_classes > 1 else word.rstrip('s')}"


def _data(result: RunResult) -> str:
    settings = result.settings
    split = {key: value for key, value in settings.flat().items() if key.startswith("split.") and value != ""}
    words = ", ".join(f"`{key}` {value}" for key, value in split.items())
    return (
        f"`{settings.data}`, partition `{settings.partition}` over {settings.clients} clients, participation "
        f"{settings.participation:g} ({words}). The server saw gradients and figures, no samples."
    )


def _fairness(result: RunResult) -> str:
    final, totals = result.final, result.totals
    lines = [f"| test {_escaped(result.figure.name)} | value |", "|---|---|", *_spread(final, result.figure)]
    lines += [f"| rounds that moved the model | {totals.moved} of {totals.rounds} |"]
    if totals.judged:
        lines += [f"| every client asked improved | {totals.improved} of {totals.judged} rounds that moved the model |"]
        lines += [f"| mean share of the clients asked that improved, over these | {totals.improved_of_asked:.4f} |"]
        lines += [f"| mean share of participants not harmed, over these | {totals.unharmed_ratio:.4f} |"]
    lines += [f"| confirmed | {result.confirmed.words} |"] if result.confirmed else []
    lines += [f"| differential privacy of a record | {totals.privacy.words} |"] if totals.privacy else []
    if without := result.without_figure.get(TEST):
        lines += [f"| evaluated, but without a figure | {len(without)} clients ({listed(without, NAMED)}) |"]
    if totals.rounds:
        lines += [f"| clients heard of those asked, mean | {totals.heard:.1f} of {totals.asked:.1f} |"]
        lines += [f"| votes overruled | {sum(totals.overruled.values())} |"]
    return "\n".join(lines) + (
        "\n\nA participant improved where its training loss did not rise, and was not harmed where it improved or its "
        f"loss stayed below the entitlement (`guarantee.entitlement` {result.settings.guarantee.entitlement}). "
        "Participants are those of a round: clients that were left out of it have no part in it."
    )


def _spread(final: Mapping[str, float], figure: Figure) -> list[str]:
    """Rows of the clients' figures."""
    lowest, highest = ("lowest", "highest") if figure.higher else ("highest", "lowest")
    digits = 4 if figure.percent else decimals(max((abs(final[key]) for key in SPREAD if key in final), default=1.0))
    titles = {key: title.format(worst=lowest, best=highest) for key, title in SPREAD.items()}
    lines = [f"| {title} | {final[key]:.{digits}f} |" for key, title in titles.items() if key in final]
    if not figure.higher:
        lines.append("| direction | less is better |")
    return lines + [f"| {JAIN} | {final['jain']:.4f} |"] * ("jain" in final and not math.isnan(final["jain"]))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _clients(result: RunResult) -> str:
    joined = sorted({client for event in result.events for client in event.participants})
    lines = [f"- took part: {len(joined)} of {result.settings.clients} ({listed(joined, NAMED)})"]
    drops = Counter((drop.reason, drop.client) for event in result.events for drop in event.dropped)
    for reason in sorted({reason for reason, _ in drops}):
        clients = sorted(client for found, client in drops if found == reason)
        times = sum(count for (found, _), count in drops.items() if found == reason)
        lines.append(f"- left out, `{reason}`: {times} times, clients {listed(clients, NAMED)}")
    if overruled := result.totals.overruled:
        lines.append(f"- overruled: {sum(overruled.values())} times, clients {listed(list(overruled), NAMED)}")
    if words := held_up(result.totals):
        lines.append(f"- held up the others by refusing steps: {words}")
    if missing := result.settings.clients - len(result.joined):
        nothing = "an accuracy" if result.figure == ACCURACY else "a figure"
        lines.append(f"- gave neither a gradient nor {nothing}: {missing} of {result.settings.clients}")
    lines += [f"- left out at the end, {who}: {one_line(why)}" for who, why in list(result.left_out.items())[:NAMED]]
    if not drops and not missing and not result.left_out:
        lines.append("- nobody was left out of a round")
    return "\n".join(lines)


def _changed(result: RunResult) -> str:
    defaults = type(result.settings)().flat()
    changed = {key: value for key, value in result.settings.flat().items() if value != defaults[key]}
    hidden = ("output", "metrics", "resume")
    lines = [f"- `{key}`: {value}" for key, value in changed.items() if key not in hidden]
    return "\n".join(lines) or "All defaults."
