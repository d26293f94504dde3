"""Where an experiment begins, and who works against it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dqnfed_flwr.config._group import Group, Numbers
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from dqnfed_flwr.config.settings import Settings

AttackKind = Literal["none", "random", "enlarged", "zero"]


class StartSettings(Group):
    """The model that round 1 begins at."""

    model: str = Field(
        "",
        description="file to begin from, on the server: a run's model.npz, or .safetensors; empty draws it from the "
        "seed",
    )
    epochs: int = Field(
        0, ge=0, description="epochs of SGD on the data of one client alone before round 1, 0 for none (in process)"
    )
    client: int = Field(0, ge=0, description="whose data these are")
    lr: float = Field(0.1, gt=0, description="learning rate of these epochs")
    batch_size: int = Field(50, ge=0, description="their mini-batch, 0 for the full batch")


class AttackSettings(Group):
    """Hostile clients, for experiments."""

    kind: AttackKind = Field("none", description="what hostile clients send for their row, see data.md (in process)")
    share: float = Field(0.2, gt=0, lt=1, description="share of the clients that is hostile, drawn from the seed")
    clients: Numbers = Field("", description="the hostile clients themselves, such as 2,5,8, in place of a draw")
    factor: float = Field(100.0, description="by what enlarged multiplies the row; below 0 it is turned round as well")

    @property
    def listed(self) -> tuple[int, ...]:
        """`clients` as numbers; empty where they are drawn.

        Raises
        ------
        ConfigError
            If a word is no whole number from 0, or stands twice.
        """
        words = [word.strip() for word in self.clients.split(",")] if self.clients else []
        if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
            raise ConfigError(
                f"attack.clients: found {self.clients!r}; give different whole numbers from 0, such as 2,5,8"
            )
        return tuple(int(word) for word in words)


def scenario_faults(settings: Settings) -> Iterator[str]:
    """What does not go together, each naming the key, what was found and what is allowed."""
    start, attack, clients = settings.start, settings.attack, settings.clients
    if start.epochs and start.client >= clients:
        yield f"start.client: found {start.client}; clients = {clients} allows 0..{clients - 1}"
    if attack.kind == "none":
        return
    try:
        listed = attack.listed
    except ConfigError as error:
        yield str(error)
        return
    if listed and max(listed) >= clients:
        yield f"attack.clients: found {max(listed)}; clients = {clients} allows 0..{clients - 1}"


def check_for_nodes(settings: Settings) -> None:
    """Refuse what only the in-process engine does, before a run of nodes begins.

    Raises
    ------
    ConfigError
        Naming each key, and what to do.
    """
    faults = []
    if settings.start.epochs:
        faults.append(
            f"start.epochs: found {settings.start.epochs}, but only the in-process engine reads a client's data; make "
            "the model with dqnfed run there, and name its model.npz as start.model"
        )
    if settings.attack.kind != "none":
        faults.append(
            f"attack.kind: found {settings.attack.kind!r}, but hostile clients are simulated by the in-process engine "
            "alone; use dqnfed run without --engine flower, or attack.kind none"
        )
    if faults:
        raise ConfigError("\n".join(faults))
