"""The images of Fashion-MNIST: 60,000 to learn from and 10,000 to be asked about, of Zalando (MIT)."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = "dataset-fashion-mnist"
VARIABLE = "HOPS_FASHION_MNIST"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
    "T-shirt",
    "Trousers",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
"""Names of the classes 0 to 9."""

FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
"""By split, the file of the images and that of their labels."""


def images_folder() -> Path:
    """The folder that holds the four files: what ``HOPS_FASHION_MNIST`` names, else that of Debian's package.

    Raises:
        FileNotFoundError: a file is not there; the message says how to get them.
    """
    folder = Path(os.environ.get(VARIABLE) or DEBIAN_FOLDER)
    if missing := missing_file(folder):
        raise FileNotFoundError(
            f"{missing}: there is no such file. On Debian, as root: apt-get install {PACKAGE}. Without root: "
            f"apt-get download {PACKAGE} && dpkg-deb -x {PACKAGE}_*.deb FOLDER, and set {VARIABLE} to "
            f"FOLDER{DEBIAN_FOLDER}. Elsewhere: set {VARIABLE} to a folder with the four IDX files of "
            "https://github.com/zalandoresearch/fashion-mnist"
        )
    return folder


def missing_file(folder: Path) -> Path | None:
    """The first of the four files that a folder lacks, or None."""
    paths = (folder / name for names in FILES.values() for name in names)
    return next((path for path in paths if not path.is_file()), None)
