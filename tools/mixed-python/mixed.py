"""A process with kazoo, which a test has share groups with other processes over one ZooKeeper.

    mixed.py CONNECT_STRING SESSION_TIMEOUT_SECONDS

Its bag, leader queue and discovery are laid out as Petting Zoo's are; its lock is kazoo's own. README.md tells what is
said on stdin and stdout.
"""

import base64
import collections
import logging
import sys
import threading

import kazoo.exceptions
import kazoo.recipe.lock
import yaml
from kazoo.client import KazooClient

START_MAX_S = 30
# Left to itself, kazoo waits longer after each failure, up to an hour.
RETRY = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}


# Bags: each item has a number, and listeners watch the tokens, of which there is one, the last item's.


def bag_add(zk, answer, path, data, kind):
    if kind not in ["ephemeral", "persistent"]:
        raise ValueError(f"neither ephemeral nor persistent: {kind}")
    for parent in ["item", "token"]:
        zk.ensure_path(f"{path}/{parent}")
    item = zk.create(f"{path}/item/item", decoded(data), ephemeral=kind == "ephemeral", sequence=True)
    number = number_of(item)
    # Petting Zoo does not wait for it either.
    zk.create_async(f"{path}/token/token{number:010d}", b"")
    if number > 0:
        for token in zk.get_children(f"{path}/token"):
            if number_of(token) < number:
                delete(zk, f"{path}/token/{token}")
    answer(number)


def bag_remove(zk, answer, path, number):
    answer(delete(zk, item_path(path, number)))


def bag_get(zk, answer, path, number):
    data, _stat = zk.get(item_path(path, number))
    answer(encoded(data))


def bag_listen(zk, answer, path):
    for parent in ["item", "token"]:
        zk.ensure_path(f"{path}/{parent}")
    # The tokens before the items: what has a number up to the last of both was made before the look at the items.
    last = max(map(number_of, zk.get_children(f"{path}/token")), default=-1)
    present = sorted(map(number_of, zk.get_children(f"{path}/item")))
    last = max([last, *present])
    answer(*present)

    def watch(number):
        watch_until_gone(zk, item_path(path, number), lambda: say("event", "removed", path, number))

    def tokens_changed(tokens):
        nonlocal last
        newest = max(map(number_of, tokens), default=-1)
        for number in range(last + 1, newest + 1):
            # Of what was taken out by now, nothing is told.
            if zk.retry(zk.exists, item_path(path, number)):
                say("event", "added", path, number)
                watch(number)
        last = max(last, newest)

    for number in present:
        watch(number)
    zk.ChildrenWatch(f"{path}/token", tokens_changed)


def item_path(path, number):
    return f"{path}/item/item{int(number):010d}"


# Leader queues: each candidate watches itself, and the one before it.


def queue_join(zk, answer, path, data):
    parent = f"{path}/candidate"
    zk.ensure_path(parent)
    own = zk.create(f"{parent}/candidate", decoded(data), ephemeral=True, sequence=True)
    number = number_of(own)
    answer(number)

    def look():
        numbers = sorted(map(number_of, zk.retry(zk.get_children, parent)))
        before = [other for other in numbers if other < number]
        if number not in numbers:
            return
        if before:
            watch_until_gone(zk, f"{parent}/candidate{before[-1]:010d}", look)
        else:
            say("event", "elected", path, number)

    watch_until_gone(zk, own, lambda: say("event", "out", path, number))
    look()


def queue_leave(zk, answer, path, number):
    answer(delete(zk, f"{path}/candidate/candidate{int(number):010d}"))


# Discovery: a process's YAML under the class and name of its service.


def discover_write(zk, answer, service_class, name, key, text):
    config = yaml.safe_load(decoded(text))
    if config["header"]["service_class"] != service_class:
        raise ValueError(f"header.service_class is not {service_class}")
    config["header"].setdefault("metadata", {}).update(service_name=name, key=key)
    path = f"/discovery/{service_class}/{name}/{key}"
    # Petting Zoo makes it anew, so that others see a gap.
    if zk.exists(path):
        delete(zk, path)
    zk.create(path, yaml.safe_dump(config).encode(), ephemeral=True, makepath=True)
    answer()


def discover_remove(zk, answer, service_class, name, key):
    answer(delete(zk, f"/discovery/{service_class}/{name}/{key}"))


def discover_read(zk, answer, service_class, name):
    parent = f"/discovery/{service_class}/{name}"
    found = []
    for key in sorted(zk.get_children(parent)) if zk.exists(parent) else []:
        try:
            data, _stat = zk.get(f"{parent}/{key}")
            found.append(f"{key}={encoded(data)}")
        except kazoo.exceptions.NoNodeError:
            # It went meanwhile.
            pass
    answer(*found)


def discover_watch(zk, answer, service_class, name):
    parent = f"/discovery/{service_class}/{name}"
    zk.ensure_path(parent)

    def changed(keys):
        if answer.given:
            say("event", "discovered", service_class, name, len(keys))
        else:
            answer(len(keys))

    zk.ChildrenWatch(parent, changed)


# kazoo's lock. Each command has a lock of its own, so that one process can be many who wait.

HELD = collections.defaultdict(collections.deque)


class Lock(kazoo.recipe.lock.Lock):
    """kazoo's, in a group with Curator's InterProcessMutex.

    kazoo sees Curator's nodes if it is told of `lock-`. Curator sees none of kazoo's by their own name, `__lock__`: it
    sorts by what follows `lock-`, or by the whole name where there is none, and believes itself first.
    """

    _NODE_NAME = "-lock-"

    def __init__(self, zk, path):
        super().__init__(zk, path, extra_lock_patterns=["lock-"])


def lock(zk, answer, path):
    own = Lock(zk, path)
    own.acquire()
    HELD[path].append(own)
    answer()


def unlock(_zk, answer, path):
    if not HELD[path]:
        raise ValueError(f"no lock of {path} is held here")
    HELD[path].popleft().release()
    answer()


VERBS = {
    "bag-add": (bag_add, "PATH DATA64 ephemeral|persistent"),
    "bag-remove": (bag_remove, "PATH ID"),
    "bag-get": (bag_get, "PATH ID"),
    "bag-listen": (bag_listen, "PATH"),
    "queue-join": (queue_join, "PATH DATA64"),
    "queue-leave": (queue_leave, "PATH NUMBER"),
    "discover-write": (discover_write, "CLASS NAME KEY YAML64"),
    "discover-remove": (discover_remove, "CLASS NAME KEY"),
    "discover-read": (discover_read, "CLASS NAME"),
    "discover-watch": (discover_watch, "CLASS NAME"),
    "lock": (lock, "PATH"),
    "unlock": (unlock, "PATH"),
}


# What the verbs share.


def watch_until_gone(zk, path, gone):
    """Calls `gone` once, as soon as there is no such node. kazoo looks again after each time without a connection."""

    def look(_data, stat, _event):
        if stat is None:
            gone()
        return stat is not None

    zk.DataWatch(path, look)


def delete(zk, path):
    try:
        zk.delete(path)
    except kazoo.exceptions.NoNodeError:
        return False
    return True


def number_of(name):
    return int(name[-10:])


def decoded(text):
    return base64.b64decode(text, validate=True)


def encoded(data):
    return base64.b64encode(data).decode()


class Answer:
    """To one command; the first is the only one."""

    def __init__(self, command):
        self.given = False
        self._command = command

    def __call__(self, *values):
        self.given = True
        say(self._command, "ok", *values)

    def error(self, error):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        if self.given:
            print(f"mixed.py: {text}", file=sys.stderr)
        else:
            say(self._command, "error", text)


def serve(zk, line):
    command, _, rest = line.rstrip("\r\n").partition(" ")
    verb, *arguments = rest.split(" ")
    answer = Answer(command)
    # Whatever goes wrong is the answer.
    try:
        if verb not in VERBS:
            raise ValueError(f"no such verb: {verb}")
        function, usage = VERBS[verb]
        if len(arguments) != len(usage.split()):
            raise ValueError(f"usage: {verb} {usage}")
        function(zk, answer, *arguments)
    except Exception as error:
        answer.error(error)


SPEAKING = threading.Lock()
closing = threading.Event()


def say(*words):
    line = " ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in words)
    with SPEAKING:
        if not closing.is_set():
            print(line, flush=True)


def main():
    if len(sys.argv) != 3:
        print("usage: mixed.py CONNECT_STRING SESSION_TIMEOUT_SECONDS", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.ERROR)
    zk = KazooClient(hosts=sys.argv[1], timeout=float(sys.argv[2]), connection_retry=RETRY, command_retry=RETRY)
    zk.start(timeout=START_MAX_S)
    say("event", "connected")
    for line in sys.stdin:
        threading.Thread(target=serve, args=(zk, line), daemon=True).start()
    closing.set()
    zk.stop()
    zk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
