"""A service manager with a store for descriptors, as far as a daemon sees it.

Runs the program of its arguments. SIGHUP restarts it, SIGTERM stops it for good. Descriptors that it
leaves in the store are passed to its next process. Source: sd_pid_notify_with_fds(3),
sd_listen_fds(3).
"""

import ctypes
import fcntl
import os
import select
import signal
import socket
import sys

FIRST = 3  # SD_LISTEN_FDS_START
MAX_DESCRIPTORS = 1024
PR_SET_PDEATHSIG = 1

name = f"jaco-notify-{os.getpid()}"
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind("\0" + name)
notify.setblocking(False)  # recv_fds ignores its flags
store = []
asked = {"restart": False}


def receive():
    global store
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(notify, 4096, 16)
        except BlockingIOError:
            return
        fields = dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line)
        named = fields.get("FDNAME", "stored")
        if fields.get("FDSTORE") == "1":
            store += [(named, descriptor) for descriptor in descriptors]
            continue
        if fields.get("FDSTOREREMOVE") == "1":
            descriptors = [kept for label, kept in store if label == named]
            store = [(label, kept) for label, kept in store if label != named]
        for descriptor in descriptors:
            os.close(descriptor)


def start():
    child = os.fork()
    if child:
        print(f"service manager: process {child} gets {len(store)} descriptors", flush=True)
        return child
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    environment = dict(os.environ, NOTIFY_SOCKET="@" + name)
    end = FIRST + len(store)
    if store:
        above = [fcntl.fcntl(kept, fcntl.F_DUPFD, end) for _, kept in store]
        for position, descriptor in enumerate(above):
            os.dup2(descriptor, FIRST + position)
        environment["LISTEN_PID"] = str(os.getpid())
        environment["LISTEN_FDS"] = str(len(store))
        environment["LISTEN_FDNAMES"] = ":".join(label for label, _ in store)
    os.closerange(end, MAX_DESCRIPTORS)
    os.execve(sys.argv[1], sys.argv[1:], environment)


child = start()


def end(restart):
    asked["restart"] = restart
    os.kill(child, signal.SIGTERM)


signal.signal(signal.SIGHUP, lambda *_: end(True))
signal.signal(signal.SIGTERM, lambda *_: end(False))
while True:
    select.select([notify], [], [], 0.02)
    receive()
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        receive()
        if not asked["restart"]:
            sys.exit(os.waitstatus_to_exitcode(status))
        asked["restart"] = False
        child = start()
