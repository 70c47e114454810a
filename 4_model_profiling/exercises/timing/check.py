"""Are the times those of the device, without the warm-up, and is the training as fast as before?

The device and its host share a clock that only goes on when one of them works.
"""

from collections.abc import Callable
from types import ModuleType

STEPS, WARMUP = 20, 2
MS = {"forward": (2, 10), "backward": (2, 20), "optimizer": (5, 3)}  # of the host, of the device


class Mark:
    """A place in the queue."""

    def __init__(self, comes: float) -> None:
        self.comes = comes


class Device:
    """Works through what the host puts into its queue."""

    def __init__(self) -> None:
        self.host, self.free = 0.0, 0.2  # there is something in the queue already
        self.waits = self.marks = 0
        self.ran: list[str] = []

    def run(self, name: str) -> None:
        """A part of a step; the first steps take longer."""
        times = self.ran.count(name)
        host, work = (ms / 1e3 for ms in MS[name])
        self.ran.append(name)
        self.host += host + 0.3 * (name == "forward" and not times)  # it is compiled
        self.free = max(self.free, self.host) + work * (4 if times < WARMUP else 1)

    def now(self) -> float:
        return self.host

    def mark(self) -> Mark:
        self.marks += 1
        return Mark(max(self.host, self.free))

    def synchronize(self) -> None:
        self.waits += 1
        self.host = max(self.host, self.free)

    def seconds(self, start: Mark, end: Mark) -> float:
        assert max(start.comes, end.comes) <= self.host, (
            "the mark has not come yet: the device is still working on what is before it"
        )
        return end.comes - start.comes


def parts_of(device: Device) -> dict[str, Callable[[], None]]:
    return {name: lambda name=name: device.run(name) for name in MS}


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    device, alone, right = Device(), Device(), WARMUP + STEPS
    found = answer.seconds_of_parts(device, parts_of(device), STEPS, WARMUP)
    for name in MS:
        times = device.ran.count(name)
        assert times == right, f"{name} runs {times} times, and not {right}"
    assert device.ran == list(MS) * right, (
        f"the parts run as {', '.join(device.ran[:4])}...: that is no training"
    )
    assert set(found) == set(MS), f"there are times of {', '.join(found)}; parts: {', '.join(MS)}"
    for name in device.ran:  # nobody looks
        alone.run(name)
    slower = device.free - alone.free
    a_step = sum(host for host, _ in MS.values()) / 1e3
    usual = sum(work for _, work in MS.values())
    assert slower <= 2 * a_step + 1e-9, (  # to wait once before and once after costs no more
        f"a step takes {usual + slower / right * 1e3:.1f} ms while you look, and {usual:.1f} ms "
        f"otherwise: you wait {device.waits} times, and each time the queue runs empty"
    )
    ms = [found[name] * 1e3 for name in MS]
    works = [work for _, work in MS.values()]
    why = "is the warm-up in it?" if sum(ms) > usual else "where is the rest?"
    if not device.marks:
        why = "the host's clock sees how long it takes to fill the queue"
    assert all(abs(one - work) <= 0.05 * work for one, work in zip(ms, works, strict=True)), (
        f"{', '.join(MS)}: {', '.join(f'{one:.1f}' for one in ms)} ms; the device works "
        f"{', '.join(f'{work:.1f}' for work in works)}: {why}"
    )
