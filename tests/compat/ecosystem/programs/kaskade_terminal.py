"""A terminal with kaskade in it, for the interpreter that has kaskade and pyte.

python kaskade_terminal.py COMMAND STEPS

COMMAND is a JSON list. STEPS is one too, of pairs: ["press", KEYS], or ["see", TEXTS], which waits
until the screen shows a line with all of the texts. The exit code is 1, with the screen on standard
output, when it does not.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pyte

COLUMNS, ROWS = 160, 50
SEE_SECONDS = 60.0
KEY_SECONDS = 0.3


class Terminal:
    """The screen of a program."""

    def __init__(self, command: list[str]) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            # The size is there before the program reads it.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.environ["TERM"] = "xterm-256color"
            os.execvp(command[0], command)

    def press(self, keys: str) -> None:
        """Types as a person does: the program handles some keys before those that it got first."""
        for key in keys:
            os.write(self._descriptor, key.encode())
            until = time.monotonic() + KEY_SECONDS
            while time.monotonic() < until:
                self._show(until - time.monotonic())

    def _show(self, seconds: float) -> None:
        """What the program writes next, if it does so in this time."""
        if select.select([self._descriptor], [], [], max(seconds, 0.0))[0]:
            self._stream.feed(os.read(self._descriptor, 1 << 16))

    def see(self, texts: list[str]) -> bool:
        """Whether the screen shows a line with all of the texts before the deadline."""
        until = time.monotonic() + SEE_SECONDS
        while not any(all(text in line for text in texts) for line in self._screen.display):
            if time.monotonic() > until:
                return False
            self._show(0.2)
        return True

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def main() -> int:
    """Plays the steps."""
    command, steps = (json.loads(each) for each in sys.argv[1:3])
    terminal = Terminal(command)
    try:
        for kind, what in steps:
            if kind == "press":
                terminal.press(what)
            elif not terminal.see(what):
                print(f"{terminal.text()}\n")
                print(f"no line of the screen has {what}", file=sys.stderr)
                return 1
    finally:
        terminal.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
