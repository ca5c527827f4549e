#!/usr/bin/env python3
"""Runs one program for cargo (`target.*.runner`), and ends it when it takes too long.

Usage: program.py PROGRAM [ARGUMENTS...]
A test program prints how long each of its tests took. After JACO_TEST_LIMIT seconds (900) the
program and its descendants are killed, and the tests that were running and the last lines are
printed; the program has failed then.
"""

import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import uuid

LIMIT = float(os.environ.get("JACO_TEST_LIMIT", "900"))
LAST_LINES = 40
# Time for the rest of the output; a process that outlives the program may hold the pipe.
REST = 1.0
# Marks the descendants, of which some lose their parent.
MARK = "JACO_TEST_PROGRAM"
# libtest announces tests of more than a minute, and each one that ended.
SLOW = re.compile(rb"test (\S+) has been running for over")
ENDED = re.compile(rb"^test (\S+).* \.\.\. ")


def descendants(mark):
    """Process ids of the processes below this one, and of those with the mark."""
    children, marked = collections.defaultdict(list), []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        children[int(fields[1])].append(int(process.name))
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            marked.append(int(process.name))
    found, queue = set(marked), [os.getpid()]
    while queue:
        below = children[queue.pop()]
        found.update(below)
        queue += below
    return found


def kill_descendants(program, mark):
    # Again until none is left: one may have forked meanwhile.
    for _ in range(50):
        for pid in descendants(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        program.poll()
        if not descendants(mark):
            return
        time.sleep(0.1)


class Output:
    """Copies the lines of the program, and follows which tests run."""

    def __init__(self):
        self.last = collections.deque(maxlen=LAST_LINES)
        self.slow = []

    def copy(self, source):
        for line in source:
            self.last.append(line)
            if match := SLOW.search(line):
                self.slow.append(match.group(1))
            elif (match := ENDED.match(line)) and match.group(1) in self.slow:
                self.slow.remove(match.group(1))
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def main():
    command, mark = sys.argv[1:], uuid.uuid4().hex
    env = os.environ | {MARK: mark}
    if pathlib.Path(command[0]).parent.name == "deps" and "--list" not in command:
        # Of the test program, not of this toolchain: nothing is compiled under this variable.
        env["RUSTC_BOOTSTRAP"] = "1"
        command += ["-Zunstable-options", "--report-time"]
    program = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = Output()
    copying = threading.Thread(target=output.copy, args=(program.stdout,), daemon=True)
    copying.start()
    try:
        status = program.wait(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print(f"\nended after {LIMIT:.0f} s: {command[0]}", flush=True)
        for name in output.slow:
            print(f"test {name.decode()} was running", flush=True)
        print(f"its last {len(output.last)} lines:", flush=True)
        for line in list(output.last):
            print("  " + line.decode(errors="replace").rstrip(), flush=True)
        kill_descendants(program, mark)
        sys.stdout.flush()
        os._exit(124)
    copying.join(REST)
    sys.stdout.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
