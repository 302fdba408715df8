"""The machine that the guest tests run on: qemu, and a Debian kernel with udmabuf and DRM.

Both are Debian packages. They are fetched without any rights and unpacked into a cache, not
installed.
"""

import lzma
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Where a kernel of 6.12 or newer is.
SUITES = ("trixie", "bookworm-backports")
# In the order in which they are loaded.
MODULES = ("drm", "drm_kms_helper", "drm_shmem_helper", "vgem", "cirrus")


class Missing(Exception):
    """The machine cannot be had here; the message says why."""


def run(*args: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    env = {**os.environ, "LC_ALL": "C", **(environment or {})}
    try:
        done = subprocess.run(
            args, cwd=cwd, env=env, capture_output=True, text=True, check=True, timeout=600
        )
    except FileNotFoundError:
        raise Missing(f"no program {args[0]}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{args[0]} took longer than ten minutes") from None
    except subprocess.CalledProcessError as e:
        last = (e.stderr.strip() or e.stdout.strip() or "no word").splitlines()[-1]
        raise Missing(f"{args[0]}: {last}") from None
    return done.stdout


def mirror() -> str:
    """Where this machine's APT gets Debian from."""
    wanted = ("--format", "$(REPO_URI)", "Identifier: Packages")
    places = run("apt-get", "indextargets", *wanted).split()
    for place in places:
        if place.rstrip("/").endswith("/debian"):
            return place
    raise Missing("APT has no mirror of Debian")


class Apt:
    """apt-get with lists and archives of its own; `sources` instead of the system's."""

    def __init__(self, folder: Path, sources: str | None) -> None:
        for name in ("lists/partial", "archives/partial", "debs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.options = [f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}"]
        self.options += ["-oAPT::Sandbox::User="]
        if sources is not None:
            (folder / "sources.list").write_text(sources)
            self.options += [f"-oDir::Etc::sourcelist={folder}/sources.list"]
            self.options += ["-oDir::Etc::sourceparts=-"]
        run("apt-get", *self.options, "-q", "update")

    def depends(self, package: str) -> list[str]:
        said = run("apt-cache", *self.options, "depends", package).splitlines()
        return [line.split()[1] for line in said if line.strip().startswith("Depends:")]

    def missing(self, package: str) -> list[str]:
        """What an installation of `package` would bring."""
        options = [*self.options, "-s", "--no-install-recommends"]
        said = run("apt-get", *options, "install", package).splitlines()
        return [line.split()[1] for line in said if line.startswith("Inst ")]

    def unpack(self, packages: list[str], into: Path) -> None:
        debs = self.folder / "debs"
        run("apt-get", *self.options, "-q", "download", *packages, cwd=debs)
        for deb in sorted(debs.glob("*.deb")):
            run("dpkg", "-x", str(deb), str(into))
            deb.unlink()


def put(made: Path, place: Path) -> None:
    """Gives a folder its name when it is whole."""
    shutil.rmtree(place, ignore_errors=True)
    made.rename(place)


def kernel(cache: Path) -> Path:
    """A folder with `vmlinuz` and the modules."""
    place = cache / "kernel"
    if (place / "vmlinuz").exists():
        return place
    why = []
    source = mirror()
    for suite in SUITES:
        with tempfile.TemporaryDirectory(dir=cache) as name:
            work = Path(name)
            try:
                signed = f"[signed-by={KEYRING}]"
                apt = Apt(work / "apt", f"deb {signed} {source} {suite} main\n")
                images = [
                    p for p in apt.depends("linux-image-amd64") if p.startswith("linux-image-")
                ]
                if not images:
                    raise Missing("there is no linux-image-amd64")
                apt.unpack(images[:1], work / "root")
                made = work / "kernel"
                made.mkdir()
                (image,) = (work / "root/boot").glob("vmlinuz-*")
                shutil.move(image, made / "vmlinuz")
                (made / "version").write_text(image.name.removeprefix("vmlinuz-") + "\n")
                for module in MODULES:
                    found = next((work / "root").rglob(f"{module}.ko*"), None)
                    if found is None:
                        raise Missing(f"{image.name} has no module {module}")
                    data = found.read_bytes()
                    data = lzma.decompress(data) if found.suffix == ".xz" else data
                    (made / f"{module}.ko").write_bytes(data)
                put(made, place)
                return place
            except Missing as e:
                why.append(f"{suite}: {e}")
    raise Missing(f"no kernel ({'; '.join(why)})")


def qemu(cache: Path) -> tuple[list[str], dict[str, str]]:
    """The start of a command, and the environment that it needs."""
    found = shutil.which("qemu-system-x86_64")
    if found:
        return [found], {}
    place = cache / "qemu"
    if not (place / "usr/bin/qemu-system-x86_64").exists():
        with tempfile.TemporaryDirectory(dir=cache) as name:
            work = Path(name)
            apt = Apt(work / "apt", None)
            apt.unpack(apt.missing("qemu-system-x86"), work / "root")
            put(work / "root", place)
    folders = [place / "usr/lib/x86_64-linux-gnu", place / "lib/x86_64-linux-gnu"]
    share = [place / "usr/share/qemu", place / "usr/share/seabios"]
    command = [str(place / "usr/bin/qemu-system-x86_64")]
    command += [arg for s in share for arg in ("-L", str(s))]
    return command, {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def machine(cache: Path) -> tuple[list[str], dict[str, str], Path]:
    """Command and environment of qemu, and the folder of the kernel.

    Raises Missing where they cannot be had."""
    if platform.machine() != "x86_64":
        raise Missing(f"this is a {platform.machine()}, and the guest a x86_64")
    if shutil.which("busybox") is None:
        raise Missing("no program busybox")
    cache.mkdir(parents=True, exist_ok=True)
    command, environment = qemu(cache)
    run(command[0], "--version", environment=environment)
    return command, environment, kernel(cache)
