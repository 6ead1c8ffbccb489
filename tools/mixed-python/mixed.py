"""Process with kazoo. Tests let it share groups with other processes over one ZooKeeper.

    mixed.py CONNECT_STRING SESSION_TIMEOUT_SECONDS

Its bag, leader queue and discovery have the node layout of Petting Zoo; its lock is kazoo's own. README.md describes
the protocol on stdin and stdout.
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
# These options replace kazoo's defaults for retries. By default, kazoo waits longer after each failure, up to an hour.
RETRY = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}


# Commands of bags. Each item has a number. A bag has only one token, which has the number of the last item. Listeners
# watch this token.


def bag_add(zk, respond, path, data, kind):
    if kind not in ["ephemeral", "persistent"]:
        raise ValueError(f"neither ephemeral nor persistent: {kind}")
    for parent in ["item", "token"]:
        zk.ensure_path(f"{path}/{parent}")
    item = zk.create(f"{path}/item/item", decoded(data), ephemeral=kind == "ephemeral", sequence=True)
    number = number_of(item)
    # This function does not wait for the creation of the token, because Petting Zoo does not wait either.
    zk.create_async(f"{path}/token/token{number:010d}", b"")
    if number > 0:
        for token in zk.get_children(f"{path}/token"):
            if number_of(token) < number:
                delete(zk, f"{path}/token/{token}")
    respond(number)


def bag_remove(zk, respond, path, number):
    respond(delete(zk, item_path(path, number)))


def bag_get(zk, respond, path, number):
    data, _stat = zk.get(item_path(path, number))
    respond(encoded(data))


def bag_listen(zk, respond, path):
    for parent in ["item", "token"]:
        zk.ensure_path(f"{path}/{parent}")
    # This function lists the tokens before the items. Therefore every item up to the highest number in the two lists
    # existed before the function listed the items.
    last = max(map(number_of, zk.get_children(f"{path}/token")), default=-1)
    present = sorted(map(number_of, zk.get_children(f"{path}/item")))
    last = max([last, *present])
    respond(*present)

    def watch(number):
        watch_until_gone(zk, item_path(path, number), lambda: print_line("event", "removed", path, number))

    def tokens_changed(tokens):
        nonlocal last
        newest = max(map(number_of, tokens), default=-1)
        for number in range(last + 1, newest + 1):
            # The function does not report an item that another process has already removed.
            if zk.retry(zk.exists, item_path(path, number)):
                print_line("event", "added", path, number)
                watch(number)
        last = max(last, newest)

    for number in present:
        watch(number)
    zk.ChildrenWatch(f"{path}/token", tokens_changed)


def item_path(path, number):
    return f"{path}/item/item{int(number):010d}"


# Commands of leader queues. Each candidate watches its own node and the node of the candidate before it.


def queue_join(zk, respond, path, data):
    parent = f"{path}/candidate"
    zk.ensure_path(parent)
    own = zk.create(f"{parent}/candidate", decoded(data), ephemeral=True, sequence=True)
    number = number_of(own)
    respond(number)

    def check():
        numbers = sorted(map(number_of, zk.retry(zk.get_children, parent)))
        before = [other for other in numbers if other < number]
        if number not in numbers:
            return
        if before:
            watch_until_gone(zk, f"{parent}/candidate{before[-1]:010d}", check)
        else:
            print_line("event", "elected", path, number)

    watch_until_gone(zk, own, lambda: print_line("event", "out", path, number))
    check()


def queue_leave(zk, respond, path, number):
    respond(delete(zk, f"{path}/candidate/candidate{int(number):010d}"))


# Commands of discovery. A node contains the YAML of a process. Its path contains the class and the name of the service.


def discover_write(zk, respond, service_class, name, key, text):
    config = yaml.safe_load(decoded(text))
    if config["header"]["service_class"] != service_class:
        raise ValueError(f"header.service_class is not {service_class}")
    config["header"].setdefault("metadata", {}).update(service_name=name, key=key)
    path = f"/discovery/{service_class}/{name}/{key}"
    # This function deletes the node and creates it again, as Petting Zoo does. For a moment, other processes therefore
    # see no node.
    if zk.exists(path):
        delete(zk, path)
    zk.create(path, yaml.safe_dump(config).encode(), ephemeral=True, makepath=True)
    respond()


def discover_remove(zk, respond, service_class, name, key):
    respond(delete(zk, f"/discovery/{service_class}/{name}/{key}"))


def discover_read(zk, respond, service_class, name):
    parent = f"/discovery/{service_class}/{name}"
    found = []
    for key in sorted(zk.get_children(parent)) if zk.exists(parent) else []:
        try:
            data, _stat = zk.get(f"{parent}/{key}")
            found.append(f"{key}={encoded(data)}")
        except kazoo.exceptions.NoNodeError:
            # Another process deleted the node after `get_children` returned its name.
            pass
    respond(*found)


def discover_watch(zk, respond, service_class, name):
    parent = f"/discovery/{service_class}/{name}"
    zk.ensure_path(parent)

    def changed(keys):
        if respond.given:
            print_line("event", "discovered", service_class, name, len(keys))
        else:
            respond(len(keys))

    zk.ChildrenWatch(parent, changed)


# Commands of kazoo's lock. Each command has a separate lock, so that one process can have many waiting participants.

ACQUIRED = collections.defaultdict(collections.deque)


class Lock(kazoo.recipe.lock.Lock):
    """kazoo's lock, in a group with Curator's InterProcessMutex.

    kazoo recognizes Curator's nodes if `lock-` is an extra pattern. Curator does not recognize kazoo's own name,
    `__lock__`: it sorts by the part after `lock-`, or by the whole name without one, and would consider itself first.
    Therefore kazoo's nodes are named `-lock-` here.
    """

    _NODE_NAME = "-lock-"

    def __init__(self, zk, path):
        super().__init__(zk, path, extra_lock_patterns=["lock-"])


def lock(zk, respond, path):
    own = Lock(zk, path)
    own.acquire()
    ACQUIRED[path].append(own)
    respond()


def unlock(_zk, respond, path):
    if not ACQUIRED[path]:
        raise ValueError(f"this process has no lock of {path}")
    ACQUIRED[path].popleft().release()
    respond()


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


# Helper functions that several commands use.


def watch_until_gone(zk, path, gone):
    """Calls `gone` once, when the node does not exist. kazoo checks again after each loss of the connection."""

    def check(_data, stat, _event):
        if stat is None:
            gone()
        return stat is not None

    zk.DataWatch(path, check)


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


class Response:
    """Response to one command; only the first call sends one."""

    def __init__(self, command):
        self.given = False
        self._command = command

    def __call__(self, *values):
        self.given = True
        print_line(self._command, "ok", *values)

    def error(self, error):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        if self.given:
            print(f"mixed.py: {text}", file=sys.stderr)
        else:
            print_line(self._command, "error", text)


def serve(zk, line):
    command, _, rest = line.rstrip("\r\n").partition(" ")
    verb, *arguments = rest.split(" ")
    respond = Response(command)
    # Every exception becomes an error response.
    try:
        if verb not in VERBS:
            raise ValueError(f"unknown verb: {verb}")
        function, usage = VERBS[verb]
        if len(arguments) != len(usage.split()):
            raise ValueError(f"usage: {verb} {usage}")
        function(zk, respond, *arguments)
    except Exception as error:
        respond.error(error)


OUTPUT_LOCK = threading.Lock()
closing = threading.Event()


def print_line(*words):
    line = " ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in words)
    with OUTPUT_LOCK:
        if not closing.is_set():
            print(line, flush=True)


def main():
    if len(sys.argv) != 3:
        print("usage: mixed.py CONNECT_STRING SESSION_TIMEOUT_SECONDS", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.ERROR)
    zk = KazooClient(hosts=sys.argv[1], timeout=float(sys.argv[2]), connection_retry=RETRY, command_retry=RETRY)
    zk.start(timeout=START_MAX_S)
    print_line("event", "connected")
    for line in sys.stdin:
        threading.Thread(target=serve, args=(zk, line), daemon=True).start()
    closing.set()
    zk.stop()
    zk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
