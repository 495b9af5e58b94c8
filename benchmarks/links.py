"""A small network inside one machine: a namespace for each worker, a bridge between them, and a limit on each link.

    obstacle()                 # why this machine cannot do it, or None
    enter()                    # restarts the script in its own namespace
    with Network() as net:     # there: makes the bridge
        net.start([...], {})   # command lines of the workers; each gets a link
        net.wait()
    join(number, True)         # in a worker: connects to its link
    limit(100)                 # in a worker: limits outgoing traffic, in Mbit/s
    Counters.read(True)        # in a worker: bytes that its link has carried

The namespaces end with the processes, so nothing has to be cleaned up. Without root they are made inside a user
namespace, where the system allows it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PATH = os.environ.get("PATH", "") + os.pathsep + os.pathsep.join(("/usr/sbin", "/sbin"))
DEVICE = "eth0"
HEADERS = 14 + 20 + 32  # bytes of a frame's headers: Ethernet, IPv4, TCP with time stamps
_INSIDE = "SPIDERSILK_NAMESPACE"


def command(*words: str) -> str:
    """Run a command and return its output; an error names the command and the cause."""
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PATH": PATH}, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or 'exit status ' + str(done.returncode)}")
    return done.stdout


def unshare() -> list[str]:
    return ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]


def obstacle() -> str | None:
    """Why this machine cannot make such a network; None if it can."""
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool, path=PATH) is None]
    if missing:
        return f"{' and '.join(missing)} not found (util-linux and iproute2 have them)"
    trial = (
        "ip link add one type veth peer name two && ip link add three type bridge && "
        "tc qdisc add dev one root tbf rate 1gbit burst 128kb limit 8mb"
    )
    try:
        command(*unshare(), "sh", "-c", trial)
    except (OSError, RuntimeError) as error:
        return f"network namespaces, veth, a bridge or tbf are not permitted here ({error})"
    return None


def inside() -> bool:
    return os.environ.get(_INSIDE) == "1"


def enter() -> NoReturn:
    """Restart this command in its own network namespace."""
    environment = os.environ | {"PATH": PATH, _INSIDE: "1"}
    os.execvpe("unshare", [*unshare(), sys.executable, *sys.argv], environment)


class Network:
    """Workers in namespaces of their own, joined by a bridge; or, shaped=False, on this machine's loopback."""

    def __init__(self, shaped: bool = True):
        self.shaped = shaped
        self.workers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Network:
        if self.shaped:
            command("ip", "link", "set", "lo", "up")
            command("ip", "link", "add", "switch", "type", "bridge")
            command("ip", "link", "set", "switch", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        if self.shaped:
            command("ip", "link", "del", "switch")

    def start(self, commands: list[list[str]], environment: dict[str, str]) -> None:
        for number, words in enumerate(commands):
            own = environment | {"PATH": PATH, "GLOO_SOCKET_IFNAME": DEVICE if self.shaped else "lo"}
            words = ["unshare", "--net", *words] if self.shaped else words
            worker = subprocess.Popen(words, env=os.environ | own, stdin=subprocess.PIPE, text=True)
            self.workers.append(worker)
            if self.shaped:
                self._plug(worker.pid, number)
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()

    def _plug(self, pid: int, number: int) -> None:
        here, there = Path("/proc/self/ns/net"), Path(f"/proc/{pid}/ns/net")
        end = time.monotonic() + 10
        while os.readlink(here) == os.readlink(there):
            if time.monotonic() > end:
                raise RuntimeError("a worker did not get a namespace of its own within ten seconds")
            time.sleep(0.005)
        port = f"port{number}"
        command("ip", "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", str(pid))
        command("ip", "link", "set", port, "master", "switch", "up")

    def wait(self) -> None:
        """Wait for all workers; if one fails, end the others."""
        while any(worker.poll() is None for worker in self.workers):
            failed = [number for number, worker in enumerate(self.workers) if worker.poll() not in (None, 0)]
            if failed:
                raise RuntimeError(f"worker {failed[0]} ended with status {self.workers[failed[0]].poll()}")
            time.sleep(0.1)
        if any(worker.returncode for worker in self.workers):
            raise RuntimeError(f"workers ended with {[worker.returncode for worker in self.workers]}")


# In a worker.


def join(number: int, shaped: bool) -> None:
    """Wait for the link and give it an address. This process ends when its parent does."""
    if sys.stdin.readline() != "go\n":
        sys.exit(1)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    if shaped:
        command("ip", "link", "set", "lo", "up")
        command("ip", "address", "add", f"10.0.0.{number + 1}/24", "dev", DEVICE)
        command("ip", "link", "set", DEVICE, "up")


def limit(mbit: float | None) -> None:
    """Limit this worker's outgoing traffic, in Mbit/s; None removes the limit.

    Queue and burst hold a millisecond or what one frame of a segmenting sender needs; nothing is dropped, as a socket
    has less than the queue's 16 MB under way.
    """
    command("tc", "qdisc", "replace", "dev", DEVICE, "root", "pfifo", "limit", "10000")
    if mbit is not None:
        burst = max(16_000, int(mbit * 1e6 / 8 * 1e-3))
        words = ["rate", f"{mbit:g}mbit", "burst", str(burst), "limit", "16000000"]
        command("tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf", *words)


@dataclass(frozen=True)
class Counters:
    """Outgoing traffic of a link, by two counters of the kernel.

    interface: tx_bytes of the device, from /proc/net/dev (/sys would show the namespace that mounted it). A sender that
        leaves segmentation to the device hands over up to 64 kB with one header, and they are counted so.
    wire: the queue's own count, with the headers of each frame that a wire would see; `frames` of them.
    On loopback there is one device for all workers and no queue: all are what it carried, headers included.
    """

    interface: int
    wire: int
    frames: int

    @classmethod
    def read(cls, shaped: bool) -> Counters:
        device = DEVICE if shaped else "lo"
        lines = (line.split(":", 1) for line in Path("/proc/net/dev").read_text().splitlines() if ":" in line)
        own = next(int(values.split()[8]) for name, values in lines if name.strip() == device)
        if not shaped:
            return cls(own, own, 0)
        queue: dict[str, Any] = json.loads(command("tc", "-s", "-j", "qdisc", "show", "dev", device))[0]
        if queue.get("drops"):
            raise RuntimeError(f"the queue has dropped {queue['drops']} frames: its times are not of a clean link")
        return cls(own, queue["bytes"], queue["packets"])

    def since(self, before: Counters) -> Counters:
        return Counters(self.interface - before.interface, self.wire - before.wire, self.frames - before.frames)

    @property
    def payload(self) -> int:
        """Bytes that the processes have sent: without headers of frames."""
        return self.wire - HEADERS * self.frames
