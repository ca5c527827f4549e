#!/usr/bin/env python3
"""Sums up what `cargo test` printed: counts, the slowest suites, and every test that failed.

Usage: summary.py LOG
Fails if a test failed, if a suite did not report its result, or if nothing was run.
"""

import re
import sys

SUITE = re.compile(r"^\s+(?:Running|Doc-tests) (\S+)(?: (\S+))?")
TEST = re.compile(r"^test (\S+)(?: - .*)? \.\.\. (?:.*)?FAILED$")
RESULT = re.compile(
    r"^test result: (\w+)\. (\d+) passed; (\d+) failed; (\d+) ignored; .* finished in ([0-9.]+)s"
)
SLOWEST = 8




def main():
    suites, failures, unfinished = [], [], []
    name, open_suite = "?", False
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        for line in log:
            if match := SUITE.match(line):
                if open_suite:
                    unfinished.append(name)
                program = re.search(r"\(.*/([^/]+)-[0-9a-f]+\)", line)
                name = program.group(1) if program else f"{match.group(1)} {match.group(2) or ''}".strip()
                open_suite = True
            elif match := TEST.match(line):
                failures.append(f"{name}: {match.group(1)}")
            elif match := RESULT.match(line):
                suites.append((name, int(match.group(2)), int(match.group(3)), float(match.group(5))))
                open_suite = False
    if open_suite:
        unfinished.append(name)

    print("Slowest suites:")
    for name, passed, failed, seconds in sorted(suites, key=lambda suite: -suite[3])[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {name} ({passed + failed} tests)")
    for failure in failures:
        print(f"FAILED  {failure}")
    for name in unfinished:
        print(f"FAILED  {name}: ended without a result")
    passed, failed = sum(suite[1] for suite in suites), sum(suite[2] for suite in suites)
    print(f"{passed} passed, {failed + len(unfinished)} failed")
    if failed or failures or unfinished or not passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
