"""An optimizer over another one: its parameter groups are the base's own, so that schedulers see them."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from spidersilk.variance.saving import Saves

CHANGED = (
    "the trainable parameters changed after the first anchor (added, frozen or unfrozen, or moved to another device or "
    "dtype): v and M do not follow, so make a new optimizer"
)


class OverBase(Saves):
    """Its parameter groups are those of `base`, as soon as there is one."""

    base: Optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's own, also after the base has loaded a state."""
        return self.base.param_groups if hasattr(self, "base") else self._given

    @param_groups.setter
    def param_groups(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, groups: list[dict[str, Any]]
    ) -> None:
        if hasattr(self, "base"):
            self.base.param_groups = groups
        else:
            self._given = groups  # torch's constructor fills a list of its own


class OverGivenBase(OverBase):
    """Over a base that was made before; groups can be added until it `is_built`."""

    is_built = False

    def __init__(self, base: Optimizer):
        super().__init__(base.param_groups, {})
        self.base = base
        self.defaults = base.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not hasattr(self, "base"):  # torch's constructor registers the base's own groups through this method
            super().add_param_group(param_group)
        elif self.is_built:
            raise RuntimeError(CHANGED)
        else:
            self.base.add_param_group(param_group)
