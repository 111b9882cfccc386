"""Which package has a module that a worker lacks."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

# Of those that people use most, whose packages have other names.
_PACKAGES: Final = {
    **{"PIL": "pillow", "OpenSSL": "pyopenssl", "attr": "attrs", "bs4": "beautifulsoup4"},
    **{"Crypto": "pycryptodome", "cv2": "opencv-python-headless", "dateutil": "python-dateutil"},
    **{"docx": "python-docx", "dotenv": "python-dotenv", "fitz": "pymupdf", "git": "gitpython"},
    **{"jwt": "pyjwt", "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn"},
    **{"usb": "pyusb", "yaml": "pyyaml", "zmq": "pyzmq"},
}
_MISSED: Final = re.compile(r"No module named '?(\w+)[\w.]*'?")
# In what workers say: drivers/python_child.py.
_NAMELESS: Final = "is installed with env=;"


def naming_package(error: str) -> str:
    """With the package that installs what is missing, where an error says at its end that a module
    is."""
    last = error.rstrip().rpartition("\n")[2]
    if (missed := _MISSED.search(last)) is None:
        return error
    cure = f'env=["{package_of(missed[1])}"]'
    if _NAMELESS in last:
        return error.replace(_NAMELESS, f"is installed with {cure};")
    if missed.end() == len(last):
        return f"{error.rstrip()}; {cure}, or --env of a command, installs it"
    return error


@lru_cache(64)
def package_of(module: str) -> str:
    """By what is installed here, else by its usual name."""
    if module in _PACKAGES:
        return _PACKAGES[module]
    from importlib.metadata import packages_distributions  # which takes half a second

    return next(iter(packages_distributions().get(module, ())), module)
