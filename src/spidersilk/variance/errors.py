"""What goes wrong in a run, as distinct from a wrong argument."""

from __future__ import annotations


class DivergenceError(RuntimeError):
    """The estimate v is not finite. x is as it was before the step, and the next step must be an anchor.

    `step` counts updates from 0, `inner_step` those since the anchor; `norms` holds the Euclidean norms that were at
    hand; `theorem_1_lr` is the step size of Theorem 1 for the smoothness seen in this run, None if none was seen.
    """

    def __init__(
        self,
        step: int,
        inner_step: int,
        norms: dict[str, float],
        lr: list[float],
        step_times_smoothness: float,
        smoothness: float | None,
    ):
        self._arguments = (step, inner_step, norms, lr, step_times_smoothness, smoothness)
        self.step, self.inner_step, self.norms, self.lr = step, inner_step, norms, lr
        self.theorem_1_lr = step_times_smoothness / smoothness if smoothness else None
        where = "an anchor" if inner_step == 0 else f"small step {inner_step} after its anchor"
        sizes = ", ".join(f"|{name}| = {value:.3g}" for name, value in norms.items())
        theory = f"Theorem 1 allows lr <= {step_times_smoothness:.2g} / L"
        if smoothness:
            theory += f"; this run's secants give L >= {smoothness:.2g}, so lr <= {self.theorem_1_lr:.2g}"
        super().__init__(
            f"the estimate v is not finite at step {step} ({where}): {sizes}, lr = {', '.join(f'{x:g}' for x in lr)}. "
            f"{theory}. x is as it was: lower lr, shorten the inner loop (inner_steps='auto'), or let only the "
            "selected coordinates move, and go on with an anchor."
        )

    def __reduce__(self) -> tuple:
        return type(self), self._arguments  # so that it can cross to another process
