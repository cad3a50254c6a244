"""Vector clocks over the streams of all ranks: what is certain to have happened before what."""

from collections.abc import Hashable, Mapping

Clock = Mapping[Hashable, int]


class Clocks:
    """A clock per agent: how much of what each other agent did is known to be over.

    (Lamport 1978; Mattern 1989, "Virtual time and global states of distributed systems".)
    """

    def __init__(self) -> None:
        self._of: dict[Hashable, dict[Hashable, int]] = {}

    def tick(self, agent: Hashable) -> int:
        """The number of what the agent does next."""
        own = self._of.setdefault(agent, {})
        own[agent] = own.get(agent, 0) + 1
        return own[agent]

    def seen(self, agent: Hashable) -> Clock:
        """All that is over for the agent now, for `join`."""
        return dict(self._of.setdefault(agent, {}))

    def join(self, agent: Hashable, clock: Clock) -> None:
        """What is over in `clock` is over for the agent too."""
        own = self._of.setdefault(agent, {})
        for other, number in clock.items():
            own[other] = max(own.get(other, 0), number)

    def is_over(self, other: Hashable, number: int, agent: Hashable) -> bool:
        """Whether the `number`-th thing that `other` did happened before what the agent does now."""
        return self._of.setdefault(agent, {}).get(other, 0) >= number
