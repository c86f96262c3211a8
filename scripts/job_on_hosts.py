"""For scripts that run jobs on several hosts: a launcher that runs on some host, what it has said and when, and waiting for something."""
import os, re, subprocess, threading, time


class Launcher:
    """A `phalanx run` on one host, and what it has said."""

    def __init__(self, host, command, env=None):
        self.lines, self.host = [], host
        self.process = subprocess.Popen(
            list(map(str, command)), env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def find(self, words, since=0.0):
        return [(at, line) for at, line in list(self.lines) if at >= since and re.search(words, line)]

    def has_ended(self):
        """Whether it has, and all that it said is here."""
        return self.process.poll() is not None and not self.reader.is_alive()

    def accuracy(self):
        """What the digits end with, in percent; `None` before."""
        found = [re.search(r"test accuracy +([0-9.]+)", line) for _, line in self.lines]
        return next((float(m[1]) for m in found if m), None)

    def tail(self, count=20):
        return "\n".join(f"    {self.host} | {line}" for _, line in self.lines[-count:])


def wait_for(what, is_so, launchers, limit):
    """Waits until something is so; `launchers` are shown if it does not come in time."""
    until = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError("\n".join([f"{what} did not come within {limit} s", *(launcher.tail() for launcher in launchers)]))
        time.sleep(0.02)
