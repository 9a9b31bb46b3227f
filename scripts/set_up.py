"""Makes the two environments of a checkout: ``.venv`` for Airflow, ``.venv-runtime`` for TensorFlow and Spark.

With the argument ``demo``, without the tools of development and tests, which a later run without it adds. Needs Python
3.11, 3.12 or 3.13 with its standard library. ``.venv-runtime`` is of the profile that fits this machine; uv finds its
Python, or downloads one. What is good already is left alone: a second run takes a moment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from airflow_hops.core.errors import HopsError  # noqa: E402
from airflow_hops.core.profiles import Profile, profile_of, read_stamp  # noqa: E402
from airflow_hops.runner.environments.java import find_java  # noqa: E402
from airflow_hops.runner.environments.runtime import (  # noqa: E402
    AIRFLOW_PYTHON_VERSIONS,
    build_tools_missing,
    create_environment,
    environment_state,
    find_python,
    fingerprint,
    machine_profile,
    pins_of,
    reason_for_profile,
    uv_variables,
)
from build_ui import BuildFailed, build  # noqa: E402

UV_FOLDER = ROOT / ".uv"
AIRFLOW = ROOT / ".venv"
RUNTIME = ROOT / ".venv-runtime"
REQUIREMENTS = ROOT / "requirements"
DEMO_PINS = REQUIREMENTS / "airflow-demo.txt"
ALL_PINS = REQUIREMENTS / "airflow.txt"
"""Those of ``DEMO_PINS``, and those of the tools of development and tests."""
PACKAGE_STAMP = AIRFLOW / "hops-package.sha256"


class Stage(NamedTuple):
    """A part of the set-up.

    Attributes:
        name: What it makes.
        usual_s: Estimate of the seconds that it takes on two quiet cores, by which the bar grows.
        run: Makes it; returns whether there was anything to do.
    """

    name: str
    usual_s: float
    run: Callable[[], bool]


class Progress:
    """A bar of the stages: on a terminal a line that is drawn again each second, in a log a line now and then.

    A stage counts by its usual seconds: wholly when it has ended, and nearly so when it takes longer.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._started: dict[str, float] = {}
        self._ended: set[str] = set()
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def run(self, stages: Iterable[Stage]) -> bool:
        """Runs stages in order, and reports how long each took that had something to do; returns whether any had."""
        done = False
        for stage in stages:
            started = self._started[stage.name] = time.monotonic()
            if stage.run():
                done = True
                say(f"{stage.name}: {time.monotonic() - started:.1f} s", indent=0)
            self._ended.add(stage.name)
        return done

    def line(self, now: float) -> str:
        """Returns the bar at a time, in seconds of the monotonic clock."""
        share = 0.0
        for stage in self._stages:
            elapsed = now - self._started.get(stage.name, now)
            share += stage.usual_s if stage.name in self._ended else min(elapsed, 0.95 * stage.usual_s)
        share /= sum(stage.usual_s for stage in self._stages)
        names = [name for name in self._started.copy() if name not in self._ended]
        bar = ("#" * round(30 * share)).ljust(30, ".")
        return f"[{bar}] {share:4.0%}, {now - self._begun:.0f} s: {', '.join(names)}"

    def _draw(self) -> None:
        terminal = sys.stdout.isatty()
        while not self._over.wait(1 if terminal else 15):
            line = self.line(time.monotonic())
            if terminal:
                print(f"\r{line[: shutil.get_terminal_size().columns - 1]}\033[K", end="", flush=True)
            else:
                say(line, indent=0)
        if terminal:
            print("\r\033[K", end="", flush=True)


def main() -> int:
    """Runs the stages; returns the exit code."""
    if sys.version_info[:2] not in AIRFLOW_PYTHON_VERSIONS:
        return fail(f"Python 3.11, 3.12 or 3.13 is needed, this is {sys.version.split()[0]} ({sys.executable})")
    if " " in str(ROOT):
        return fail(f"the checkout's path has a space in it ({ROOT}); Spark's start scripts do not bear one: move it")
    begun = time.monotonic()
    side_by_side = stages(demo=sys.argv[1:] == ["demo"])
    if not (AIRFLOW.exists() and RUNTIME.exists()):
        say("Makes .venv for Airflow, and .venv-runtime for TensorFlow and Spark, and compiles Horovod for it.")
        say("Takes some minutes, and 160 s of CPU time, once. Interrupted, it continues at the next start.")
    try:
        with Progress([BRING_UV, *(stage for each in side_by_side for stage in each)]) as progress:
            done = [progress.run([BRING_UV])]
            with ThreadPoolExecutor() as threads:
                done += threads.map(progress.run, side_by_side)
    except HopsError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return fail("interrupted; run it again to continue")
    state = "done" if any(done) else "everything is there already"
    say(f"{state} ({time.monotonic() - begun:.1f} s)", indent=0)
    return 0


def uv_program() -> Path:
    """Returns the path of this checkout's own uv."""
    return UV_FOLDER / "bin" / "uv"


def bring_uv() -> bool:
    """Installs the pinned uv into ``.uv``, through the system's pip or venv, without touching the system's Python."""
    pin = re.search(r"^uv==\S+", (REQUIREMENTS / "airflow.txt").read_text(), re.MULTILINE)
    assert pin is not None
    if succeeds([str(uv_program()), "--version"], says=pin[0].replace("==", " ")):
        return False
    say(f"{pin[0]} into {UV_FOLDER.name}", indent=0)
    shutil.rmtree(UV_FOLDER, ignore_errors=True)
    python = str(UV_FOLDER / "bin" / "python")
    install = ["install", "--quiet", "--disable-pip-version-check", pin[0]]
    # The system's pip is quicker than a new one, but may be missing; before 22.3 it installs only for itself.
    made = succeeds([sys.executable, "-m", "venv", "--without-pip", str(UV_FOLDER)])
    made = made and succeeds([sys.executable, "-m", "pip", "--python", python, *install])
    if not made:
        made = succeeds([sys.executable, "-m", "venv", str(UV_FOLDER)]) and run([python, "-m", "pip", *install])
    if not made:
        if install_debian_packages(["python3-venv"]):
            return bring_uv()
        raise HopsError("uv could not be installed; Debian's Python needs python3-venv: apt-get install python3-venv")
    return True


def make_airflow_environment(*, demo: bool) -> bool:
    """``.venv``: Airflow and the demo's data; unless it is for the demo alone, also the tools of development."""
    stamp = read_stamp(AIRFLOW)
    pins = DEMO_PINS if demo and (stamp is None or stamp.pins != ALL_PINS.name) else ALL_PINS
    announce(AIRFLOW, pins)
    made = create_environment(AIRFLOW, pins, uv=str(uv_program()), versions=[sys.version_info[:2]], say=say_of_uv)
    package = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if made or not has(AIRFLOW, "airflow_hops") or not PACKAGE_STAMP.exists() or PACKAGE_STAMP.read_text() != package:
        target = ["--python", str(AIRFLOW / "bin" / "python")]
        command = [str(uv_program()), "pip", "install", "--quiet", *target, "--no-deps", "--editable", str(ROOT)]
        if not run(command, uv_variables(os.environ)):
            raise HopsError("the package itself could not be installed; what uv said stands above")
        PACKAGE_STAMP.write_text(package)
        return True
    return False


def has(environment: Path, package: str) -> bool:
    """Tells whether a package is installed: uv removes what pins lack, and may have been interrupted after that."""
    return any(environment.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))


def check_build_tools() -> bool:
    """Sees to it that Horovod can be built, if the runtime environment is still to be made."""
    if environment_state(RUNTIME, fingerprint(pins_of(RUNTIME))).good:
        return False
    missing = build_tools_missing(find_python(str(uv_program()), None, profile_of_runtime().pythons, say))
    if not missing:
        return False
    if install_debian_packages(missing):
        return True
    say(f"unless uv has built Horovod before, it needs first: apt-get install {' '.join(missing)}")
    return False


def make_runtime_environment() -> bool:
    """``.venv-runtime``: TensorFlow, TFDV, Horovod, Spark, MLflow, and CUDA where it is there already."""
    pins = pins_of(RUNTIME)
    if announce(RUNTIME, pins):
        say(f"profile of this machine: {reason_for_profile()}")
        say("the first time, Horovod is compiled for this machine: some minutes, and uv keeps the result")
    java = REQUIREMENTS / "java.txt"
    return create_environment(RUNTIME, pins, uv=str(uv_program()), java=java, horovod=True, say=say_of_uv)


def add_test_tools() -> bool:
    """Pytest and its plugins in ``.venv-runtime``, for the tests of the ML side, under that environment's pins."""
    pins, stamp = pins_of(RUNTIME), RUNTIME / "hops-test-tools.sha256"
    tools = pins.with_name(profile_of_runtime().pins.replace(".txt", "-test.txt"))
    wanted = fingerprint(tools) + fingerprint(pins)
    if stamp.exists() and stamp.read_text() == wanted and has(RUNTIME, "pytest"):
        return False
    target = ["--python", str(RUNTIME / "bin" / "python"), "--constraint", str(pins)]
    command = [str(uv_program()), "pip", "install", "--quiet", *target, "-r", str(tools)]
    if not run(command, uv_variables(os.environ)):
        raise HopsError(f"the tools of the tests could not be installed into {RUNTIME}; what uv said stands above")
    stamp.write_text(wanted)
    return True


def build_pages() -> bool:
    """The pages of the web UI, where there is Node.js: without them Airflow shows how to build them."""
    try:
        return build(say)
    except BuildFailed as error:
        say(f"the pages of the web UI are not built: {error}", indent=0)
        return False


def check_java() -> bool:
    """Makes sure that Spark has a Java."""
    java = find_java(RUNTIME)
    if java is None or not java.supported:
        found = "none" if java is None else f"version {java.version} in {java.home}"
        profile = profile_of_runtime()
        package = f"openjdk-{profile.javas[-1]}-jre-headless"
        raise HopsError(
            f"Spark {profile.spark} needs Java {profile.javas[-1]}, found {found}: apt-get install {package}"
        )
    return False


BRING_UV = Stage("uv", 10, bring_uv)


def stages(*, demo: bool) -> tuple[tuple[Stage, ...], ...]:
    """Returns the stages after uv, those that run side by side as tuples; fewer for the demo alone."""
    tools = Stage("test tools", 5, add_test_tools)
    return (
        (
            Stage("Airflow environment", 40 if demo else 60, lambda: make_airflow_environment(demo=demo)),
            Stage("web UI", 30, build_pages),
        ),
        (
            Stage("build tools", 1, check_build_tools),
            Stage("runtime environment", 130, make_runtime_environment),
            *(() if demo else (tools,)),
            Stage("Java", 1, check_java),
        ),
    )


def profile_of_runtime() -> Profile:
    """Returns the profile that ``.venv-runtime`` has, or is to get."""
    return profile_of(RUNTIME) or machine_profile()


def announce(path: Path, pins: Path) -> bool:
    """Says what is about to be made, if anything is."""
    state = environment_state(path, fingerprint(pins))
    if not state.good:
        count = sum(1 for line in pins.read_text().splitlines() if "==" in line and not line.startswith((" ", "#")))
        say(f"{path.name}: {count} packages from {pins.relative_to(ROOT)} ({state.detail})", indent=0)
    return not state.good


def install_debian_packages(names: list[str]) -> bool:
    """Installs Debian packages where that needs nobody's password: as root, as in a container."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    say(f"as root on Debian: apt-get install {' '.join(names)}", indent=0)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--quiet", "--quiet", "--yes", "--no-install-recommends", *names]
    update = ["apt-get", "update", "--quiet"]
    with Path("/var/lock/hops-apt").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run side by side each want a package
        return run(install, environment) or (run(update, environment) and run(install, environment))


def run(command: list[str], environment: dict[str, str] | None = None) -> bool:
    """Runs a command whose output is for people; whether it succeeded."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in (environment or os.environ).items() if name not in dropped}
    return subprocess.run(command, env=kept, stdin=subprocess.DEVNULL).returncode == 0


def succeeds(command: list[str], *, says: str = "") -> bool:
    """Whether a command can be run, succeeds, and says a text."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError:
        return False
    return result.returncode == 0 and says in result.stdout


def say(text: str, *, indent: int = 2) -> None:
    """Prints a line of progress at once, in the place of the bar."""
    erased = "\r\033[K" if sys.stdout.isatty() else ""
    print(f"{erased}[setup] {' ' * indent}{text}", flush=True)


def say_of_uv(line: str) -> None:
    """Prints what uv says; of the packages that it downloads, only those of 100 MiB and more."""
    if not re.match(r"\s*Download(ed |ing .*\(\d{1,2}\.\dMiB\))", line):
        say(line)


def fail(text: str) -> int:
    """Prints why it does not go on; returns the exit code."""
    print(f"[setup] {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
