"""Roll-outs on a Ray cluster: workers play while the learner learns from what came before.

Each worker is a Ray actor with one core, and one request under way. The learner takes what is ready
first, and orders the next of whoever played it: nobody waits for the slowest, and a worker plays by
weights that are at most some rounds old. Workers whose process or machine is lost are made anew
elsewhere; what they had under way is played again, so that a run has as many decisions as without.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.rollouts import Experience, Orders, Rollouts, Share
from patchlight.emulation.simulator.executors.contract import ATTEMPTS, EngineFailure
from patchlight.emulation.simulator.ramp.scenario import Scenario

E_co = TypeVar("E_co", bound=Experience, covariant=True)


class MakeWorker(Protocol[E_co]):
    """A worker's class."""

    def __call__(
        self, config: Config, scenarios: Sequence[Scenario], share: Share, done: int, /
    ) -> Rollouts[E_co]:
        """The worker with this share, in a run that goes on after ``done`` decisions."""


class _Actor:
    """Holds a worker in a process of Ray."""

    def __init__(self, make: Callable[..., Rollouts[Any]], *arguments: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self._worker = make(*arguments)

    def play(self, orders: Orders) -> Any:
        return self._worker.play(orders)


class RayRollouts(Generic[E_co]):
    """``count`` workers on ``ray``, which is connected. ``EngineFailure`` if they die again and
    again without one of them having played.
    """

    def __init__(
        self,
        ray: Any,
        count: int,
        make: MakeWorker[E_co],
        config: Config,
        scenarios: Sequence[Scenario],
        done: int,
    ) -> None:
        self._ray, self.count = ray, count
        self._make, self._config, self._done = make, config, done
        for number in range(count):
            Share(number, count).num_envs(config)
        self._scenarios = ray.put(tuple(scenarios))
        self._class = ray.remote(_Actor).options(num_cpus=1, max_restarts=0)
        self._actors = [self._actor(Share(number, count)) for number in range(count)]
        self._lives = [0] * count
        self._idle = list(range(count))
        self._under_way: dict[Any, int] = {}
        self._died = 0

    def _actor(self, share: Share) -> Any:
        return self._class.remote(self._make, self._config, self._scenarios, share, self._done)

    def play(self, orders: Orders) -> E_co:
        """Orders the next of all who are idle; what the first who is ready has played."""
        ray, sent = self._ray, self._ray.put(orders)
        while True:
            for number in self._idle:
                self._under_way[self._actors[number].play.remote(sent)] = number
            self._idle = []
            ready, _ = ray.wait(list(self._under_way), num_returns=1)
            number = self._under_way.pop(ready[0])
            self._idle.append(number)
            try:
                found: E_co = ray.get(ready[0])
            except ray.exceptions.RayActorError as error:
                self._replace(number, error)
            except ray.exceptions.RayTaskError as error:
                # What the worker raised, as it would be raised here.
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ray.exceptions.RayError as error:
                # What it had played went with its machine.
                self._replace(number, error)
            else:
                self._died = 0
                return found

    def _replace(self, number: int, error: Exception) -> None:
        self._died += 1
        if self._died >= ATTEMPTS * self.count:
            raise EngineFailure(
                f"workers on Ray died {self._died} times without playing, at last with "
                f"{type(error).__name__}: {error}",
                hint="'ray status' and the log of its processes say more; the run's checkpoint "
                "is kept: go on with --resume",
            ) from error
        self._ray.kill(self._actors[number])
        self._lives[number] += 1
        self._actors[number] = self._actor(Share(number, self.count, self._lives[number]))

    def close(self) -> None:
        """End all workers."""
        for actor in self._actors:
            self._ray.kill(actor)
