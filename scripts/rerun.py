#!/usr/bin/env -S python3 -B
"""Runs the tests that failed in a log of `cargo test` once more, each alone.

Usage: rerun.py LOG RESULTS
Only tests of suites that use engines or namespaces, whose outcome depends on the load of the
machine; all others are deterministic, and fail for a reason. More than testlog.MOST_FLAKY failures
are not run again. Appends a line to RESULTS for each test that was: its suite, its name, `passed` or
`failed`, and the file with its first output and, if it failed again, with that of the second run.
"""

import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import time

import testlog

SUITES = (
    "cluster", "faults", "ingress", "lab", "network", "registry", "acceptance", "engine_rules",
    "*_docker", "foreign",
)


def keep(suite, test):
    """Writes the first output of a test to a file, and returns its path."""
    cache = pathlib.Path(os.environ["JACO_CACHE_DIR"]) / "flaky"
    cache.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", f"{suite.name}-{test}")
    path = cache / f"{time.strftime('%Y-%m-%dT%H%M%S')}-{name}.log"
    path.write_text("\n".join(suite.output.get(test, ["no output"])) + "\n")
    return path


def run_alone(suite, test):
    """Whether a test passes alone, and its output, which is printed, but not as that of a suite."""
    command = ["cargo", "test", "--workspace", "--locked", "--test", suite.name, "--", "--exact", test]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in run.stdout.splitlines():
        print(f"  | {line}", flush=True)
    ran = re.search(r"^test result: ok\. [1-9]", run.stdout, re.M)
    return run.returncode == 0 and ran is not None, run.stdout


def main():
    log, results = sys.argv[1:]
    suites = testlog.read(log)
    again = [
        (suite, test)
        for suite in suites
        if suite.ended and any(fnmatch.fnmatch(suite.name, pattern) for pattern in SUITES)
        for test in suite.failures
    ]
    if sum(len(suite.failures) for suite in suites) > testlog.MOST_FLAKY:
        print(f"More than {testlog.MOST_FLAKY} tests failed: none is run again", flush=True)
        return
    for suite, test in again:
        print(f"Running {test} of {suite.name} again, alone", flush=True)
        kept = keep(suite, test)
        passed, output = run_alone(suite, test)
        if not passed:
            with open(kept, "a", encoding="utf-8") as file:
                print("---- again, alone ----", output, sep="\n", file=file)
        outcome = "passed" if passed else "failed"
        with open(results, "a", encoding="utf-8") as file:
            print(suite.name, test, outcome, kept, sep="\t", file=file)


if __name__ == "__main__":
    main()
