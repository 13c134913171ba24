"""The ring over RDMA: reliable connections (RC) on RoCE v2, made again when one breaks.

The TCP connections of the ring carry what a queue pair needs to be set up, never gradients. A
worker sends pieces of its gradient from registered memory. The receiver has memory for a few of
them and grants that many ahead, so the receive queue is never empty and the switches' queues stay
short.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from .ring import Neighbours, RingError, join_ring
from .task import TrainingError, TrainingTask, reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# 4.096 µs × 2^18 = 1.1 s for an acknowledgement, and seven retries: without any packets for some
# 8 s a queue pair lives. A shorter time would send packets again that only wait in a queue.
_TIMEOUT = 18
_RETRIES = 7
_MIN_RNR_TIMER = 12
_SLOTS = 4
_SMALLEST_PIECE = 16 * 1024
_LARGEST_PIECE = 512 * 1024
_PIECES_IN_CHUNK = 16
_HOP_LIMIT = 64
_FLUSHED_S = 0.1
_STATUS = {
    12: "no acknowledgement after all retries",
    13: "the receiver was never ready",
}
_LINE_LIMIT = 4096
_MOST_PIECES = 0xFFFF  # half of a message's immediate data
# Of work requests, beside the number of a piece or slot.
_DATA = 1 << 32
_GRANT = 2 << 32
_SLOT = 3 << 32
_DESCRIPTORS = "/proc/self/fd"
_SYSTEM_PACKAGES = "/usr/lib/python3/dist-packages"
_COUNTERS = "/sys/class/infiniband/{}/ports/{}/hw_counters"
# What drivers call packets sent again (rxe, mlx5, bnxt_re, irdma), to be added up.
_RETRY_COUNTERS = (
    "completer_retry_err",
    "local_ack_timeout_err",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "RetransSegs",
)


@cache
def _verbs() -> SimpleNamespace:
    """pyverbs, also from Debian's package where this Python is in a virtual environment."""
    modules = (
        "addr",
        "cq",
        "device",
        "enums",
        "mr",
        "pd",
        "pyverbs_error",
        "qp",
        "wr",
    )
    if _SYSTEM_PACKAGES not in sys.path:
        sys.path.append(_SYSTEM_PACKAGES)
    try:
        found: dict[str, Any] = {}
        for name in modules:
            found |= vars(__import__(f"pyverbs.{name}", fromlist=[name]))
    except ImportError as exc:
        raise TrainingError(
            f"training over RDMA needs pyverbs for Python {sys.version_info[0]}."
            f"{sys.version_info[1]} ({exc}): apt-get install python3-pyverbs on each server"
        ) from exc
    return SimpleNamespace(**found)


def _gid(task: TrainingTask, patience_s: float) -> dict[str, Any]:
    """Device, port and index of the GID of this worker's address, which the agent finds again
    after each change of circuits."""
    path = os.environ.get("PATCHLIGHT_NETWORK", "network.json")
    last = "the agent gave none"
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            with open(path, encoding="utf-8") as file:
                rdma = json.load(file)["rdma"]
        except (OSError, ValueError, KeyError) as exc:
            last = reason(exc)
        else:
            if rdma is not None and rdma["active"] and rdma["gid"] is not None:
                found: dict[str, Any] = rdma["gid"]
                return found
            last = (
                "it has no RDMA device"
                if rdma is None
                else f"{rdma['device']} has no GID yet"
            )
        time.sleep(0.02)
    address = task.ring[task.rank].address
    raise TrainingError(
        f"no RoCEv2 GID of {address} within {patience_s:g} s: {last}; see 'rdma link' there"
    )


class _QueuePair:
    """The queue pair to one neighbour, and the TCP connection by which it is made. ``number``
    counts how often it was made; ``done`` are pieces of the present all-reduce that were sent or
    received; ``granted`` the last grant, an iteration and the pieces that may be sent of it."""

    def __init__(
        self,
        ring: VerbsRing,
        control: socket.socket,
        rank: int,
        *,
        sends: bool,
    ) -> None:
        self.ring = ring
        self.control = control
        self.rank = rank
        self.sends = sends
        self.number = 0
        self.pair: Any = None
        self.queue_number = -1
        self.is_up = self.is_connected = self.is_over = False
        self.broke = ""
        self.broke_at = 0.0
        self.posted = 0
        self.done = self.acknowledged = self.granted = 0
        self._heard = b""
        self._offer = dict[str, Any]()

    def make(self, number: int) -> None:
        """Make it and tell the neighbour; it is connected once the neighbour has told, too."""
        self.stop()
        v = _verbs()
        ring = self.ring
        gid = _gid(ring.task, ring.task.deadline_s)
        self.number = number
        self.is_up = False
        self.is_connected = False
        cap = v.QPCap(
            max_send_wr=2 * _SLOTS + 2,
            max_recv_wr=2 * _SLOTS + 2,
        )
        how = v.QPInitAttr(
            qp_type=v.IBV_QPT_RC,
            scq=ring.queue,
            rcq=ring.queue,
            cap=cap,
        )
        self.pair = v.QP(ring.domain, how, v.QPAttr(port_num=gid["port"]))
        self.queue_number = self.pair.qp_num
        for slot in range(2 * _SLOTS if self.sends else _SLOTS):
            self.post(slot)
        self._offer = {
            "number": number,
            "queue": self.queue_number,
            "gid": gid["gid"],
            "mtu": int(ring.context.query_port(gid["port"]).active_mtu),
            "iteration": ring.iteration,
            "received": self.done,
        }
        self._index = gid["index"]
        self._port = gid["port"]
        self._tell(self._offer)

    def stop(self) -> None:
        """Take what has arrived, and end the queue pair."""
        if self.pair is None:
            return
        v = _verbs()
        self.is_up = False
        with contextlib.suppress(v.PyverbsError):
            self.pair.modify(v.QPAttr(qp_state=v.IBV_QPS_ERR), v.IBV_QP_STATE)
        end = time.monotonic() + _FLUSHED_S
        while self.ring.take_completions() or (
            self.posted and time.monotonic() < end
        ):
            time.sleep(0.001)
        self.pair.close()
        self.pair = None
        self.posted = 0

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self.control.sendall(json.dumps(message).encode() + b"\n")
        except OSError as exc:
            raise self.lost(reason(exc)) from exc

    def hear(self) -> None:
        """Take what the neighbour says over TCP."""
        try:
            piece = self.control.recv(_LINE_LIMIT)
        except OSError as exc:
            raise self.lost(reason(exc)) from exc
        if not piece:
            self.is_over = True
            return
        *lines, self._heard = (self._heard + piece).split(b"\n")
        for message in map(json.loads, lines):
            if "queue" in message:
                if (
                    message["number"] > self.number
                ):  # it saw the queue pair break, and we did not
                    self.was_broken("the neighbour rebuilt it")
                    self.make(message["number"])
                if message["number"] == self.number:
                    self._connect(message)
            elif message.get("ready") == self.number:
                self.is_up = self.is_connected
                if self.is_up:
                    self._goes_on()

    def _connect(self, peer: dict[str, Any]) -> None:
        v = _verbs()
        route = v.GlobalRoute(
            dgid=v.GID(_long(peer["gid"])),
            sgid_index=self._index,
            hop_limit=_HOP_LIMIT,
        )
        attributes = v.QPAttr(port_num=self._port)
        attributes.ah_attr = v.AHAttr(
            gr=route,
            is_global=1,
            port_num=self._port,
        )
        attributes.path_mtu = min(peer["mtu"], self._offer["mtu"])
        attributes.dest_qp_num = peer["queue"]
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = _MIN_RNR_TIMER
        attributes.timeout = _TIMEOUT
        attributes.retry_cnt = _RETRIES
        attributes.rnr_retry = 7
        self.pair.to_rts(attributes)
        self.is_connected = True
        if self.sends:
            # What the neighbour has not received is sent again; it may be an all-reduce ahead.
            ahead = peer["iteration"] - self.ring.iteration
            self.done = (
                peer["received"]
                if ahead == 0
                else self.ring.pieces_out * (ahead > 0)
            )
            self.acknowledged = self.done
        self._tell({"ready": self.number})

    def _goes_on(self) -> None:
        if self.number > 1:
            took_s = time.monotonic() - self.broke_at
            print(
                f"the queue pair to rank {self.rank} broke ({self.broke}) and was rebuilt in "
                f"{took_s:.2f} s",
                flush=True,
            )
        self.broke = ""
        if not self.sends:
            self.granted = 0
            self.grant()

    def was_broken(self, why: str) -> None:
        """Note that it broke."""
        if not self.broke:
            self.broke = why
            self.broke_at = time.monotonic()
            self.is_up = False

    def post(self, slot: int) -> None:
        """Let the neighbour's next message go into this slot."""
        self.pair.post_recv(self.ring.receives[slot])
        self.posted += 1

    def grant(self) -> None:
        """Tell the previous worker how many pieces of this all-reduce it may send."""
        total = len(self.ring.pieces_in)
        limit = min(self.done + self.ring.ahead, total)
        # Before its first all-reduce it would get pieces that do not exist yet.
        has_begun = self.ring.iteration >= self.ring.task.first_iteration
        grant = (self.ring.iteration & 0xFFFF) << 16 | limit
        # Each message costs processor time.
        least = 1 if limit == total else _SLOTS // 2
        if (
            self.is_up
            and limit
            and has_begun
            and abs(grant - self.granted) >= least
        ):
            self.granted = grant
            request = self.ring.grant_request
            request.imm_data = grant
            self.pair.post_send(request)

    def lost(self, why: str) -> RingError:
        """The error of a neighbour that is gone."""
        doing = "sending to" if self.sends else "receiving from"
        return RingError(
            f"lost rank {self.rank} while {doing} it over RDMA in the all-reduce of iteration "
            f"{self.ring.iteration}: {why}",
            self.rank,
        )


class VerbsRing:
    """Queue pairs to the next and from the previous worker, and the registered memory."""

    def __init__(
        self, task: TrainingTask, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """``tell`` as in ``join_ring``."""
        self.task = task
        self.iteration = task.first_iteration - 1
        gid = _gid(task, task.join_s)
        v = _verbs()
        size = len(task.ring)
        self._counters = Path(_COUNTERS.format(gid["device"], gid["port"]))
        self._retries_before = self._count_retries()
        self._tcp: Neighbours = join_ring(task, tell)
        try:
            self.context = v.Context(name=gid["device"])
            before = _event_channels()
            self._events = v.CompChannel(self.context)
            # pyverbs 44 does not tell it.
            (self._events_fd,) = _event_channels() - before
            self.queue = v.CQ(
                self.context,
                16 * _SLOTS,
                None,
                self._events,
                0,
            )
            self.domain = v.PD(self.context)
            self._prepare(v, size)
            following = (task.rank + 1) % size
            previous = (task.rank - 1) % size
            self.next = _QueuePair(
                self,
                self._tcp.to_next,
                following,
                sends=True,
            )
            self.previous = _QueuePair(
                self,
                self._tcp.from_previous,
                previous,
                sends=False,
            )
            self._both = self.next, self.previous
            for pair in self._both:
                pair.control.settimeout(None)
                pair.make(1)
            self._until(
                lambda: all(pair.is_up for pair in self._both),
                time.monotonic() + task.join_s,
            )
        except v.PyverbsError as exc:
            self._tcp.close()
            raise TrainingError(
                f"setting up RDMA on {gid['device']}: {reason(exc)}"
            ) from exc

    def _prepare(self, v: SimpleNamespace, size: int) -> None:
        elements = self.task.elements
        rank = self.task.rank
        self.steps_that_add = size - 1
        bounds = [4 * (index * elements // size) for index in range(size + 1)]
        piece = max(
            4 * elements // size // _PIECES_IN_CHUNK & ~3, _SMALLEST_PIECE
        )
        piece = min(piece, _LARGEST_PIECE)
        self.ahead = _SLOTS
        if (
            self.task.window_bytes is not None
        ):  # scaled links have short queues
            piece = _SMALLEST_PIECE // 2
            self.ahead = _SLOTS - 1

        def pieces(first_step: int) -> list[tuple[int, int, int]]:
            found = []
            for step in range(2 * (size - 1)):
                index = (rank - first_step - step) % size
                for begin in range(bounds[index], bounds[index + 1], piece):
                    found.append(
                        (step, begin, min(begin + piece, bounds[index + 1]))
                    )
            return found

        pieces_out = pieces(0)
        self.pieces_in = pieces(1)
        self.pieces_out = len(pieces_out)
        if max(self.pieces_out, len(self.pieces_in)) > _MOST_PIECES:
            raise TrainingError(
                f"a ring of {size} workers is too long for RDMA"
            )
        self.sent_bytes = sum(end - begin for _, begin, end in pieces_out)
        # The first chunk is this worker's own; each later piece is one that arrived before.
        self.own_pieces = sum(step == 0 for step, _, _ in pieces_out)
        self.array = np.zeros(elements, dtype=np.float32)
        self._slots = np.zeros(2 * _SLOTS * piece, dtype=np.uint8)
        may = v.IBV_ACCESS_LOCAL_WRITE
        memory, slots = (
            v.MR(
                self.domain,
                each.nbytes,
                may,
                each.ctypes.data,
            )
            for each in (self.array, self._slots)
        )
        self._memory = memory, slots
        at = self._slots.ctypes.data
        self._slot_values = [
            self._slots[slot * piece : (slot + 1) * piece].view(np.float32)
            for slot in range(2 * _SLOTS)
        ]
        self.receives = [
            v.RecvWR(_SLOT | n, 1, [v.SGE(at + n * piece, piece, slots.lkey)])
            for n in range(2 * _SLOTS)
        ]
        self._requests = [
            v.SendWR(
                _DATA | n,
                v.IBV_WR_SEND_WITH_IMM,
                1,
                n,
                [
                    v.SGE(
                        self.array.ctypes.data + begin,
                        end - begin,
                        memory.lkey,
                    )
                ],
                v.IBV_SEND_SIGNALED
                * (n % _SLOTS == 0 or n + 1 == len(pieces_out)),
            )
            for n, (_, begin, end) in enumerate(pieces_out)
        ]
        one_byte = [v.SGE(at, 1, slots.lkey)]
        self.grant_request = v.SendWR(
            _GRANT,
            v.IBV_WR_SEND_WITH_IMM,
            1,
            0,
            one_byte,
            v.IBV_SEND_SIGNALED,
        )

    def placed(self, gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        """The gradient in registered memory."""
        self.array[:] = gradient
        return self.array

    def all_reduce(self, iteration: int) -> int:
        """Sum ``array`` over the ring, as ``ring_all_reduce`` does; returns the bytes sent."""
        self.iteration = iteration
        for pair in self._both:
            if pair.is_over:
                raise pair.lost("it closed the connection early")
        self.next.done = self.next.acknowledged = self.previous.done = 0
        self.previous.grant()
        self._until(
            lambda: (
                self.next.acknowledged == self.pieces_out
                and self.previous.done == len(self.pieces_in)
            )
        )
        return self.sent_bytes

    def _until(self, is_reached: Any, end: float | None = None) -> None:
        """Send, receive and repair until that is so; ``RingError`` after ``end``."""
        poller = select.poll()
        for descriptor in (
            self._events_fd,
            *(pair.control.fileno() for pair in self._both),
        ):
            poller.register(descriptor, select.POLLIN)
        notified = False
        while not is_reached():
            worked = self.take_completions()
            for pair in self._both:
                if pair.broke and pair.is_connected and not pair.is_over:
                    pair.make(pair.number + 1)
            worked += self._send()
            if worked or is_reached():
                notified = False
                continue
            if not notified:  # look again: one may have completed before
                self.queue.req_notify()
                notified = True
                continue
            left_ms = (
                None
                if end is None
                else max(0.0, 1000 * (end - time.monotonic()))
            )
            ready = poller.poll(left_ms)
            if not ready:
                lacking = [
                    str(pair.rank) for pair in self._both if not pair.is_up
                ]
                raise RingError(
                    f"no queue pair to rank {', '.join(lacking)}: it does not answer"
                )
            for descriptor, _ in ready:
                if descriptor == self._events_fd:
                    self._events.get_cq_event(self.queue)
                    notified = False
                for pair in self._both:
                    if descriptor == pair.control.fileno():
                        pair.hear()
                        if pair.is_over:
                            poller.unregister(descriptor)
                            self._after_its_end(pair)

    def _after_its_end(self, pair: _QueuePair) -> None:
        """A neighbour ends only once it has received all; if it died, others notice, too."""
        while self.take_completions():
            pass  # what it sent before its end
        if pair.sends and pair.done == self.pieces_out:
            pair.acknowledged = pair.done
        elif pair.sends or pair.done < len(self.pieces_in):
            raise pair.lost(pair.broke or "it closed the connection early")

    def _send(self) -> int:
        pair = self.next
        before = self.next.done
        iteration = pair.granted >> 16
        granted = pair.granted & 0xFFFF
        if iteration != self.iteration & 0xFFFF:
            return 0
        ready = min(
            granted, self.own_pieces + self.previous.done, self.pieces_out
        )
        while pair.is_up and pair.done < min(
            ready, pair.acknowledged + 2 * _SLOTS
        ):
            pair.pair.post_send(self._requests[pair.done])
            pair.done += 1
        return pair.done - before

    def take_completions(self) -> int:
        """Take all completions; returns how many there were."""
        count, completions = self.queue.poll(4 * _SLOTS)
        v = _verbs()
        for each in completions:
            pair = next(
                (p for p in self._both if p.queue_number == each.qp_num), None
            )
            if pair is None:
                continue  # of a queue pair before this one
            kind = each.wr_id & ~0xFFFFFFFF
            number = each.wr_id & 0xFFFFFFFF
            pair.posted -= kind == _SLOT
            if each.status != v.IBV_WC_SUCCESS:
                if each.status != v.IBV_WC_WR_FLUSH_ERR:
                    pair.was_broken(
                        _STATUS.get(
                            each.status, f"completion status {each.status}"
                        )
                    )
            elif kind == _DATA:
                pair.acknowledged = max(pair.acknowledged, number + 1)
            elif kind == _SLOT and pair.sends:
                # The next worker may be an all-reduce ahead.
                pair.granted = each.imm_data
                self._post_again(pair, number)
            elif kind == _SLOT:
                self._take_piece(pair, each.imm_data, number)
        return int(count)

    def _take_piece(
        self,
        pair: _QueuePair,
        number: int,
        slot: int,
    ) -> None:
        if number != pair.done:
            raise pair.lost(f"it sent piece {number} instead of {pair.done}")
        step, begin, end = self.pieces_in[number]
        into = self.array[begin // 4 : end // 4]
        values = self._slot_values[slot]
        if step < self.steps_that_add:
            into += values[: (end - begin) // 4]
        else:
            into[:] = values[: (end - begin) // 4]
        pair.done += 1
        self._post_again(pair, slot)
        pair.grant()

    @staticmethod
    def _post_again(pair: _QueuePair, slot: int) -> None:
        if pair.is_up:
            pair.post(slot)

    def _count_retries(self) -> int:
        found = 0
        for name in _RETRY_COUNTERS:
            with contextlib.suppress(OSError, ValueError):
                found += int(
                    (self._counters / name).read_text(encoding="ascii")
                )
        return found

    def report(self) -> dict[str, int]:
        """How often queue pairs were made again, and packets sent again, since the beginning."""
        return {
            "queue_pairs_made": sum(pair.number for pair in self._both),
            "rdma_retries": self._count_retries() - self._retries_before,
        }

    def ask_for_life(self, on: bool) -> None:
        """As of ``Neighbours``: whether the kernel gives up on a silent neighbour."""
        self._tcp.ask_for_life(on)

    def drain(self, deadline_s: float) -> None:
        """Do nothing: an all-reduce ends once the next worker's device has all data."""

    def close(self) -> None:
        """End both queue pairs."""
        for pair in self._both:
            pair.stop()
        self._tcp.drain(self.task.deadline_s)
        self._tcp.close()


def _event_channels() -> set[int]:
    found = set()
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # that of the folder is closed
            if "infinibandevent" in os.readlink(f"{_DESCRIPTORS}/{name}"):
                found.add(int(name))
    return found


def _long(gid: str) -> str:
    """A GID as pyverbs reads it: eight groups of four digits."""
    packed = socket.inet_pton(socket.AF_INET6, gid).hex()
    return ":".join(packed[at : at + 4] for at in range(0, 32, 4))
