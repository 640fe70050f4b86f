"""Which faults strike what, and when."""

import random
from dataclasses import dataclass
from itertools import product

# moment -> the phase in which it falls (training/phases.py); "start" is before the engines are there
MOMENTS = {
    "start": None,
    "generation": "generate",
    "sync": "sync",
    "training": "forward_backward",
    "saving": "save",
}
# what is struck -> the layouts in which it is there
TARGETS = {
    "rank": ("colocate", "server", "two nodes"),
    "launcher": ("colocate", "server", "two nodes"),
    "server": ("server",),
    "node": ("two nodes",),
    "link": ("two nodes",),
}
FAULTS = {
    "rank": ("SIGKILL", "SIGTERM", "SIGSTOP"),
    "launcher": ("SIGKILL", "SIGTERM", "SIGSTOP"),
    "server": ("SIGKILL", "SIGTERM", "SIGSTOP"),
    "node": ("SIGKILL", "SIGSTOP"),
    "link": ("cut",),
}


@dataclass(frozen=True)
class Scenario:
    """One drill: in a run of this layout, this fault strikes that target at that moment."""

    layout: str  # colocate, server, two nodes
    target: str
    fault: str  # a signal's name, or cut
    moment: str

    def __str__(self) -> str:
        return f"{self.layout}: {self.fault} of the {self.target} during {self.moment}"

    @property
    def harmless(self) -> bool:
        """A launcher that is stopped, as Ctrl-Z does, is only not looking: the run goes on meanwhile, on several nodes for the
        half minute after which the others miss its word (launch/peers.py)."""
        return self.target == "launcher" and self.fault == "SIGSTOP"

    @property
    def in_order(self) -> bool:
        """SIGTERM asks the launcher to end the step, to save and to leave."""
        return self.target == "launcher" and self.fault == "SIGTERM" and self.moment != "start"


def every(layouts=("colocate", "server", "two nodes")) -> list[Scenario]:
    """All combinations there are, in one order."""
    return [
        Scenario(layout, target, fault, moment)
        for target in TARGETS
        for layout, fault, moment in product(TARGETS[target], FAULTS[target], MOMENTS)
        if layout in layouts
    ]


def sample(count: int, seed: int, layouts=("colocate", "server", "two nodes")) -> list[Scenario]:
    """`count` of them, every pair of target and fault as often as the others, as far as `count` allows."""
    generator = random.Random(seed)
    by_kind: dict[tuple, list[Scenario]] = {}
    for scenario in every(layouts):
        by_kind.setdefault((scenario.target, scenario.fault), []).append(scenario)
    for scenarios in by_kind.values():
        generator.shuffle(scenarios)
    chosen: list[Scenario] = []
    while len(chosen) < count and any(by_kind.values()):
        chosen += [scenarios.pop() for scenarios in by_kind.values() if scenarios]
    return chosen[:count]
