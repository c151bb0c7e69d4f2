"""Several hosts on one machine: network namespaces with addresses of their own, joined by a bridge and cables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

__all__ = ["Hosts", "run_ip", "why_not"]


def run_ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)


def why_not() -> str | None:
    """Return why namespaces cannot be made here; None if they can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    name = f"hfprobe{os.getpid()}"
    made = run_ip("netns", "add", name, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    run_ip("netns", "delete", name, check=False)
    return None


class Hosts:
    """``count`` namespaces on one private network, 10.213.<net>.1 and up, each behind a cable that can be cut."""

    def __init__(self, count: int) -> None:
        tag = os.getpid() % 10000
        self.net = 1 + os.getpid() % 250
        self.switch = f"hfs{tag}"
        self.names = [f"hf{tag}n{number}" for number in range(count)]
        run_ip("netns", "add", self.switch)
        self.inside(self.switch, "link", "add", "bridge", "type", "bridge")
        self.inside(self.switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            run_ip("netns", "add", name)
            self.inside(name, "link", "set", "lo", "up")
            run_ip(
                "link", "add", "up0", "netns", name, "type", "veth", "peer", "name", f"v{number}", "netns", self.switch
            )
            self.inside(name, "addr", "add", f"{self.address(number)}/24", "dev", "up0")
            self.inside(name, "link", "set", "up0", "up")
            self.inside(self.switch, "link", "set", f"v{number}", "master", "bridge")
            self.inside(self.switch, "link", "set", f"v{number}", "up")

    def address(self, number: int) -> str:
        return f"10.213.{self.net}.{number + 1}"

    def inside(self, name: str, *arguments: str) -> None:
        run_ip("-n", name, *arguments)

    def cut(self, number: int) -> None:
        self.inside(self.switch, "link", "set", f"v{number}", "down")

    def heal(self, number: int) -> None:
        self.inside(self.switch, "link", "set", f"v{number}", "up")

    def command(self, number: int, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.names[number], *command]

    def close(self) -> None:
        for name in [*self.names, self.switch]:
            run_ip("netns", "delete", name, check=False)
