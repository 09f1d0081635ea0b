"""Executes a command under the system call filters that systemd would install for a unit.

    confined.py UNIT VERSION COMMAND ARG...

VERSION is one of systemd that `system-calls.txt` lists. Applied are, as in systemd's seccomp-util.c, `SystemCallFilter=`,
`RestrictAddressFamilies=`, `RestrictNamespaces=`, `MemoryDenyWriteExecute=`, `RestrictRealtime=` and `NoNewPrivileges=`. Calls that
the first does not list kill the process by SIGSYS.
"""

import ctypes
import errno
import os
import platform
import re
import struct
import subprocess
import sys

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "system-calls.txt")
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[platform.machine()]
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, EQUAL, ALL_BITS, RETURN = 0x20, 0x15, 0x54, 0x06
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
NAMESPACES = {"cgroup": 0x02000000, "ipc": 0x08000000, "net": 0x40000000, "mnt": 0x00020000, "pid": 0x20000000, "user": 0x10000000, "uts": 0x04000000}
EXECUTE, WRITE_EXECUTE = 4, 6


def groups(version):
    """All groups of a version: those of the oldest one, with the changes since."""
    found, is_later = {}, False
    with open(LIST, encoding="utf-8") as file:
        for line in file:
            if line.startswith("["):
                if is_later:
                    return found
                is_later = line.strip() == f"[{version}]"
            elif line.startswith("@"):
                name, _, calls = line.partition(":")
                group = found.setdefault(name, set())
                for call in calls.split():
                    if call.startswith("-"):
                        group.discard(call[1:])
                    else:
                        group.add(call.lstrip("+"))
    if not is_later:
        sys.exit(f"no version {version} in {LIST}")
    return found


def numbers():
    """System calls of this machine by name."""
    source = "#include <sys/syscall.h>\n"
    defined = subprocess.run(["gcc", "-E", "-dM", "-"], input=source, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", defined, re.MULTILINE)}


def settings(path):
    with open(path, encoding="utf-8") as file:
        return dict(line.strip().split("=", 1) for line in file if re.match(r"[A-Za-z]+=", line))


def allowed(names, known):
    calls = set()
    for name in names:
        calls |= allowed(known[name], known) if name.startswith("@") else {name}
    return calls


def words(index):
    """Offset of the lower half of an argument in `struct seccomp_data`."""
    return 16 + 8 * index


def install(program):
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, filters, 0, 0):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")


def begin():
    """Other architectures are refused, as `SystemCallArchitectures=native` does; then, the number is loaded."""
    return [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]


def listed(calls, known):
    program = begin()
    for number in sorted(known[name] for name in calls if name in known):
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    return program + [(RETURN, 0, 0, KILL)]


def refused(number, argument, mask, value, error):
    """Refuses a call if an argument has this value in these bits. The number is in the accumulator, before and after."""
    return [
        (EQUAL, 0, 5, number),
        (LOAD, 0, 0, words(argument)),
        (ALL_BITS, 0, 0, mask),
        (EQUAL, 0, 1, value),
        (RETURN, 0, 0, ERRNO | error),
        (LOAD, 0, 0, 0),
    ]


def restricted(unit, known):
    program = begin()
    everything = 0xFFFFFFFF
    if "RestrictAddressFamilies" in unit:
        usable = [FAMILIES[name] for name in unit["RestrictAddressFamilies"].split()]
        for family in set(range(48)) - set(usable):
            program += refused(known["socket"], 0, everything, family, errno.EAFNOSUPPORT)
    if "RestrictNamespaces" in unit:
        for name in set(NAMESPACES) - set(unit["RestrictNamespaces"].split()):
            bit = NAMESPACES[name]
            program += refused(known["unshare"], 0, bit, bit, errno.EPERM)
            program += refused(known["clone"], 0, bit, bit, errno.EPERM)
            program += refused(known["setns"], 1, bit, bit, errno.EPERM)
        program += refused(known["setns"], 1, everything, 0, errno.EPERM)
        program += [(EQUAL, 0, 1, known["clone3"]), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    if unit.get("MemoryDenyWriteExecute") == "yes":
        program += refused(known["mmap"], 2, WRITE_EXECUTE, WRITE_EXECUTE, errno.EPERM)
        program += refused(known["mprotect"], 2, EXECUTE, EXECUTE, errno.EPERM)
        program += refused(known["pkey_mprotect"], 2, EXECUTE, EXECUTE, errno.EPERM)
    if unit.get("RestrictRealtime") == "yes":
        for policy in (1, 2, 6):
            program += refused(known["sched_setscheduler"], 1, everything, policy, errno.EPERM)
    return program + [(RETURN, 0, 0, ALLOW)]


def main(path, version, *command):
    unit, known = settings(path), numbers()
    assert unit["SystemCallArchitectures"] == "native" and unit["NoNewPrivileges"] == "yes"
    install(restricted(unit, known))
    install(listed(allowed(unit["SystemCallFilter"].split(), groups(version)), known))
    os.execvp(command[0], command)


main(*sys.argv[1:])
