"""Does the steps of the Dockerfile in a bare folder, and proves what comes of it.

Both stages are folders. RUN goes to a shell with the stage's paths in the place of /opt, /src and
/wheel; what would make users is read, not done. Then CMD and HEALTHCHECK run as the image would run
them: the environment is ENV alone, the code is not the repository's, and the folders of the image
may not be written to. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UID = 10001
UP_S = 120.0
# Of a stage: what its paths become.
MOVED = ("/opt/", "/src", "/wheel", "/var/lib/ramrack")


class Failed(Exception):
    """The image would not be what the Dockerfile says."""


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, continued lines joined, without comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(kind, rest.strip()) for kind, rest in (x.split(" ", 1) for x in joined.splitlines())]


class Image:
    """The stages of one build, each a folder below ``work``."""

    def __init__(self, work: Path, arguments: dict[str, str]) -> None:
        self.work = work
        self.arguments = arguments
        self.stages: dict[str, Path] = {}
        self.stage = work
        self.cwd = "/"
        self.env: dict[str, str] = {}
        self.last: dict[str, str] = {}

    def build(self, text: str) -> None:
        """Do every instruction in order; raises Failed naming the one that cannot be done."""
        for kind, rest in instructions(text):
            say(f"{kind} {rest[:90]}")
            getattr(self, f"do_{kind.lower()}", self.keep)(rest)
            self.last[kind] = rest

    def keep(self, rest: str) -> None:
        """Take note of what only describes the image."""

    def do_arg(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.arguments.setdefault(name, value)

    def do_from(self, rest: str) -> None:
        name = rest.rpartition(" AS ")[2] if " AS " in rest else "final"
        self.stage = self.stages[name] = self.work / name
        self.stage.mkdir()
        self.env, self.last, self.cwd = {}, {}, "/"

    def do_workdir(self, rest: str) -> None:
        self.cwd = rest
        self.inside(rest).mkdir(parents=True, exist_ok=True)

    def do_env(self, rest: str) -> None:
        self.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))

    def do_copy(self, rest: str) -> None:
        *sources, target = [word for word in rest.split() if not word.startswith("--from")]
        origin = ROOT
        if rest.startswith("--from="):
            origin = self.stages[rest.split()[0].partition("=")[2]]
        place = self.inside(target if target.startswith("/") else f"{self.cwd}/{target}")
        for name in sources:
            source = origin / name.lstrip("/")
            if not source.exists():
                raise Failed(f"COPY {name}: it is not there")
            if source.is_dir():
                skip = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True, ignore=skip)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)

    def do_run(self, rest: str) -> None:
        for part in rest.split("&&"):
            command = part.strip()
            for name, value in self.arguments.items():
                command = command.replace(f"${{{name}}}", value)
            if command.startswith(("useradd", "groupadd")):
                if f"--uid {UID} " not in command and f"--gid {UID} " not in command:
                    raise Failed(f"{command!r} gives no fixed number")
                continue
            # Only root gives files away.
            is_giving = command.startswith("install")
            own = re.sub(r"-[og] \d+ ?", "", command) if is_giving else command
            done = subprocess.run(
                ["/bin/sh", "-c", self.moved(own)], cwd=self.inside(self.cwd), check=False,
                env=clean_environ(self.env), stdin=subprocess.DEVNULL, capture_output=True,
                text=True,
            )  # fmt: skip
            if done.returncode:
                raise Failed(f"RUN {command}: exit code {done.returncode}\n{done.stderr[-2000:]}")

    def inside(self, path: str) -> Path:
        """Return where a path of the image lies in the current stage."""
        return self.stage / path.lstrip("/")

    def moved(self, text: str) -> str:
        """Return a command or value with the image's paths in the current stage."""
        # Folders that a step makes below these must have a parent.
        for prefix in MOVED:
            self.inside(prefix).mkdir(parents=True, exist_ok=True)
        pattern = "|".join(re.escape(prefix) for prefix in MOVED)
        text = re.sub(rf"(?<![\w/.])({pattern})", lambda m: f"{self.stage}{m[1]}", text)
        return text.replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv")


def clean_environ(env: dict[str, str]) -> dict[str, str]:
    """Return a container's environment: of this shell's only where packages come from."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_")) or k == "HOME"}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, **env}


def prove(image: Image) -> None:
    """Start CMD, ask HEALTHCHECK, look at what was written where, and stop as an engine does."""
    venv = image.inside("/opt/ramrack")
    moved_scripts(venv, image.stages["build"] / "opt/ramrack")
    if image.last.get("USER") != f"{UID}:{UID}":
        raise Failed(f"USER is {image.last.get('USER')!r}, not {UID}:{UID}")
    env = {name: image.moved(value.replace("$PATH", "/usr/bin:/bin"))
           for name, value in image.env.items()}  # fmt: skip
    # /opt/ramrack/bin stands first in PATH: moved() has seen it.
    env |= {"RAMRACK_HOST": "127.0.0.1", "RAMRACK_PORT": "0", "RAMRACK_ADMIN_PORT": "0"}
    before = snapshot(venv)
    command = json.loads(image.last["CMD"])
    store = image.inside("/var/lib/ramrack")
    outcome = subprocess.run(
        ["python", "-c", "import serving; print(serving.__file__)"], cwd="/", check=True,
        env=clean_environ(env), capture_output=True, text=True,
    )  # fmt: skip
    if not outcome.stdout.startswith(str(venv)):
        raise Failed(f"the code comes from {outcome.stdout.strip()}, not from the image")
    with (image.work / "log").open("w+") as log:
        say(f"CMD {command}")
        process = subprocess.Popen(
            command, cwd=store, env=clean_environ(env), stdin=subprocess.DEVNULL, stderr=log,
            start_new_session=True, executable=str(venv / "bin" / command[0]),
        )  # fmt: skip
        try:
            url = wait_for(process, image.work / "log")
            check = json.loads(image.last["HEALTHCHECK"].partition("CMD ")[2])
            # It asks where the settings say, which here were any free port.
            env["RAMRACK_PORT"] = url.rpartition(":")[2]
            say(f"HEALTHCHECK {check}")
            if subprocess.run(check, cwd=store, env=clean_environ(env), check=False).returncode:
                raise Failed("HEALTHCHECK fails while the server answers")
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        if code != 0:
            raise Failed(f"exit code {code} after SIGTERM")
        if subprocess.run(check, cwd=store, env=clean_environ(env), check=False,
                          stderr=subprocess.DEVNULL).returncode == 0:  # fmt: skip
            raise Failed("HEALTHCHECK succeeds without a server")
    if changed := snapshot(venv) ^ before:
        raise Failed(f"the server wrote into its own folder: {sorted(changed)[:3]}")
    size = sum(f.stat().st_size for f in venv.rglob("*") if f.is_file() and not f.is_symlink())
    say(f"/opt/ramrack takes {size / 1e6:.0f} MB")


def moved_scripts(venv: Path, old: Path) -> None:
    """Let the programs of a copied environment find its Python, which an image has in its place."""
    for path in [*(venv / "bin").iterdir(), venv / "pyvenv.cfg"]:
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            path.write_bytes(data.replace(str(old).encode(), str(venv).encode()))


def snapshot(folder: Path) -> set[tuple[str, int]]:
    """Return every file of a folder with its size."""
    return {(str(p), p.stat().st_size) for p in folder.rglob("*") if p.is_file()}


def wait_for(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the data plane's address once it answers; raises Failed with the log."""
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r'"url":"(http://[^"]+)"', log.read_text())
        if found and is_up(found[1]):
            return found[1]
        time.sleep(0.1)
    raise Failed(f"CMD does not serve: {log.read_text()[-2000:]}")


def is_up(url: str) -> bool:
    """Whether a worker answers."""
    try:
        urllib.request.urlopen(f"{url}/v2/health/ready", timeout=3).close()
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """Say what is done."""
    print(f"   {text}", flush=True)


def main(argv: list[str]) -> int:
    """Build and prove; arguments are build arguments, NAME=VALUE."""
    if sys.version_info[:2] != (3, 11):
        print("check-image: the image has Python 3.11: name one with PYTHON=", file=sys.stderr)
        return 2
    arguments = dict(argument.split("=", 1) for argument in argv)
    with tempfile.TemporaryDirectory(prefix="ramrack-image-") as folder:
        image = Image(Path(folder), arguments)
        try:
            image.build((ROOT / "Dockerfile").read_text("utf-8"))
            prove(image)
        except Failed as error:
            print(f"check-image: {error}", file=sys.stderr)
            return 1
    print("the Dockerfile does what it says")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
