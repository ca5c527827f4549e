#!/usr/bin/env -S python3 -B
"""Sums up test runs: counts, the slowest suites and tests, and every test that failed.

Usage: summary.py LOG=STATUS...
Each LOG is what a `cargo test` printed that ended with STATUS; LOG.reruns is what rerun.py wrote, if
it ran. A test that failed and then passed alone is listed as FLAKY; one that failed again with the
panics of both runs. Fails if a test failed, if a suite did not report its result, if a run failed for
another reason, if nothing was run, or if more than testlog.MOST_FLAKY tests are flaky.
"""

import pathlib
import sys

import testlog

SLOWEST = 10
# Panics of a failed test that are repeated in the summary, and lines of each.
PANICS = 4
PANIC_LINES = 5


def reruns(path):
    """Outcome of each test that was run again, and the file with its output, by suite and name."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [line.split("\t") for line in text.splitlines()]
    return {(suite, test): (outcome, kept) for suite, test, outcome, kept in lines}


def panics(kept):
    """Messages of the panics in a kept output, the first few lines of each."""
    lines = pathlib.Path(kept).read_text(encoding="utf-8", errors="replace").splitlines()
    at = [number for number, line in enumerate(lines) if "panicked at" in line]
    return [line for number in at[:PANICS] for line in lines[number : number + PANIC_LINES]]


def main():
    suites, failures, flaky = [], [], []
    for argument in sys.argv[1:]:
        log, _, status = argument.rpartition("=")
        again = reruns(pathlib.Path(log + ".reruns"))
        of_run, before = testlog.read(log), len(failures) + len(flaky)
        for suite in of_run:
            for test in suite.failures:
                outcome, kept = again.get((suite.name, test), (None, None))
                if outcome == "passed":
                    flaky.append(f"{suite.name}: {test} ({kept})")
                elif kept:
                    failures.append("\n        ".join([f"{suite.name}: {test} ({kept})", *panics(kept)]))
                else:
                    failures.append(f"{suite.name}: {test}")
            if not suite.ended:
                running = f", running: {' '.join(suite.running)}" if suite.running else ""
                failures.append(f"{suite.name}: ended without a result{running}")
        if status != "0" and len(failures) + len(flaky) == before:
            failures.append(f"a run without a failing test ended with status {status}")
        suites += of_run
    passed = sum(suite.passed for suite in suites)
    if not passed:
        failures.append("no test was run")
    if len(flaky) > testlog.MOST_FLAKY:
        failures.append(f"{len(flaky)} tests are flaky, more than {testlog.MOST_FLAKY}")

    print("Slowest suites:")
    for suite in sorted(suites, key=lambda suite: -suite.seconds)[:SLOWEST]:
        print(f"  {suite.seconds:7.1f} s  {suite.name} ({suite.passed + suite.failed} tests)")
    times = [(seconds, f"{suite.name}: {test}") for suite in suites for seconds, test in suite.times]
    print("Slowest tests:")
    for seconds, test in sorted(times, reverse=True)[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {test}")
    for test in flaky:
        print(f"FLAKY   {test}")
    for failure in failures:
        print(f"FAILED  {failure}")
    print(f"{passed + len(flaky)} passed, {len(failures)} failed, {len(flaky)} flaky")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
