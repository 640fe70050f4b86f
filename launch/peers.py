"""The launchers of a run on several nodes look after each other while it goes on.

Each writes nodes/<number>.json into the run's folder every few seconds: that it is there, what it has to say of its server, and
at its end why. A launcher whose file has not changed for half a minute is taken for lost; clocks may differ, since only changes
count, by the reader's own clock. A cut between two nodes that leaves the shared storage reachable shows in datagrams between
them: whoever was heard that way once, and is no longer, is lost too. (Where a firewall passes none of them, such a cut
is found by the ranks' own time limit alone.)

Node 0 has the last word: the others wait for its verdict, and end with its exit code.
"""

import contextlib
import json
import os
import socket
import time

from launch.nodes import Place
from record import RunFolder

BEAT_SECONDS = 2
SILENT_SECONDS = 30
VERDICT_SECONDS = 60
_SIZE = 4096  # always whole and in place: NFS looks at a file again when it is opened, but may keep a renamed one for a minute


class Peers:
    """The other nodes of one run. `look` is called every fraction of a second, by the one thread there is."""

    def __init__(
        self, folder: RunFolder, place: Place, meeting: str, datagrams: socket.socket, wires: list[tuple[str, int]]
    ):
        """
        Args:
            meeting: a word that all nodes of this attempt have from node 0; files of an earlier one do not count.
            datagrams: this node's socket.
            wires: the addresses and ports of all nodes' sockets, by number.
        """
        self.place = place
        self._folder = folder.path / "nodes"
        self._folder.mkdir(exist_ok=True)
        self._meeting = meeting
        self._mine = {
            "meeting": meeting,
            "host": place.hosts[place.number],
            "beat": 0,
            "state": "running",
            "server": None,
        }
        self._path = self._folder / f"{place.number}.json"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._datagrams, self._wires = datagrams, [tuple(wire) for wire in wires]
        now = time.monotonic()
        others = [number for number in range(len(place.hosts)) if number != place.number]
        self._said: dict[int, dict] = {number: {"state": "unknown", "server": None} for number in others}
        self._raw: dict[int, bytes] = {}
        self._heard = dict.fromkeys(others, now)
        self._heard_by_wire: dict[int, float] = {}
        self._written = now
        self._next = 0.0
        self.cause: str | None = None

    def look(self) -> str | None:
        """Says that this node is there and listens to the others. Returns why this node must end, if it must."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + BEAT_SECONDS
            self._write()
            self._read(now)
            self._call()
        self._listen(now)
        if self.cause is None:
            self.cause = self._complaint(now)
        return self.cause

    def _complaint(self, now: float) -> str | None:
        for number, said in self._said.items():
            if said["state"] == "ending" and said.get("cause"):
                return f"{self.place.called(number)}: {said['cause']}"
        lost = self.lost(now)
        if lost:
            return lost
        if now - self._written > SILENT_SECONDS:
            return f"{self._path} could not be written for {SILENT_SECONDS} s: look at the storage of the run's folder"
        return None

    def lost(self, now: float | None = None) -> str | None:
        """The word on a node that is silent, and has not said that it is ending."""
        now = time.monotonic() if now is None else now
        for number, said in self._said.items():
            if said["state"] in ("ending", "ended"):
                continue
            if now - self._heard[number] > SILENT_SECONDS:
                return f"{self.place.called(number)} has not been heard of for {SILENT_SECONDS} s"
            if self._cut(number, now):
                name = self.place.called(number)
                return (
                    f"{name} has not been heard of for {SILENT_SECONDS} s (nothing arrives over {self.place.interface})"
                )
        return None

    def server(self) -> dict | None:
        """What the node with the server has said of it; None before it did."""
        return next((said["server"] for said in self._said.values() if said.get("server")), None)

    def say(self, **fields) -> None:
        """Changes what this node says of itself, at once."""
        self._mine |= fields
        self._write()

    def ending(self, cause: str | None, sure: bool, code: int | None = None) -> None:
        """This node's ranks are over.

        Args:
            cause: what it knows of why; None if all went well.
            sure: whether it is a cause by itself, or may follow from what another node knows.
            code: the exit code that a signal to this launcher asks for.
        """
        self.say(state="ending", cause=cause, sure=sure, code=code)

    def over(self) -> bool:
        """Whether node 0's ranks have ended."""
        return self._said[0]["state"] in ("ending", "ended")

    def sure(self) -> str | None:
        """What another node knows for certain of why the run ended."""
        for number, said in self._said.items():
            if said["state"] == "ending" and said["sure"] and said["cause"]:
                return f"{self.place.called(number)}: {said['cause']}"
        return None

    def settle(self) -> None:
        """Node 0, after a failure: until each other node has ended or is lost, so that the one to blame can have its say."""
        while self._waits_for_others():
            self.look()
            time.sleep(0.1)

    def _waits_for_others(self) -> bool:
        now = time.monotonic()
        silent = {number for number in self._said if now - self._heard[number] > SILENT_SECONDS}
        return any(said["state"] not in ("ending", "ended") and number not in silent and not self._cut(number, now)
                   for number, said in self._said.items())  # fmt: skip

    def _cut(self, number: int, now: float) -> bool:
        """Whether a node still writes its file, and nothing arrives from it any more."""
        beats = now - self._heard[number] < 3 * BEAT_SECONDS
        return beats and now - self._heard_by_wire.get(number, now) > SILENT_SECONDS

    def interrupted(self) -> int | None:
        """The exit code with which another node says that its person has had enough."""
        return next(
            (said["code"] for said in self._said.values() if said["state"] == "ending" and said.get("code")), None
        )

    def verdict(self) -> dict | None:
        """Node 0's last word, with `code` and `cause`: waits for it; None if node 0 is lost, or takes too long."""
        end = time.monotonic() + VERDICT_SECONDS
        while self._said[0]["state"] != "ended" and time.monotonic() < end:
            self.look()
            now = time.monotonic()
            if now - self._heard[0] > SILENT_SECONDS:
                return None
            time.sleep(0.1)
        return self._said[0] if self._said[0]["state"] == "ended" else None

    def close(self, code: int, cause: str | None) -> None:
        """The last word of this node."""
        with contextlib.suppress(OSError):
            self.say(state="ended", code=code, cause=cause)
        os.close(self._descriptor)
        self._datagrams.close()

    def _write(self) -> None:
        self._mine["beat"] += 1
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, json.dumps(self._mine).encode().ljust(_SIZE), 0)
            self._written = time.monotonic()

    def _read(self, now: float) -> None:
        for number in self._said:
            try:
                raw = (self._folder / f"{number}.json").read_bytes()
            except OSError:
                continue
            if raw == self._raw.get(number):
                continue
            self._raw[number] = raw
            with contextlib.suppress(ValueError):  # caught in the middle of a write; the next look sees it whole
                said = json.loads(raw)
                if said["meeting"] == self._meeting:
                    self._said[number], self._heard[number] = said, now

    def _call(self) -> None:
        for number in self._said:
            with contextlib.suppress(OSError):
                self._datagrams.sendto(self._meeting.encode(), self._wires[number])

    def _listen(self, now: float) -> None:
        senders = {self._wires[number]: number for number in self._said}
        with contextlib.suppress(OSError):  # BlockingIOError: no more are there
            while True:
                word, sender = self._datagrams.recvfrom(64)
                if word == self._meeting.encode() and sender in senders:
                    self._heard_by_wire[senders[sender]] = now


def datagram_socket(address: str) -> socket.socket:
    """A socket for `Peers`, on a port that the kernel chooses."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.bind((address, 0))
    return opened
