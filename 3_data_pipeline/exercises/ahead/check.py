"""Are the next n batches under way, none after them, and is nothing left behind?

Nothing here is timed: loads wait for one another, and the check for what they do. What does not
happen is waited for a number of times: a machine that is slow for a while costs one of them.
"""

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import thread as pools
from functools import partial
from types import ModuleType
from typing import Any

N, BATCHES = 3, 12
PATIENCE = 40  # so often it is looked whether something has happened
PAUSE = 0.05  # seconds at most in between


class LoadError(Exception):
    """What ``load`` raises."""


class Work:
    """Loads and a sampler that know what happens when.

    Loads 1 to N wait until all of them are under way. Then the last one ends first.
    """

    def __init__(self, broken: int | None = None) -> None:
        self.broken, self.taken, self.asked = broken, 0, 1
        self.started: list[int] = []
        self.ended: set[int] = set()
        self.too_early: list[tuple[int, int]] = []  # a batch, and the one that the model used
        self.trainer: threading.Thread | None = None
        self.patient = True
        self.changed = threading.Condition()

    def batches(self) -> Iterator[list[int]]:
        for number in range(BATCHES):
            self.taken += 1
            yield [2 * number, 2 * number + 1]

    def wait_for(self, event: Callable[[], bool], times: int = 1) -> None:
        """Nobody waits any more once something has not happened."""

        def enough() -> bool:
            return event() or not self.patient

        with self.changed:
            if not any(self.changed.wait_for(enough, PAUSE) for _ in range(times * PATIENCE)):
                self.patient = False
                self.changed.notify_all()

    def load(self, batch: list[int]) -> int:
        number = batch[0] // 2
        assert threading.current_thread() is not self.trainer, (
            f"batch {number} is loaded by the thread that trains: the model waits for it"
        )
        with self.changed:
            self.started.append(number)
            if number >= self.asked + N:
                self.too_early.append((number, self.asked - 1))
            self.changed.notify_all()
        if 0 < number <= N:
            self.wait_for(lambda: self.under_way(0) == N, times=2)
            self.wait_for(lambda: number == N or number + 1 in self.ended, times=2)
        with self.changed:
            self.ended.add(number)
            self.changed.notify_all()
        if number == self.broken:
            raise LoadError
        return number

    def under_way(self, used: int) -> int:
        """How many of the N batches after ``used`` have been started."""
        return len({number for number in self.started if used < number <= used + N})

    def next(self, coming: Iterator[Any]) -> int:
        """What the model gets when it asks for a batch."""
        found = next(coming)
        right = self.asked - 1
        what = f"batch {found}" if isinstance(found, int) else f"a {type(found).__name__}"
        assert found == right, f"{what} comes, and not batch {right}"
        return right

    def ask(self) -> None:
        with self.changed:
            self.asked += 1


def use(work: Work, coming: Iterator[Any]) -> None:
    """Go through an epoch, and look around at two of its batches."""
    for number in range(BATCHES):
        try:
            work.next(coming)
        except StopIteration:
            raise AssertionError(f"{number} of {BATCHES} batches come") from None
        if number in (0, 5):
            work.wait_for(lambda used=number: work.under_way(used) == N)
            found = work.under_way(number)
            assert found == N, (
                f"while the model uses batch {number}, {found} of the next {N} are under way"
            )
            wanted = set(range(number + N + 1))
            work.wait_for(lambda wanted=wanted: wanted <= work.ended)
            with work.changed:
                work.changed.wait_for(lambda: bool(work.too_early), 2 * PAUSE)
            if work.too_early:
                early, used = work.too_early[0]
                raise AssertionError(
                    f"batch {early} is loaded while the model uses batch {used}, {early - used} "
                    f"ahead and not {N}: if the model is slow, the memory fills up"
                )
            assert work.taken < BATCHES, (
                f"all {BATCHES} batches are taken from the sampler while the model uses batch 0: "
                "one without an end would never begin"
            )
        work.ask()
    rest = list(coming)
    assert not rest, f"after the last batch {len(rest)} more come"


def stop_early(work: Work, coming: Iterator[Any]) -> None:
    """Use two batches, and no more."""
    for _ in range(2):
        work.next(coming)
        work.ask()
    getattr(coming, "close", lambda: None)()


def meet_the_error(work: Work, coming: Iterator[Any]) -> None:
    """A batch cannot be loaded."""
    got = 0
    try:
        for _ in coming:
            got += 1
            if got + N > work.broken:  # it is known by now, and it is not its turn
                work.wait_for(lambda: work.broken in work.ended)
            work.ask()
    except LoadError:
        assert got == work.broken, (
            f"batch {work.broken} cannot be loaded, and the error comes after {got} batches, in "
            f"place of batch {got}"
        )
    else:
        raise AssertionError(
            f"batch {work.broken} cannot be loaded, and its error never comes: {got} of {BATCHES} "
            "batches come, and the training goes on"
        )


def still_there(threads: Iterable[threading.Thread], times: int = 1) -> int:
    """How many threads do not end, as long as one may wait for them."""
    alive = list(threads)
    for _ in range(times * PATIENCE):
        alive = [thread for thread in alive if thread.is_alive()]
        if alive:
            alive[0].join(PAUSE)
    return len(alive)


def in_a_thread(work: Callable[[], None]) -> None:
    """Do something that may never end, and whose threads must not keep this process alive."""
    raised: list[BaseException] = []

    def catch() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=catch, daemon=True)  # and so are the threads that it begins
    thread.start()
    assert not still_there([thread], times=4), "the model asks for a batch, and nothing ever comes"
    if raised:
        raise raised.pop()


def run(answer: ModuleType, work: Work, do: Callable[[Work, Iterator[Any]], None]) -> None:
    work.trainer = threading.current_thread()
    do(work, iter(answer.ahead(work.load, work.batches(), N)))


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    cases = {
        "the epoch is over": (use, None),
        "the model stops after 2 batches": (stop_early, None),
        "a batch could not be loaded": (meet_the_error, 6),
    }
    for what, (do, broken) in cases.items():
        before = set(threading.enumerate())
        work = Work(broken)
        try:
            in_a_thread(partial(run, answer, work, do))
            gc.collect()
            alive = still_there(set(threading.enumerate()) - before)
            assert not alive, f"{what}, and {alive} threads are still there: each epoch adds some"
        finally:
            for thread in set(threading.enumerate()) - before:
                pools._threads_queues.pop(thread, None)  # one that is stuck: do not wait at exit
    few = list(answer.ahead(lambda batch: batch[0], iter([[0, 1], [2, 3]]), N))
    assert few == [0, 2], f"of 2 batches, fewer than {N}, {len(few)} come"
    none = list(answer.ahead(lambda batch: batch[0], iter([]), N))
    assert none == [], f"of no batches {len(none)} come"
