"""What of the ladder can be run: every stage with each of its variants."""

from collections.abc import Iterable
from dataclasses import dataclass

from flashcore_numba.stages.stage import Stage


@dataclass(frozen=True)
class Run:
    """One stage, or one variant of it. `variant` is None where the stage has no variants."""

    stage: Stage
    variant: str | None

    @property
    def is_default(self) -> bool:
        """Whether this is what the stage runs when no variant is named."""
        return self.variant in (None, self.stage.default_variant)

    @property
    def label(self) -> str:
        if self.is_default:
            return self.stage.label
        variant = str(self.variant)
        if variant.isdigit() or self.stage.number is None:  # needs the stage's name beside it
            return f"{self.stage.label} {variant}"
        return f"{self.stage.number:02d} {variant}"

    @property
    def unit(self) -> str:
        """The unit that does the multiply-adds: CUDA cores in float32, or tensor cores."""
        return self.stage.kernels.unit


def runs(stages: Iterable[Stage]) -> list[Run]:
    """Every stage with each of its variants, in ladder order, the default variant last."""
    found = []
    for stage in stages:
        of_stage = [Run(stage, variant) for variant in stage.variants or (None,)]
        found += sorted(of_stage, key=lambda run: run.is_default)
    return found
