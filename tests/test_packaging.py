"""What ships: built once from a copy of the checkout, then looked at and tried in each of its forms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)
pytestmark = pytest.mark.xdist_group("packaging")


@dataclass(frozen=True, slots=True)
class Built:
    checkout: Path
    sdist: Path
    wheel: Path

    def names_in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def names_in_sdist(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A source distribution, and the wheel made from it."""
    checkout = tmp_path_factory.mktemp("packaging") / "a checkout"
    shutil.copytree(CHECKOUT, checkout, ignore=NOT_SOURCE)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", checkout / "dist", checkout)
    (sdist,) = checkout.glob("dist/*.tar.gz")
    (wheel,) = checkout.glob("dist/*.whl")
    return Built(checkout, sdist, wheel)


def run(*command: str | Path, path: Path | None = None) -> str:
    """Run a command in an empty place, with only `path` to import from; what it printed."""
    done = subprocess.run(
        command,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(path or ""), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def shipped(folder: str, *suffixes: str) -> set[str]:
    """The files of the checkout below a folder, by their paths in it."""
    return {
        str(file.relative_to(CHECKOUT))
        for file in (CHECKOUT / folder).rglob("*")
        if file.suffix in suffixes and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_every_sql_file_and_migration(built: Built) -> None:
    sources = shipped("sql", ".sql") | shipped("migrations", ".py", ".mako")

    assert {f"ledger/{name}" for name in sources} <= built.names_in_wheel()


def test_the_wheel_holds_every_module_script_and_example(built: Built) -> None:
    assert shipped("ledger", ".py", ".lua", ".csv", ".typed") <= built.names_in_wheel()


def test_the_wheel_adds_one_name_to_site_packages(built: Built) -> None:
    tops = {name.split("/", 1)[0] for name in built.names_in_wheel()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"ledger"}


def test_the_source_distribution_holds_what_its_users_build_and_test_with(built: Built) -> None:
    wanted = {"cli.py", "Makefile", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
    sources = wanted | shipped("sql", ".sql") | shipped("tests", ".py") | shipped("docs", ".md")

    assert sources <= built.names_in_sdist()


def test_every_folder_with_something_to_ship_is_listed() -> None:
    """A new folder has to be added to `packages`, or an editable install alone would find it."""
    listed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    files = shipped("ledger", ".py", ".lua", ".csv") | {
        f"ledger/{name}" for name in shipped("sql", ".sql") | shipped("migrations", ".py")
    }

    assert {name.rsplit("/", 1)[0].replace("/", ".") for name in files} == set(listed)


def test_an_installed_wheel_runs_as_a_module_and_as_a_command(built: Built, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, built.wheel)

    assert "Usage: ledger" in run(sys.executable, "-m", "ledger", "--help", path=tmp_path)
    assert "Usage: ledger" in run(tmp_path / "bin" / "ledger", "--help", path=tmp_path)
    assert origin(tmp_path) == tmp_path / "ledger" / "__init__.py"


def test_an_editable_install_uses_the_checkout(built: Built, tmp_path: Path) -> None:
    # Without --ignore-installed pip would take away the ledger that this very suite runs on.
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
        "--ignore-installed", "--prefix", tmp_path, "--editable", built.checkout,
    )  # fmt: skip
    (site,) = tmp_path.glob("lib/python*/site-packages")
    script = f"import site; site.addsitedir({str(site)!r}); import ledger; print(ledger.__file__)"

    assert run(sys.executable, "-Sc", script).strip() == str(built.checkout / "ledger" / "__init__.py")
    assert not list(site.glob("cli*"))


def test_a_bare_checkout_has_its_doorway(built: Built) -> None:
    assert "Usage: ledger" in run(sys.executable, built.checkout / "cli.py", "--help")


def origin(path: Path) -> Path:
    return Path(run(sys.executable, "-c", "import ledger; print(ledger.__file__)", path=path).strip())
