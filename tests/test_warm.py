"""What is forked from a warm process is otherwise the kernel, or the program, that would have been started."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux alone")

# What a notebook could notice, as a cell and its answer.
TOLD = """import json, os, signal, sys
import matplotlib
assert not {"warm", "kernel", "chapters"} & set(sys.modules)
json.dumps([sys.path, sys.argv[0], sys.executable, os.getcwd(), __name__, sys.modules["__main__"].__name__,
    matplotlib.get_backend(), hash("a"), os.environ["OMP_NUM_THREADS"], signal.getsignal(signal.SIGINT).__name__,
    os.getpgid(0) == os.getsid(0) == os.getpid(), sorted(set(os.environ) - {"PYTEST_CURRENT_TEST"})])"""
# The same kernel, started by a process of its own without `warm`.
COLD = f"""import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3", cwd=sys.argv[1])
client.execute_interactive({TOLD!r}, output_hook=lambda m: print(eval(m["content"]["data"]["text/plain"])) if "data" in m["content"] else None)
client.stop_channels()
manager.shutdown_kernel(now=True)"""


class Kernel:
    def __init__(self, folder):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(folder))
        self.process = self.manager.provisioner.process

    def run(self, source: str):
        "The last value of a cell, as text; the name of its error."
        said = []

        def take(message):
            content = message["content"]
            said.extend([content["data"]["text/plain"]] if "data" in content else [content["ename"]] if "ename" in content else [])

        self.client.execute_interactive(source, timeout=120, output_hook=take)
        return said[-1] if said else None

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    warm.kernels()
    made = Kernel(tmp_path)
    yield made
    made.end()


def state(pid: int) -> str:
    "Of a process: its letter in /proc, or nothing where it is gone."
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def gone(pid: int) -> bool:
    for _ in range(600):
        if not state(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_notebook_sees_no_difference(kernel, tmp_path):
    assert isinstance(kernel.process, warm.Forked)
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    cold = subprocess.run([sys.executable, "-c", COLD, str(tmp_path)], capture_output=True, text=True, timeout=300, env=env)
    assert cold.returncode == 0, cold.stderr
    assert json.loads(eval(kernel.run(TOLD))) == json.loads(cold.stdout)


def test_no_thread_is_forked_and_no_number_is_the_same(kernel, tmp_path):
    "A fork keeps one thread of many, and would repeat numbers that nobody has seeded."
    assert len(os.listdir(f"/proc/{kernel.process.source.process.pid}/task")) == 1
    drawn = "import random, numpy, torch; (random.random(), numpy.random.rand(), torch.rand(()).item())"
    other = Kernel(tmp_path)
    pairs = zip(eval(kernel.run(drawn)), eval(other.run(drawn)))
    other.end()
    assert all(a != b for a, b in pairs)


def test_it_is_interrupted_and_goes_on(kernel):
    cell = "import time\nprint(1, flush=True)\nfor _ in range(600): time.sleep(0.1)"
    message = kernel.client.execute(cell, stop_on_error=False)  # else what is asked right after an error is thrown away
    while kernel.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":  # the cell runs: before, the loop would be hit
        pass
    kernel.manager.interrupt_kernel()
    while (reply := kernel.client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != message:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.run("6 * 7") == "42"


def test_a_kernel_that_dies_is_noticed_and_leaves_no_zombie(kernel):
    kernel.client.execute("import os; os._exit(3)")
    while kernel.process.poll() is None:
        time.sleep(0.05)
    assert kernel.process.poll() == 3 and not kernel.manager.is_alive()
    assert gone(kernel.process.pid)


def test_one_that_is_shut_down_is_gone(kernel):
    kernel.end()
    assert gone(kernel.process.pid)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_another_environment_is_another_source_and_no_kernel_outlives_its_own(kernel, tmp_path, monkeypatch, how):
    "What an import may have read must be what the kernel was given."
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    other = Kernel(tmp_path)
    assert other.run("hash('a')") != kernel.run("hash('a')")
    source = other.process.source.process
    assert source is not kernel.process.source.process
    other.client.stop_channels()
    if how == "killed":
        source.kill()
    else:
        source.stdin.close()
    source.wait(60)
    assert gone(other.process.pid)
    assert kernel.run("6 * 7") == "42" and not other.manager.is_alive()


def test_another_program_is_started_as_ever(tmp_path):
    "A kernel of another language, or of another Python."
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv = ["sleep", "60"]
    manager.start_kernel(cwd=str(tmp_path))
    assert isinstance(manager.provisioner.process, subprocess.Popen)
    manager.shutdown_kernel(now=True)


def test_elsewhere_nothing_is_changed(monkeypatch):
    from jupyter_client.provisioning import KernelProvisionerFactory as Factory

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(Factory.instance(), "default_provisioner_name", "local-provisioner")
    warm.kernels()
    assert Factory.instance().default_provisioner_name == "local-provisioner"


SEEN = """import json, os, signal, sys
assert not {"warm", "kernel", "chapters"} & set(sys.modules)
print(json.dumps([sys.path, sys.argv, os.getcwd(), __name__, __name__ in sys.modules, sys.stdin.read(), hash("a"), os.isatty(1),
    signal.getsignal(signal.SIGINT).__name__, list(os.environ)]))
print("said", file=sys.stderr)
sys.exit(3)"""


@pytest.mark.parametrize("how", ["-c", "-m"])
def test_a_program_sees_no_difference(how, tmp_path):
    (tmp_path / "seen.py").write_text(SEEN)
    command = [sys.executable, how, SEEN if how == "-c" else "seen", "a", "b c"]
    given = {"input": "für\n", "text": True, "cwd": tmp_path}
    found, wanted = warm.run(command, **given | {"input": b"f\xc3\xbcr\n"}), subprocess.run(command, capture_output=True, env={**os.environ}, **given)
    assert (found.returncode, found.stderr) == (wanted.returncode, wanted.stderr) == (3, "said\n")
    (*warmly, there), (*coldly, here) = json.loads(found.stdout), json.loads(wanted.stdout)
    assert warmly == coldly and not set(there) ^ set(here)


ENDS = {"pass": 0, "import sys; sys.exit('why')": 1, "1 / 0": 1, "import os; os.abort()": -6,
        "import sys, atexit; atexit.register(print, 'why', file=sys.stderr); sys.exit(259)": 3}


@pytest.mark.parametrize("code", ENDS)
def test_a_program_ends_as_it_would(code):
    done = warm.run([sys.executable, "-c", code], text=True)
    said = "why" if "why" in code else "ZeroDivisionError: division by zero" if "/" in code else ""
    assert done.returncode == ENDS[code] and (done.stderr.splitlines() or [""])[-1].startswith(said)


def test_one_talks_with_a_program_and_stops_it():
    code = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    pipe = subprocess.PIPE
    one, other = (warm.Program([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2))
    for program in (one, other):
        program.stdin.write("a\n")
        program.stdin.flush()
        assert program.stdout.readline() == "A\n" and program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.1)
    one.stdin.close()
    assert one.communicate() == ("", "") and one.returncode == 0
    other.send_signal(signal.SIGKILL)
    assert other.wait() == -9 and gone(other.pid)


def test_only_a_program_of_this_python_is_one():
    with pytest.raises(ValueError, match="a program is .* -c or -m"):
        warm.Program(["sleep", "60"])
