"""Reads what `cargo test` printed."""

import dataclasses
import re

# Tests that may be run again in one log, and that may be flaky in a whole run.
MOST_FLAKY = 4

SUITE = re.compile(r"^\s+(?:Running|Doc-tests) (\S+)(?: (\S+))?")
FAILED = re.compile(r"^test (\S+)(?: - .*)? \.\.\. (?:.*)?FAILED(?: <[0-9.]+s>)?$")
TIMED = re.compile(r"^test (\S+)(?: - .*)? \.\.\. .*<([0-9.]+)s>$")
RUNNING = re.compile(r"^test (\S+) was running$")
RESULT = re.compile(
    r"^test result: (\w+)\. (\d+) passed; (\d+) failed; (\d+) ignored; .* finished in ([0-9.]+)s"
)
OUTPUT = re.compile(r"^---- (\S+)(?: - .*)? std(?:out|err) ----$")


@dataclasses.dataclass
class Suite:
    """One test program: its counts, and the tests that failed or were running when it ended."""

    name: str
    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    ended: bool = False
    failures: list = dataclasses.field(default_factory=list)
    running: list = dataclasses.field(default_factory=list)
    times: list = dataclasses.field(default_factory=list)
    output: dict = dataclasses.field(default_factory=dict)


def read(path):
    """The suites of a log, in the order in which they ran."""
    suites, test = [], None
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            line = line.rstrip("\n")
            if match := SUITE.match(line):
                program = re.search(r"\(.*/([^/]+)-[0-9a-f]+\)", line)
                name = f"{match.group(1)} {match.group(2) or ''}".strip()
                suites.append(Suite(program.group(1) if program else name))
                test = None
            if not suites:
                continue
            suite = suites[-1]
            if match := TIMED.match(line):
                suite.times.append((float(match.group(2)), match.group(1)))
            if match := FAILED.match(line):
                suite.failures.append(match.group(1))
            elif match := RUNNING.match(line):
                suite.running.append(match.group(1))
            elif match := OUTPUT.match(line):
                test = match.group(1)
            elif line == "failures:":
                test = None
            elif match := RESULT.match(line):
                suite.passed, suite.failed = int(match.group(2)), int(match.group(3))
                suite.seconds, suite.ended, test = float(match.group(5)), True, None
            if test:
                suite.output.setdefault(test, []).append(line)
    return suites
