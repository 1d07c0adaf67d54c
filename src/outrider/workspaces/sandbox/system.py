"""What of this machine's system a sandboxed command sees: found once, as facts for building an argv from."""

import os
from pathlib import Path

from msgspec import Struct

SANDBOX_ETC = Path(__file__).parent / "etc"
"""Files made up for the sandbox: the person's account and the other accounts of the machine are nobody's business."""

_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store", "gnu/store")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "host.conf"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "perl"),
    *("pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "protocols", "services", "ssl/cert.pem", "ssl/certs"),
    *("ssl/openssl.cnf", "terminfo", "timezone", "debian_version", "os-release"),
)
"""Never ssl, pki or all of etc: keys and password hashes are beside these, and root could read them."""

_NETWORK = ("resolv.conf", "hosts")

_PROC_BLANK = (
    *(
        "acpi",
        "asound",
        "driver",
        "dynamic_debug",
        "fs",
        "kallsyms",
        "kcore",
        "key-users",
        "keys",
        "kmsg",
        "kpagecgroup",
    ),
    *("kpagecount", "kpageflags", "latency_stats", "mtrr", "pagetypeinfo", "sched_debug", "scsi", "slabinfo"),
    *("sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo"),
)
_PROC_READ_ONLY = ("bus", "irq", "pressure", "sys", "sysvipc", "tty")
"""bubblewrap leaves /proc/sys writable for real root: the kernel asks there who one is, not what one is capable of."""


class SystemPaths(Struct, frozen=True):
    """The parts of the machine to show, by absolute path."""

    links: tuple[tuple[str, str], ...] = ()
    """Path and target of the system folders that are links, as /bin is on a merged system."""
    folders: tuple[str, ...] = ()
    etc: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """What of /etc a command with network needs besides."""
    blank_files: tuple[str, ...] = ()
    blank_folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    """Path and source of devices to show in place of the machine's own."""


def find_system_paths(top: Path = Path("/")) -> SystemPaths:
    """The machine below `top`."""
    there = [name for name in _FOLDERS if os.path.lexists(top / name)]
    links = [name for name in there if (top / name).is_symlink()]
    blank = [f"/proc/{name}" for name in _PROC_BLANK if (top / "proc" / name).exists()]
    folders = [path for path in blank if (top / path[1:]).is_dir()]
    return SystemPaths(
        links=tuple((f"/{name}", os.readlink(top / name)) for name in links),
        folders=tuple(f"/{name}" for name in there if name not in links),
        etc=tuple(f"/etc/{name}" for name in _ETC if (top / "etc" / name).exists()),
        network=tuple(f"/etc/{name}" for name in _NETWORK if (top / "etc" / name).exists()),
        blank_files=tuple(path for path in blank if path not in folders),
        blank_folders=tuple(folders),
        read_only=tuple(f"/proc/{name}" for name in _PROC_READ_ONLY if (top / "proc" / name).exists()),
    )
