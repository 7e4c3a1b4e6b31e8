"""A disk that forgets what was not flushed: the log that `disk.c` wrote, and what a power loss leaves of it."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import define, field, frozen

SECTOR = 512
"""What a disk writes whole or not at all."""

_HEAD = struct.Struct("<cIIQQ")


def build(directory: Path) -> Path:
    """The layer, compiled. It has no substitute: where there is no compiler, what needs it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None, "these tests need a C compiler: install gcc"
    layer = directory / "disk.so"
    source = Path(__file__).with_name("disk.c")
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror")
    done = subprocess.run(
        [compiler, *flags, "-o", layer, source, "-ldl", "-lpthread"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return layer


def environment(layer: Path, watch: Path, log: Path | None = None) -> Mapping[str, str]:
    """For a process whose changes to the files in `watch` are logged, and can be made to fail."""
    logged = {} if log is None else {"DISK_LOG": str(log)}
    return os.environ | {"LD_PRELOAD": str(layer), "DISK_WATCH": str(watch)} | logged


@frozen
class Change:
    """One change that a process made: C(reate), W(rite), T(runcate), S(ync), F(ailed sync), U(nlink), R(ename);
    or A(cknowledged), which is what the process said it had promised."""

    kind: str
    name: str
    to: str
    offset: int
    data: bytes = field(repr=False)


def read_log(log: Path) -> Iterator[Change]:
    rest = memoryview(log.read_bytes())
    while rest:
        kind, name, to, offset, size = _HEAD.unpack_from(rest)
        rest = rest[_HEAD.size :]
        parts = []
        for length in (name, to, size):
            parts.append(bytes(rest[:length]))
            rest = rest[length:]
        yield Change(kind.decode(), parts[0].decode(), parts[1].decode(), offset, parts[2])


@define(eq=False)
class _File:
    flushed: bytearray = field(factory=bytearray)
    unflushed: list[Change] = field(factory=list)

    def flush(self) -> None:
        for change in self.unflushed:
            _apply(self.flushed, change)
        self.unflushed.clear()

    def left(self, chance: random.Random | None) -> bytes:
        content = bytearray(self.flushed)
        for change in self.unflushed if chance is not None else ():
            assert chance is not None
            for part in _parts(change):
                if chance.random() < 0.5:
                    _apply(content, part)
        return bytes(content)


def _apply(content: bytearray, change: Change) -> None:
    end = change.offset + len(change.data)
    if change.kind == "T":
        del content[change.offset :]
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.data


def _parts(change: Change) -> Iterator[Change]:
    """What of a change can reach the disk by itself: each of its sectors."""
    start, end = change.offset, change.offset + len(change.data)
    if change.kind == "T" or start == end:
        yield change
        return
    for sector in range(start // SECTOR * SECTOR, end, SECTOR):
        begin, stop = max(sector, start), min(sector + SECTOR, end)
        yield Change("W", change.name, "", begin, change.data[begin - start : stop - start])


class Disk:
    """The files of one directory, as a process changes them.

    Nothing is granted that POSIX does not: what was written to a file is kept once that file was flushed, its
    name once its directory was. What a failed flush had before it is gone, though reading still finds it: the
    next flush writes only what was changed since (Linux; Rebello et al., ATC 2020).
    """

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        """`files` are there, and flushed."""
        self._names = {name: _File(bytearray(content)) for name, content in (files or {}).items()}
        self._names_since_flush = [self._names]

    def change(self, change: Change) -> None:
        name = change.name
        match change.kind:
            case "C":
                self._rename({**self._names, name: _File()})
            case "R":
                names = dict(self._names)
                names[change.to] = names.pop(name)
                self._rename(names)
            case "U":
                self._rename({other: file for other, file in self._names.items() if other != name})
            case "W" | "T":
                self._names[name].unflushed.append(change)
            case "S" if name == "":
                self._names_since_flush = [self._names]
            case "S":
                self._names[name].flush()
            case "F" if name != "":
                self._names[name].unflushed.clear()

    def _rename(self, names: dict[str, _File]) -> None:
        self._names = names
        self._names_since_flush.append(names)

    def after_power_loss(self, chance: random.Random | None = None) -> dict[str, bytes]:
        """The files that are left: nothing of what was not flushed, or what `chance` leaves of it.

        Of the writes that is any of their sectors; of the names a moment since the flush, because the file
        systems that we know keep these in order.
        """
        names = self._names_since_flush[0] if chance is None else chance.choice(self._names_since_flush)
        return {name: file.left(chance) for name, file in names.items()}


def put(files: Mapping[str, bytes], directory: Path) -> None:
    """Make `directory` anew with these files, private as a store wants them."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in files.items():
        path = directory / name
        path.write_bytes(content)
        path.chmod(0o600)
