"""Warm kernels and programs: forked from a process that has already imported what the notebooks import.

A kernel spends four seconds of a processor on imports before its first cell, and `make test` starts one a notebook.
After `kernels()`, jupyter_client forks the kernels that this process asks for. Where there is no Linux, and for a
kernel other than this Python's, it starts them the ordinary way.
`run` and `Program` do the same for programs that tests start in a process of their own, in place of `subprocess.run`
and `subprocess.Popen`.

Run as a program, this file is the process that they are forked from. It reads orders from its standard input, a line
of JSON each, and answers with a line; when its input ends, it ends with all its kernels.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib.metadata import EntryPoint
from types import ModuleType

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
LATE |= {"RANK", "MEET", "no_proxy"}  # of programs


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
            order = {"arguments": cmd[3:], "env": kwargs["env"], "cwd": str(kwargs.get("cwd") or os.getcwd())}
            self.process = Forked(source(kwargs["env"], kwargs.get("stderr")), "kernel", order)
            self.pid = self.pgid = self.process.pid
            self.cwd = order["cwd"]
            return self.connection_info

    return Warm(**given)


def source(env: dict[str, str], stderr=None) -> "Source":
    """The process to fork from in such an environment, begun once."""
    early = json.dumps({name: value for name, value in env.items() if name not in LATE}, sort_keys=True)
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
    """Of subprocess.Popen, what jupyter_client uses: the process is a child of its source, not of this one."""

    stdin = stdout = stderr = None
    returncode = None

    def __init__(self, source: Source, what: str, order: dict):
        self.source = source
        self.pid = source.ask({what: order})

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self.source.ask({"poll": self.pid})
            except (OSError, ValueError, KeyError):  # the source has ended, and so does the kernel
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Program(Forked):
    """A program of this Python, `[sys.executable, "-c", code, ...]` or `[sys.executable, "-m", module, ...]`.

    Of subprocess.Popen, what tests use; streams are bytes, unless `text` is set. An interrupt that nobody handles
    ends it with status 1, not by the signal.
    """

    def __init__(self, command, *, stdin=None, stdout=None, stderr=None, env=None, cwd=None, text=False):
        if command[0] != sys.executable or command[1] not in ("-c", "-m"):
            raise ValueError(f"a program is {sys.executable} -c or -m ..., got {command}")
        ends = []  # the program's own ends of the pipes, which it opens anew
        modes = ("w", "r", "r") if text else ("wb", "rb", "rb")
        for i, (name, given) in enumerate((("stdin", stdin), ("stdout", stdout), ("stderr", stderr))):
            if given == subprocess.PIPE:
                theirs, ours = os.pipe() if i == 0 else reversed(os.pipe())
                setattr(self, name, open(ours, modes[i]))
            elif given == subprocess.DEVNULL:
                theirs = os.open(os.devnull, os.O_RDWR)
            else:
                theirs = os.dup(i if given is None else given if isinstance(given, int) else given.fileno())
            ends.append(theirs)
        env = {**(env or os.environ)}
        order = {"arguments": list(map(str, command[1:])), "env": env, "cwd": str(cwd or os.getcwd())}
        order["streams"] = [f"/proc/{os.getpid()}/fd/{end}" for end in ends]
        try:
            super().__init__(source(env), "program", order)
        finally:
            for end in ends:
                os.close(end)

    def communicate(self, timeout: float = float("inf")) -> tuple:
        """What it writes to its pipes, and its end."""
        found = {}

        def read(name):
            with getattr(self, name) as stream:
                found[name] = stream.read()

        threads = [threading.Thread(target=read, args=(name,)) for name in ("stdout", "stderr") if getattr(self, name)]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join()
        return found.get("stdout"), found.get("stderr")


def run(command, *, input=None, text=False, env=None, cwd=None, timeout=600.0) -> subprocess.CompletedProcess:
    """A program, from its start to its end, as subprocess.run with `capture_output`."""
    if sys.platform != "linux":
        return subprocess.run(command, input=input, text=text, env=env, cwd=cwd, capture_output=True, timeout=timeout)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input or b"")
        given.flush()
        program = Program(command, stdin=given, stdout=out, stderr=err, env=env, cwd=cwd)
        try:
            program.wait(timeout)
        finally:
            program.kill()
        written = []
        for file in (out, err):
            file.seek(0)
            written.append(file.read().decode() if text else file.read())
        return subprocess.CompletedProcess(command, program.returncode, *written)


def begin(command, **given):
    """A program that goes on beside this one, as subprocess.Popen."""
    return (Program if sys.platform == "linux" else subprocess.Popen)(command, **given)


# ---- the process that is forked

# How a program's streams are opened; none of them becomes the terminal of this process.
FLAGS = [how | os.O_NOCTTY for how in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)]


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
        ((what, given),) = order.items()
        if what != "poll":
            opened = [os.open(path, how) for path, how in zip(given.get("streams", []), FLAGS)]
            answer = os.fork()
            if not answer:
                return become_kernel(**given) if what == "kernel" else become_program(**given | {"streams": opened})
            alive.add(answer)
            for stream in opened:
                os.close(stream)
        else:
            ended, status = os.waitpid(given, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
            alive.discard(ended)
        print(json.dumps({"answer": answer}), flush=True)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def settle(env: dict[str, str], cwd: str) -> None:
    """Take on such an environment and folder, in a session of one's own."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    # Else unseeded numbers would be the same in every process, and a notebook that forgets its seed would pass.
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()


def become_program(arguments: list[str], env: dict[str, str], cwd: str, streams: list[int]) -> None:
    """Be what `python -c` or `python -m` is in such an environment and folder."""
    for i, stream in enumerate(streams):
        os.dup2(stream, i)
        os.close(stream)
    settle(env, cwd)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    try:
        run_program(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        status = 120
    os._exit(status & 255)  # what Python would do now, to take its modules apart, copies every page of them


def run_program(how: str, what: str, *rest: str) -> None:
    """The code or the module, as `__main__`."""
    sys.argv[:] = [how, *rest]
    if how == "-m":
        sys.path.insert(0, os.getcwd())
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), main.__dict__)


def become_kernel(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Be what `python -m ipykernel_launcher` is in such an environment and folder."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)  # the pipes are the source's
    settle(env | {"JPY_PARENT_PID": str(os.getppid())}, cwd)
    from ipykernel import kernelapp

    sys.argv = [sys.modules["ipykernel_launcher"].__file__, *arguments]
    # It ends when its parent does, which is the source.
    kernelapp.launch_new_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


if __name__ == "__main__":
    serve()
