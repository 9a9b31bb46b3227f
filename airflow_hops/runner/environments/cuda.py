"""The runtime environment with CUDA: NVIDIA's wheels for TensorFlow, and a Horovod that is built with NCCL.

TensorFlow's wheel requires wheels of CUDA's libraries, so that the machine needs only NVIDIA's driver. Horovod's build
uses NCCL from its wheel, and a compiler from the wheels of ``cuda-build.txt``. Standard library only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.runner.environments.uv_program import HorovodBuild, Say, run_uv

_NCCL = "nvidia-nccl-cu12"
_BESIDE_HOROVOD = "$ORIGIN/../../nvidia/nccl/lib"
"""Path from Horovod's library to NCCL's: both are in the same ``site-packages``."""


def needs_nccl(pins: Path) -> bool:
    """Returns whether the pins include NCCL, with which Horovod is then built."""
    return re.search(rf"^{_NCCL}==", pins.read_text(), re.MULTILINE) is not None


@contextmanager
def horovod_with_nccl(pins: Path, python: Path, toolkit: Path | None, *, uv: str, say: Say) -> Iterator[HorovodBuild]:
    """Provides the build inputs of Horovod, NCCL of the pins and a CUDA toolkit, within the context.

    Args:
        pins: Pins of the environment, with NCCL; ``uv.toml`` and ``cuda-build.txt`` are beside them.
        python: Python of the environment.
        toolkit: Result of :func:`toolkit_of_the_machine`; None for that of the wheels.
        uv: The uv program.
        say: Called with each line of progress.

    Raises:
        HopsError: a wheel cannot be installed; uv's output went to ``say``.
    """
    compiler = pins.with_name("cuda-build.txt")
    (nccl,) = re.findall(rf"^({_NCCL}==\S+)", pins.read_text(), re.MULTILINE)
    variables = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_WITHOUT_NVTX": "1",
        "LDFLAGS": f"-Wl,-rpath,{_BESIDE_HOROVOD}",
        "HOPS_NCCL": nccl,  # not read by the build, but makes uv build again for another NCCL
    }
    if toolkit:
        variables["HOROVOD_CUDA_HOME"] = str(toolkit)
    else:
        variables["HOPS_CUDA_COMPILER"] = hashlib.sha256(compiler.read_bytes()).hexdigest()  # so does another compiler
    with temporary_folder("uv") as folder:
        files = [] if toolkit else ["--requirement", str(compiler.resolve())]
        say(f"Horovod with NCCL: {nccl}, and the CUDA compiler of {toolkit or compiler.name}")
        target = ["--python", str(python), "--no-deps", "--target", str(folder)]
        run_uv([uv, "pip", "install", "--quiet", *target, nccl, *files], pins.with_name("uv.toml"), say)
        nccl_home = folder / "nvidia" / "nccl"
        (nccl_home / "lib" / "libnccl.so").symlink_to("libnccl.so.2")
        # CMake takes folders of LIBRARY_PATH for the compiler's own, and does not write them into the library's RPATH.
        places = {"HOROVOD_NCCL_HOME": str(nccl_home), "LIBRARY_PATH": str(nccl_home / "lib")}
        if toolkit is None:
            toolkit = next(folder.glob("nvidia/cu*"))
            # Adds names that a toolkit from other sources has.
            (toolkit / "lib64").symlink_to("lib")
            (toolkit / "lib" / "libcudart.so").symlink_to(next(toolkit.glob("lib/libcudart.so.*")).name)
            places |= {"HOROVOD_CUDA_HOME": str(toolkit), "CPATH": str(toolkit / "include" / "cccl")}
        yield variables, places


def cuda_of(installed: Mapping[str, str]) -> str | None:
    """Describes the versions of CUDA and NCCL among the ``installed`` packages (name to version); None without CUDA."""
    cuda, nccl = (installed.get(name) for name in ("nvidia-cuda-runtime-cu12", _NCCL))
    return None if cuda is None else f"CUDA {cuda}, NCCL {nccl or 'none'}"


def toolkit_of_the_machine(env: Mapping[str, str]) -> Path | None:
    """Returns the CUDA toolkit of ``CUDA_HOME``, to use instead of the wheels' one; None if it is not set.

    Raises:
        BadInput: it is not a complete toolkit.
    """
    named = env.get("CUDA_HOME")
    if not named:
        return None
    for file in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
        if not (Path(named) / file).exists():
            raise BadInput(
                f"CUDA_HOME is {named!r}, which has no {file}: building Horovod with NCCL needs a complete toolkit; "
                "name one, or unset CUDA_HOME to install the compiler from wheels"
            )
    return Path(named)
