"""The command line of chapter 13 (its code is appendices H and P): `python -m annotated --help`."""

import os
import signal
import sys
import time
from types import FrameType
from typing import Any, cast

_asked: list[float] = []  # when this process was first asked to stop, or had ended


def _stop(number: int, frame: FrameType | None) -> None:
    """An interrupt, a request to terminate or a closed terminal: the first is a KeyboardInterrupt.

    Others within a second are the same wish, as of somebody who leans on Ctrl-C; a later one ends what cleans up.
    """
    if _asked and time.monotonic() > _asked[0] + 1:
        os._exit(130)
    if not _asked:
        _asked.append(time.monotonic())
        raise KeyboardInterrupt


def run() -> int:
    """The exit status of the command line, also as the installed program `annotated`."""
    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]  # Windows lacks the last
    heeded = [number for number in numbers if number and signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores
    try:
        for number in heeded:
            signal.signal(number, _stop)
        from annotated.files import _Messages

        sys.stderr = cast(Any, _Messages.of(sys.stderr or open(os.devnull, "w")))
        from annotated.cli import main  # here, so that an interrupt of this import leaves no traceback either

        return main()
    except KeyboardInterrupt:
        return 130
    finally:
        _asked.append(time.monotonic())
        for number in heeded:  # an interrupt of Python's own end changes nothing any more
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(run())
