"""Makes nodes.csv and edges.csv from the package index of a Debian machine: python examples/packages/make.py

Nodes are packages of ten sections of Debian main. An edge joins two packages if one depends on, recommends or suggests the
other. Only the 2-core is kept: packages with edges to at least two other kept packages. Each edge has one row.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
INDEX = "/var/lib/apt/lists/*_debian_dists_bookworm_main_binary-amd64_Packages*"
SECTIONS = {"editors", "fonts", "games", "gnome", "graphics", "kde", "mail", "sound", "video", "web"}
RELATIONS = ("Pre-Depends", "Depends", "Recommends", "Suggests")
CORE = 2
USES = {"gtk": "libgtk", "qt": "libqt", "python": "python3", "perl": "perl"}
"""Prefixes of package names. A package that depends on such a package uses this toolkit or language."""

Package = dict[str, str]


def main() -> None:
    index = {package["Package"]: package for package in packages(read_index())}
    chosen = {name for name, package in index.items() if package["Section"] in SECTIONS}
    pairs = {(name, other) for name in chosen for other in related(index[name]) & chosen if name != other}
    edges = core({(min(pair), max(pair)) for pair in pairs})
    nodes = sorted({name for edge in edges for name in edge})
    write("nodes.csv", [row(index[name]) for name in nodes])
    write("edges.csv", [{"source": source, "target": target} for source, target in sorted(edges)])
    print(f"{len(nodes)} nodes, {len(edges)} edges")


def read_index() -> str:
    command = ["/bin/sh", "-c", f"/usr/lib/apt/apt-helper cat-file {INDEX}"]  # apt knows how its lists are compressed
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def packages(index: str) -> Iterator[Package]:
    """The stanzas of a package index: `Name: value`, continued on lines that begin with a space."""
    for stanza in index.split("\n\n"):
        lines = re.sub(r"\n\s+", " ", stanza).splitlines()
        if lines:
            yield dict(line.split(": ", 1) for line in lines if ": " in line)


def related(package: Package, relations: tuple[str, ...] = RELATIONS) -> set[str]:
    """The names in relations such as `a (>= 1), b | c`, without versions and architectures."""
    text = ", ".join(package[relation] for relation in relations if relation in package)
    return set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", text))


def core(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges that remain when nodes with fewer than CORE neighbours are removed, again and again."""
    while True:
        neighbors = defaultdict(set)
        for source, target in edges:
            neighbors[source].add(target)
            neighbors[target].add(source)
        kept = {edge for edge in edges if all(len(neighbors[name]) >= CORE for name in edge)}
        if kept == edges:
            return edges
        edges = kept


def row(package: Package) -> dict[str, str | int]:
    needed = related(package, RELATIONS[:2])
    role = re.search(r"role::(\w[\w-]*)", package.get("Tag", ""))
    return {
        "name": package["Package"],
        "label": package["Section"],
        "installed_kb": package.get("Installed-Size", ""),
        "packed_kb": int(package["Size"]) // 1000,
        "dependencies": len(needed),
        "role": role[1] if role and role[1] != "TODO" else "",
        "multi_arch": package.get("Multi-Arch", "no"),
        "any_machine": yes(package["Architecture"] == "all"),
        "homepage": yes("Homepage" in package),
        **{f"uses_{word}": yes(any(name.startswith(prefix) for name in needed)) for word, prefix in USES.items()},
    }


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def write(name: str, rows: list[dict[str, str | int]]) -> None:
    with (FOLDER / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
