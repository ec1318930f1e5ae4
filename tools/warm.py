"""Warm kernels: forked from a process that has already imported what the notebooks import.

A kernel spends four seconds of a processor on imports before its first cell, and `make test` starts one a notebook.
After `kernels()`, jupyter_client forks the kernels that this process asks for. Where there is no Linux, and for a
kernel other than this Python's, it starts them the ordinary way.

Run as a program, this file is the process that they are forked from. It reads orders from its standard input, a line
of JSON each, and answers with a line; when its input ends, it ends with all its kernels.
"""

import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import EntryPoint

# Not matplotlib_inline.backend_inline: its import reads the kernel's settings.
IMPORTED = (
    "ipykernel_launcher",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_svg",
    "torch",
    "torch._dynamo",  # the first optimizer imports it
)
# What a kernel may be given of its own. Anything else may be read by an import, and asks for another process.
LATE = {"IPYTHONDIR", "PYTHONPATH", "PYTEST_CURRENT_TEST", "JPY_PARENT_PID", "JPY_SESSION_NAME"}


def kernels() -> None:
    """Fork the kernels that this process starts from now on."""
    if sys.platform != "linux":  # elsewhere a process may not survive being forked with these libraries
        return
    from jupyter_client.provisioning import KernelProvisionerFactory as Factory

    Factory.provisioners["warm"] = EntryPoint("warm", "warm:provisioner", Factory.GROUP_NAME)
    Factory.instance().default_provisioner_name = "warm"


def provisioner(**given):
    """What jupyter_client starts a kernel with, and asks after it."""
    from jupyter_client.provisioning import LocalProvisioner

    class Warm(LocalProvisioner):
        async def launch_kernel(self, cmd, **kwargs):
            if cmd[:3] != [sys.executable, "-m", "ipykernel_launcher"]:
                return await super().launch_kernel(cmd, **kwargs)
            early = {name: value for name, value in kwargs["env"].items() if name not in LATE}
            order = {"arguments": cmd[3:], "env": kwargs["env"], "cwd": str(kwargs.get("cwd") or os.getcwd())}
            self.process = Forked(source(json.dumps(early, sort_keys=True), kwargs.get("stderr")), order)
            self.pid = self.pgid = self.process.pid
            self.cwd = order["cwd"]
            return self.connection_info

    return Warm(**given)


def source(early: str, stderr) -> "Source":
    """The process to fork from in such an environment, begun once."""
    found = begun(os.getpid(), early)
    if not found or found[0].process.poll() is not None:
        found[:] = [Source(json.loads(early), stderr)]
    return found[0]


@functools.cache
def begun(pid: int, early: str) -> list:
    """Where a process keeps its source; one that was forked itself must not talk to its parent's."""
    return []


class Source:
    """A process to fork kernels from."""

    def __init__(self, env: dict[str, str], stderr):
        # A session of its own: an interrupt at the terminal is for the tests, and they end it.
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def ask(self, order: dict):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or "{}")["answer"]


class Forked:
    """Of subprocess.Popen, what jupyter_client uses: the kernel is a child of its source, not of this process."""

    stdin = stdout = stderr = None
    returncode = None

    def __init__(self, source: Source, order: dict):
        self.source = source
        self.pid = source.ask({"start": order})

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self.source.ask({"poll": self.pid})
            except (OSError, ValueError, KeyError):  # the source has ended, and so does the kernel
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# ---- the process that is forked


def serve() -> None:
    """Answer orders until there are no more."""
    del sys.path[0]  # this file's folder, which no notebook sees
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as a kernel does
    for name in IMPORTED:
        with suppress(ImportError):  # the notebook that needs it says so
            importlib.import_module(name)
    gc.freeze()  # a collection in a kernel would copy every page of what is shared
    alive = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            answer = os.fork()
            if not answer:
                return become_kernel(**order["start"])
            alive.add(answer)
        else:
            ended, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
            alive.discard(ended)
        print(json.dumps({"answer": answer}), flush=True)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def become_kernel(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Be what `python -m ipykernel_launcher` is in such an environment and folder."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)  # the pipes are the source's
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env, JPY_PARENT_PID=str(os.getppid()))
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    # Else unseeded numbers would be the same in every kernel, and a notebook that forgets its seed would pass.
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    from ipykernel import kernelapp

    sys.argv = [sys.modules["ipykernel_launcher"].__file__, *arguments]
    # It ends when its parent does, which is the source.
    kernelapp.launch_new_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


if __name__ == "__main__":
    serve()
