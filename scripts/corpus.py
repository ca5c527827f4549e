#!/usr/bin/python3
"""Counts how many compose files of a directory `jaco validate` accepts, and why it refuses the others.

A file may be refused for ports 80 and 443, which the ingress has, and for the rights that need a
label; anything else is printed. Every YAML file counts but those that are merged over another one
(`*.override.*`).

Usage: scripts/corpus.py DIRECTORY [JACO]   (JACO: path of the client, by default `jaco` of $PATH)
"""

import collections
import pathlib
import subprocess
import sys

NAMES = ("*.yml", "*.yaml")
# Codes and words of refusals that are part of the contract.
EXPECTED = (("reserved_port", ""), ("validation_failed", "needs the label jaco.io/allow-privileged"))


def files(directory):
    found = {path for name in NAMES for path in pathlib.Path(directory).rglob(name)}
    return sorted(path for path in found if ".override." not in path.name)


def verdict(jaco, path):
    """None if the file is accepted, else the error."""
    command = [jaco, "validate", "-f", str(path), "--profile", "*", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    first = next((line for line in done.stderr.splitlines() if line.startswith("Error: ")), "")
    return first.removeprefix("Error: ")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    jaco = sys.argv[2] if len(sys.argv) == 3 else "jaco"
    counts = collections.Counter()
    for path in files(sys.argv[1]):
        error = verdict(jaco, path)
        if error is None:
            counts["accepted"] += 1
        elif any(error.startswith(code) and word in error for code, word in EXPECTED):
            counts["ports 80 and 443, or the label"] += 1
        else:
            counts["other"] += 1
            print(f"{path}: {error}")
    total = sum(counts.values())
    for name, count in counts.most_common():
        print(f"{name}: {count} of {total} ({100 * count / total:.0f} %)")
    sys.exit(1 if counts["other"] else 0)


if __name__ == "__main__":
    main()
