"""What the page needs from elsewhere is named, pinned and checked, and comes whole or not at all."""

import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest
from chapters import ROOT
from web import fetch

FOLDER = ROOT / "tools" / "web"
LOCK = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
PACKAGE = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
PINS = PACKAGE["dependencies"] | PACKAGE["devDependencies"]


def test_the_lock_pins_every_package_by_its_digest_and_names_no_registry():
    assert {name: LOCK[f"node_modules/{name}"]["version"] for name in PINS} == PINS  # exactly, no range
    assert all(at["integrity"].startswith("sha512-") and "resolved" not in at for name, at in LOCK.items() if name)


def test_the_files_in_use_are_of_the_packages():
    used = {"/".join(pattern.split("/")[: 2 if pattern.startswith("@") else 1]) for pattern in fetch.FILES}
    assert used == set(PINS) - {"eslint", "@eslint/js", "globals"}  # these three stay whole, for the linter
    assert f"mathjax@{LOCK['node_modules/mathjax']['version']}/" in fetch.CDN


def test_the_linter_finds_what_is_wrong_with_a_script(tmp_path):
    folder, node = fetch.fetch(), shutil.which("node")
    if folder is None or node is None:
        pytest.skip("eslint comes from npm and runs in node, which are not here")
    (tmp_path / "eslint.config.mjs").write_text((FOLDER / "eslint.config.mjs").read_text())
    (tmp_path / "node_modules").symlink_to(folder / "lint" / "node_modules")
    (tmp_path / "bad.js").write_text("var used = undefinedName;\n")
    command = [node, tmp_path / "node_modules/eslint/bin/eslint.js", "bad.js"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "no-undef" in done.stdout and "no-var" in done.stdout


def test_the_cdn_would_serve_the_same_file():
    folder = fetch.fetch()
    if folder is None:
        pytest.skip("the packages come from npm, which is not here")
    digest = hashlib.sha384((folder / "page/mathjax/tex-mml-chtml.js").read_bytes()).digest()
    assert fetch.CDN_INTEGRITY == "sha384-" + base64.b64encode(digest).decode()
    assert len(list((folder / "page/fonts").glob("*.woff2"))) == sum(map(len, fetch.TYPE.values()))


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """`npm(script)` puts a program in npm's place; the cache is empty."""
    monkeypatch.setattr(fetch, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(fetch, "HERE", tmp_path / "web")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "web").mkdir()
    for name in fetch.LOCK:
        shutil.copyfile(FOLDER / name, tmp_path / "web" / name)

    def write(script: str) -> None:
        (tmp_path / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "npm").chmod(0o755)

    return write


def packages() -> str:
    """A script that makes every file in use."""
    paths = ["node_modules/" + pattern.replace("*", "a.woff") for pattern in fetch.FILES]
    return "\n".join(f"mkdir -p $(dirname {path}) && echo {path} > {path}" for path in paths)


def test_the_files_in_use_are_kept_and_fetched_once(npm):
    npm(f'[ "$1" = ci ] && [ -f package-lock.json ] || exit 1\n{packages()}\nmkdir node_modules/mathjax/es5/sre')
    folder = fetch.fetch()
    assert folder.parent == fetch.CACHE and [path.name for path in fetch.CACHE.iterdir()] == [folder.name]
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert len(kept) == len(fetch.FILES)
    assert {"page/mathjax/tex-mml-chtml.js", "page/fonts/LICENSE-inconsolata.txt", "test/axe.min.js"} <= kept
    npm("exit 1")
    assert fetch.fetch() == folder


def test_without_npm_or_network_a_line_says_what_the_page_does(npm, monkeypatch, capsys):
    npm("echo npm error code ENOTFOUND >&2; exit 1")
    assert fetch.main() == 0
    assert capsys.readouterr().out.startswith("npm ci failed: the page will use the CDN")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert fetch.main() == 0
    assert capsys.readouterr().out.startswith("there is no npm: the page will use the CDN")


@pytest.mark.parametrize("script, said", [
    ("echo npm error code EINTEGRITY >&2; exit 1", "EINTEGRITY"),
    ("echo npm error code EUSAGE >&2; exit 1", "EUSAGE"),
    (packages().replace("mathjax/LICENSE", "mathjax/NOTICE"), "mathjax/LICENSE is in none of the packages"),
])
def test_what_is_not_as_the_lock_says_stops_the_build(npm, script, said):
    npm(script)
    with pytest.raises(SystemExit, match=said):
        fetch.fetch()
    assert not list(fetch.CACHE.iterdir())


def test_a_new_window_learns_nothing_of_this_one(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_ext"))
    from annotated_page import hardened

    page = '<a href="x" target="_blank"\n class="y">a</a><a href="z">b</a><a rel="nofollow" target="_blank">c</a><abbr target="_blank">'
    assert hardened(page) == page.replace('<a href="x"', '<a rel="noopener" href="x"')
    assert hardened(hardened(page)) == hardened(page)


def test_pictures_of_the_readme_show_on_an_index_page():
    "They have the repository's own address, which stands in _config.yml."
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    (address,) = re.findall(r"(?m)^  url: https://github\.com/(\S+)$", config)
    (branch,) = re.findall(r"(?m)^  branch: (\S+)$", config)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", readme) + re.findall(r'<img[^>]*src="([^"]*)"', readme)
    start = f"https://raw.githubusercontent.com/{address}/{branch}/"
    assert pictures
    for picture in pictures:
        assert picture.startswith(start) and (ROOT / picture.removeprefix(start)).is_file()
