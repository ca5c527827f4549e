#!/usr/bin/python3
"""Compares the containers JACO makes from a compose file with those of docker-compose 1.29.

For every case of proto/tests/manifest/ that yields a container, docker-compose creates one (as
`up --no-start` does) and JACO's create request is sent to the engine; `docker inspect` must agree
for the two, except for the differences listed in docs/compose.md. No container is started. Needs
docker-compose 1.29 (Debian 12: apt-get install docker-compose) and an engine; all objects are
named jacocmp, and removed at the end.

Usage: scripts/compare-compose.py [WORD]...   (only cases whose name contains a WORD)
"""

import contextlib
import http.client
import io
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

# docker-compose and its dependencies.
import docker
import yaml
from compose.config import config
from compose.config.environment import Environment
from compose.project import Project

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOCKET = os.environ.get("JACO_DOCKER_SOCKET", "/var/run/docker.sock")
PROJECT = "jacocmp"
IMAGE = "jacocmp/empty:1"
ENV = {**os.environ, "DOCKER_HOST": f"unix://{SOCKET}"}
# Home directory that the example create_bodies assumes.
os.environ["HOME"] = "/home/jaco"

# Keys that differ only in names: see docs/compose.md.
IGNORED = {
    "Config.Image", "Config.Hostname", "Config.AttachStdout", "Config.AttachStderr",
    "HostConfig.NetworkMode", "HostConfig.Dns", "HostConfig.ContainerIDFile",
    "HostConfig.ConsoleSize", "HostConfig.Binds", "HostConfig.Mounts", "HostConfig.PortBindings",
    "HostConfig.VolumesFrom", "Config.Volumes", "Config.ExposedPorts", "Config.NetworkDisabled",
}


class Engine(http.client.HTTPConnection):
    def __init__(self):
        super().__init__("localhost")

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(SOCKET)


def engine(method, path, body=None):
    connection = Engine()
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text.strip() else None


def cases():
    for path in sorted((ROOT / "proto/tests/manifest").glob("*.case")):
        for block in re.split(r"^== ", path.read_text(), flags=re.M)[1:]:
            name, _, rest = block.partition("\n")
            sections = {}
            for section in re.split(r"^-- ", rest, flags=re.M)[1:]:
                head, _, text = section.partition("\n")
                sections[head.strip()] = text.rstrip("\n") + "\n" if text.strip() else ""
            if "body" in sections and "jaco" not in sections:
                yield name, compose_of(sections)


def compose_of(sections):
    if "compose" in sections:
        return sections["compose"]
    web = "".join(f"    {line}\n" for line in sections.get("web", "image: x").splitlines())
    return sections.get("head", "") + "services:\n  db:\n    image: pg\n  web:\n" + web \
        + sections.get("file", "")


def prepared(text):
    """The case with an existing image, and with names limited to this project."""
    document = yaml.safe_load(text)
    document["services"] = {name: dict(service or {}, image=IMAGE)
                            for name, service in document["services"].items()}
    if "networks" in document:
        document["networks"] = {name: None for name in document["networks"] or {}}
    mounted = json.dumps(document["services"]["web"].get("volumes") or [])
    volumes = document.get("volumes") or {}
    for name in [name for name in volumes if f'"{name}' not in mounted]:
        del volumes[name]
    for volume in volumes.values():
        for holder in (volume, (volume or {}).get("external")):
            if isinstance(holder, dict) and "name" in holder:
                holder["name"] = f"{PROJECT}_{holder['name']}"
    return document


def run(*command, **more):
    return subprocess.run(command, env=ENV, text=True, capture_output=True, check=False, **more)


def theirs(directory, document, client):
    """Inspection of the container that docker-compose creates, or the reason why it creates none."""
    path = os.path.join(directory, "docker-compose.yml")
    with open(path, "w", encoding="utf-8") as file:
        # JACO's daemon does not expand variables.
        file.write(yaml.safe_dump(document, sort_keys=False).replace("$", "$$"))
    try:
        details = config.find(directory, [path], Environment())
        project = Project.from_config(PROJECT, config.load(details), client)
    except Exception as error:  # pylint: disable=broad-except
        return None, "does not load: " + reason(error)
    progress = io.StringIO()
    try:
        # Equivalent of `docker-compose up --no-start --no-deps web`.
        with contextlib.redirect_stderr(progress):
            made = project.up(["web"], start_deps=False, start=False, detached=True, silent=True)
        return engine("GET", f"/containers/{made[0].id}/json")[1], None
    except Exception as error:  # pylint: disable=broad-except
        told = [line for line in progress.getvalue().splitlines() if line.startswith("ERROR")]
        return None, "does not create: " + (told[-1][:160] if told else reason(error))
    finally:
        for container in project.containers(stopped=True):
            try:
                container.remove(force=True, v=True)
            except docker.errors.NotFound:
                pass


def reason(error):
    lines = str(getattr(error, "msg", None) or error).splitlines()
    lines = [line for line in lines if line.strip() and "is invalid because" not in line]
    return " ".join(lines[-2:])[:160] if lines else type(error).__name__


def ours(body, volumes):
    body = dict(body, Image=IMAGE)
    status, answer = engine("POST", f"/containers/create?name={PROJECT}-ours", body)
    if status != 201:
        return None, "the engine refuses: " + answer["message"][:160]
    try:
        inspection = engine("GET", f"/containers/{answer['Id']}/json")[1]
        volumes.update(mount["Name"] for mount in inspection["Mounts"] if "Name" in mount)
        return inspection, None
    finally:
        engine("DELETE", f"/containers/{answer['Id']}?force=1&v=1")


def facts(inspection):
    """Keys and values of an inspection that should be equal."""
    found = {}
    for part in ("Config", "HostConfig"):
        for key, value in inspection[part].items():
            name = f"{part}.{key}"
            if name not in IGNORED and value not in (None, [], {}, "", 0, False):
                found[name] = value
    labels = found.get("Config.Labels") or {}
    own = ("jaco.cluster_id", "jaco.deployment", "jaco.service", "jaco.replica_id",
           "jaco.replica_index", "jaco.raft_index")
    found["Config.Labels"] = {key: value for key, value in labels.items()
                              if key not in own and not key.startswith("com.docker.compose.")}
    for key in ("Config.Env", "HostConfig.ExtraHosts"):
        found[key] = sorted(found.get(key) or [])
    found["HostConfig.Ulimits"] = sorted(found.get("HostConfig.Ulimits") or [],
                                         key=lambda limit: limit["Name"])
    found["mounts"] = sorted(mounts(inspection), key=str)
    return {key: value for key, value in found.items() if value not in ([], {})}


def mounts(inspection):
    """Mounts as (type, source, target, writable), regardless of the form of the request."""
    for mount in inspection["Mounts"]:
        source = mount.get("Name") or mount.get("Source") or ""
        if re.fullmatch(r"[0-9a-f]{64}", source):
            source = "anonymous"
        source = re.sub(rf"^({PROJECT}|jaco_d)_", "", source)
        yield [mount["Type"], source, mount["Destination"], mount["RW"]]


def bodies(asked):
    """The create requests, from the binary in CREATE_BODIES if it is set."""
    build = [ROOT / "scripts/cargo.sh", "run", "-q", "-p", "jaco-actors", "--example", "create_bodies"]
    ready = os.environ.get("CREATE_BODIES")
    done = subprocess.run(
        [ready] if ready else build,
        input=json.dumps(asked), text=True, capture_output=True, check=True)
    return json.loads(done.stdout)


def main():
    words = sys.argv[1:]
    chosen = [(name, prepared(text)) for name, text in cases()
              if not words or any(word in name for word in words)]
    asked = [{"jaco": "deployment: d", "service": "web",
              "compose": yaml.safe_dump(document, sort_keys=False)} for _, document in chosen]
    answers = bodies(asked)
    empty = subprocess.run(["tar", "-c", "--files-from", "/dev/null"], capture_output=True, check=True)
    subprocess.run(["docker", "import", "--change", "CMD [\"/none\"]", "-", IMAGE], env=ENV,
                   input=empty.stdout, check=True, stdout=subprocess.DEVNULL)
    client = docker.APIClient(base_url=f"unix://{SOCKET}", version="1.41", timeout=300)
    equal, different, unloadable = 0, 0, 0
    there, made = set(run("docker", "volume", "ls", "-q").stdout.split()), set()
    directory = tempfile.mkdtemp(prefix=f"{PROJECT}.")
    try:
        for (name, document), answer in zip(chosen, answers):
            if "error" in answer:
                print(f"? {name}\n    JACO refuses it as docker-compose reads it: {answer['error']}")
                continue
            their, why = theirs(directory, document, client)
            mine, whynot = ours(answer["body"], made)
            if their is None or mine is None:
                unloadable += 1
                print(f"- {name}")
                for who, text in (("docker-compose", why), ("JACO", whynot)):
                    if text:
                        print(f"    {who} {text}")
                continue
            their, mine = facts(their), facts(mine)
            keys = [key for key in sorted(their.keys() | mine.keys())
                    if their.get(key) != mine.get(key)]
            if keys:
                different += 1
                print(f"! {name}")
                for key in keys:
                    print(f"    {key}: docker-compose {json.dumps(their.get(key))},"
                          f" JACO {json.dumps(mine.get(key))}")
            else:
                equal += 1
                print(f"= {name}")
            sys.stdout.flush()
    finally:
        shutil.rmtree(directory)
        made.update(run("docker", "volume", "ls", "-q", "--filter", f"name=^{PROJECT}_").stdout.split())
        for name in made - there:
            run("docker", "volume", "rm", name)
        for name in run("docker", "network", "ls", "-q", "--filter", f"name=^{PROJECT}_").stdout.split():
            run("docker", "network", "rm", name)
        run("docker", "image", "rm", IMAGE)
    print(f"{equal} equal, {different} different, {unloadable} made by one or neither")


if __name__ == "__main__":
    main()
