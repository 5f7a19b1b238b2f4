"""Actors as Ray actors: Ray decides where they live and ends them, ZeroMQ carries their traffic.

The only module that imports Ray; it needs the extra `pomona[ray]`. The sockets of Pomona are ipc or loopback TCP, so
the actors run on this machine: placing them on others takes keys on the wire, which the mailbox does not have.
"""

from collections.abc import Mapping

import msgspec
import ray
import ray.exceptions

from pomona.runtime import host
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorName
from pomona.runtime.log import one_line
from pomona.runtime.placement import PlacementError, describe


class _Host:
    """What Ray runs: one blocking method, which Ray runs on the main thread of the actor's process."""

    def run(self, spec: bytes) -> int:
        return host.host(msgspec.msgpack.decode(spec, type=ActorSpec))


class RayHandle:
    """A Ray actor; it has ended when the result of its one call is there."""

    def __init__(self, name: ActorName, actor: "ray.actor.ActorHandle", result: "ray.ObjectRef") -> None:
        self.name = name
        self.pid: int | None = None
        self._actor = actor
        self._result = result

    def wait(self, timeout_s: float | None) -> str | None:
        done, _ = ray.wait([self._result], timeout=timeout_s)
        if not done:
            return None
        try:
            reason = describe(ray.get(self._result))
        except ray.exceptions.RayError as error:
            reason = one_line(error)
        # Ray would keep the process; its exit is what frees the memory.
        self.kill()
        return reason

    def kill(self) -> None:
        ray.kill(self._actor)


class RayPlacement:
    """Starts actors in the Ray cluster that this process is connected to, or in a new one on this machine.

    `resources` is what each actor asks for, such as `{"mlx": 1}`; Ray waits for ever for what no node offers. Restarts
    are the supervisor's, as with any placement. Ray ends the actors when this process goes away.
    """

    def __init__(self, resources: Mapping[str, float] | None = None) -> None:
        self._resources = dict(resources or {})
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=True)

    def start(self, spec: ActorSpec) -> RayHandle:
        if spec.inherit:
            raise PlacementError(f"{spec.name} inherits a listening socket, which Ray cannot pass on; place it locally")
        options: dict[str, object] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        if self._resources:
            options["resources"] = self._resources
        if spec.environment:
            options["runtime_env"] = {"env_vars": dict(spec.environment)}
        try:
            actor = ray.remote(**options)(_Host).remote()
            return RayHandle(spec.name, actor, actor.run.remote(msgspec.msgpack.encode(spec)))
        except ray.exceptions.RayError as error:
            raise PlacementError(f"cannot start {spec.name}: {one_line(error)}") from error
