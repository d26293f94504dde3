"""Which columns of a row belong to which layer, for methods that decide layer by layer."""

from __future__ import annotations

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import LayerMethod, Method
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.strategy.roster import Roster


def tell_layers(method: Method, settings: Settings, roster: Roster, dim: int) -> None:
    """Tell a `LayerMethod`, also one inside another, the layers of the model of D = `dim`; nothing for other methods.

    Raises
    ------
    ConfigError
        If `settings.model` is not the model that is trained.
    """
    layered = method.inner
    if not isinstance(layered, LayerMethod):
        return
    form = roster.form
    spec = ParamSpec.of(build_model(settings.model, form.input_shape, form.num_classes, seed=settings.seed))
    if spec.dim != dim:
        raise ConfigError(f"model: {settings.model} has {spec.dim} parameters, the model to be trained has {dim}")
    layered.layers, layered.head = spec.layers, spec.head
