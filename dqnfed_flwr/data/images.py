"""Image files to one array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

DEEP = ("I", "F")
"""Pillow's modes of grey images whose values do not fit into 8 bits, and would be cut off."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def is_image(file: Path) -> bool:
    """Tell by its suffix whether a file is an image."""
    return file.suffix.lower() in SUFFIXES


def decode(files: Sequence[Path], size: int, target: Path) -> NDArray[np.uint8]:
    """Decode colour images into the file `target`, mapped, so that large sets need no memory.

    Parameters
    ----------
    files : Sequence[Path]
        N images; grey ones become colour.
    size : int
        Side to which each is scaled, or 0 where all have one size already.

    Returns
    -------
    NDArray[np.uint8]
        [N, H, W, 3].

    Raises
    ------
    DataError
        If Pillow is not installed, a file is no whole image of 8 bits, or sizes differ.
    """
    width, height = (size, size) if size else _open(files[0], 0).size
    images = np.lib.format.open_memmap(target, "w+", dtype=np.uint8, shape=(len(files), height, width, 3))
    for place, file in enumerate(files):
        image = _open(file, size)
        if image.size != (width, height):
            raise DataError(
                f"data: {file} has {image.size[0]}x{image.size[1]} pixels, {files[0]} {width}x{height}; scale them "
                "alike with the option size, such as size=64"
            )
        images[place] = np.asarray(image)
    return images


def _open(file: Path, size: int) -> Image:
    try:
        from PIL import Image
    except ImportError:
        raise DataError("data: images are read by Pillow: pip install 'dqnfed-flwr[datasets]'") from None
    try:
        with Image.open(file) as image:
            mode, colours = image.mode, image.convert("RGB")
    except Exception as error:  # whatever a damaged image makes Pillow raise
        raise DataError(f"data: {file} is no whole image ({error}); unpack or fetch it again") from error
    if mode.startswith(DEEP):
        raise DataError(f"data: {file} has more than 8 bits a pixel (mode {mode}); scale the images to 8 bits first")
    if not size or colours.size == (size, size):
        return colours
    return colours.resize((size, size), Image.Resampling.BILINEAR)
