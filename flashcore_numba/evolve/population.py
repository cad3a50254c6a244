"""Which candidate is changed next: the elite of an island, or any of its cells. A seed repeats it."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from openevolve.config import DatabaseConfig
from openevolve.database import Program, ProgramDatabase
from openevolve.population import (
    ArchiveDecision,
    MigrationMove,
    PopulationSnapshot,
    PopulationStrategy,
    ProgramState,
)

EXPLOIT = 0.7  # the share of parents that are of the elite; the others are of any cell of the island

Admit = Callable[[PopulationSnapshot, ProgramState, int], bool]


class Population(ProgramDatabase):
    """Islands with a grid of cells each (MAP-Elites, Mouret and Clune 2015), as openevolve keeps them.

    It draws from sets of random names, so this class draws instead: from lists in the order of birth, by
    `seed` and the number of the proposal. Two searches with one seed choose the same parents.
    """

    def __init__(
        self,
        config: DatabaseConfig,
        admit: Admit,
        ranges: Mapping[str, float],
        elite: int,
        seed: int,
        first: int,
    ) -> None:
        """`ranges` has the upper end of each axis, whose lower end is 0. openevolve would take the extremes
        seen so far, and a cell would be another one after each candidate.
        """
        hooks = PopulationStrategy(admit=admit, migrate=self._moves, archive=self._keep)
        super().__init__(config, hooks)
        self.feature_stats = {name: {"min": 0.0, "max": high, "values": []} for name, high in ranges.items()}
        self.elite, self.seed, self.number = elite, seed, first

    def sample_from_island(
        self, island_id: int, num_inspirations: int | None = None
    ) -> tuple[Program, list[Program]]:
        """A parent, and others of the island's elite."""
        rng = random.Random(f"{self.seed}:{self.number}")
        self.number += 1
        elite = self._elite(island_id)
        cells = [self.programs[name] for name in self.island_feature_maps[island_id].values()]
        parent = rng.choice(elite if rng.random() < EXPLOIT else cells)
        return parent, [each for each in elite if each is not parent][: num_inspirations or 0]

    def _elite(self, island: int) -> list[Program]:
        """The best of an island: the fittest, of equals the first."""
        own = [program for program in self.programs.values() if program.metadata["island"] == island]
        return sorted(own, key=lambda program: -program.metrics["combined_score"])[: self.elite]

    def _keep(self, snapshot: PopulationSnapshot, candidate: ProgramState) -> ArchiveDecision:
        """The elite of each island stays, also where a better candidate has taken its cell."""
        own = [
            each
            for name, each in snapshot.programs.items()
            if name in snapshot.archive and each.metadata["island"] == candidate.metadata["island"]
        ]
        if len(own) < self.elite:
            return ArchiveDecision(True)
        *_, worst = sorted(own, key=lambda each: -each.metrics["combined_score"])
        better = candidate.metrics["combined_score"] > worst.metrics["combined_score"]
        return ArchiveDecision(better, worst.id if better else None)

    def _moves(self, snapshot: PopulationSnapshot) -> list[MigrationMove]:
        """The best of each island goes to the next one."""
        moves = []
        for island in range(len(self.islands)):
            best = next(iter(self._elite(island)), None)
            target = (island + 1) % len(self.islands)
            if best is not None and best.id in self.islands[island]:
                moves.append(MigrationMove(best.id, target))
        return moves


def program(name: str, region: str, metrics: Mapping[str, float], parent: str | None, language: str) -> Any:
    """A candidate as openevolve keeps it."""
    return Program(id=name, code=region, language=language, parent_id=parent, metrics=dict(metrics))
