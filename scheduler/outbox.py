"""What the scheduler decided to say: messages to peers, and actors that the supervisor should end."""

from pomona.runtime.control import ActorName, Kill
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import Message


class Outbox:
    """Collects in order; the actor empties it after each turn of its loop."""

    def __init__(self) -> None:
        self._messages: list[tuple[Peer, Message]] = []
        self._kills: list[Kill] = []

    def send(self, peer: Peer, message: Message) -> None:
        self._messages.append((peer, message))

    def kill(self, peer: Peer, reason: str) -> None:
        self._kills.append(Kill(ActorName(peer.name), peer.incarnation, reason))

    def take_messages(self) -> list[tuple[Peer, Message]]:
        """The messages since the last call, in order."""
        taken, self._messages = self._messages, []
        return taken

    def take_kills(self) -> list[Kill]:
        taken, self._kills = self._kills, []
        return taken
