"""Where JavaScript can be run for tests: node, Chromium, Firefox. Each runs the body of an async function and returns its value.

Not a test itself.
"""

import functools
import http.server
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import page
from page import CHROMIUM, FLAGS

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
NODE = shutil.which("node")


def node(body: str, scripts: list[Path], given=None):
    "Run body, which sees `annotated`, `given` and `engine`, what the first script exports, after scripts."
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "given.json")
        data.write_text(json.dumps(given))
        required = [f"require({json.dumps(str(path.resolve()))});" for path in scripts]
        program = Path(folder, "program.cjs")
        program.write_text(
            f"const given = require({json.dumps(str(data))}); const engine = {''.join(required)}\n"
            f"(async () => {{\n{body}\n}})().then(\n"
            "  (value) => process.stdout.write(JSON.stringify(value ?? null)),\n"
            "  (error) => { console.error(error); process.exit(1); });\n")
        done = subprocess.run([NODE, str(program)], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


class Plain(http.server.SimpleHTTPRequestHandler):
    "Files of a folder as they are, which a browser may keep: many pages are read faster."

    def log_message(self, *_):
        pass


served = functools.partial(page.served, handler=Plain)


class Chromium:
    "A page of headless Chromium, which notes what it asks for and complains of."

    def __init__(self):
        from playwright.sync_api import sync_playwright

        self.play = sync_playwright().start()
        self.browser = self.play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        self.page = self.browser.new_page()
        self.page.set_default_timeout(300_000)
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> None:
        self.requests.clear()
        self.page.goto(address)

    def run(self, body: str, given=None):
        return self.page.evaluate(f"async (given) => {{ {body} }}", given)

    def asked(self) -> list[str]:
        return list(self.requests)

    def close(self) -> None:
        self.browser.close()
        self.play.stop()


class Firefox:
    "The same of headless Firefox, as its package has it, by its Marionette protocol."

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        Path(self.profile.name, "user.js").write_text(
            'user_pref("marionette.port", 0);\nuser_pref("app.update.enabled", false);\n'
            'user_pref("datareporting.policy.dataSubmissionEnabled", false);\n'
            'user_pref("network.captive-portal-service.enabled", false);\n')
        command = [FIREFOX, "--headless", "--no-remote", "--marionette", "--profile", self.profile.name]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.socket = socket.create_connection(("127.0.0.1", self.port()), timeout=300)
        self.number = 0
        self.answer()  # it says who it is
        self.ask("WebDriver:NewSession", {})
        self.ask("WebDriver:SetTimeouts", {"script": 300_000, "pageLoad": 120_000})

    def port(self) -> int:
        path = Path(self.profile.name, "MarionetteActivePort")
        for _ in range(600):
            if path.exists() and path.read_text().strip():
                return int(path.read_text())
            assert self.process.poll() is None, "Firefox ended"
            time.sleep(0.1)
        raise TimeoutError("Firefox opened no port for its tests")

    def answer(self):
        length = b""
        while not length.endswith(b":"):
            length += self.socket.recv(1)
        content = b""
        while len(content) < int(length[:-1]):
            content += self.socket.recv(int(length[:-1]) - len(content))
        return json.loads(content)

    def ask(self, command: str, parameters: dict):
        self.number += 1
        message = json.dumps([0, self.number, command, parameters])
        self.socket.sendall(f"{len(message)}:{message}".encode())
        _, _, error, value = self.answer()
        assert not error, error
        return value

    def open(self, address: str) -> None:
        self.ask("WebDriver:Navigate", {"url": address})

    def run(self, body: str, given=None):
        # The page's own names stand on its window, and nothing of the test's shadows them.
        script = (
            "const [given, done] = arguments; const text = arguments[2];\n"
            f"(async () => {{ {body} }})().then((value) => done(JSON.stringify(value ?? null)),"
            " (error) => done(JSON.stringify({failed: String(error)})));")
        found = self.ask("WebDriver:ExecuteAsyncScript", {"script": script, "args": [given], "sandbox": None, "newSandbox": False})
        value = json.loads(found["value"])
        assert not (isinstance(value, dict) and "failed" in value), value["failed"]
        return value

    def asked(self) -> list[str]:
        return self.run("return performance.getEntriesByType('resource').map((entry) => entry.name);")

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)
        self.profile.cleanup()


BROWSERS = {"chromium": (CHROMIUM, Chromium), "firefox": (FIREFOX, Firefox)}


@functools.cache
def has_playwright() -> bool:
    import importlib.util

    return importlib.util.find_spec("playwright") is not None
