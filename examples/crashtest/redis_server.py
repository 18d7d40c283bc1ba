"""Redis: one transaction (MULTI, EXEC) sets twenty keys. With `aof`, the server appends them to its file before it
answers; with `rdb`, it writes all of its file anew at SAVE. `DIR aof|rdb`"""
import os, socket, subprocess, sys, time
from common import KEYS, acknowledge, oracle, main, rounds


class Server:
    def __init__(self, dir, how):
        settings = ["appendonly yes", "appendfsync always"] if how == "aof" else ["appendonly no"]
        settings += ["port 0", "unixsocket socket", 'save ""', f"dir {dir}", "logfile log"]
        self.process = subprocess.Popen(["redis-server", "-"], stdin=subprocess.PIPE, cwd=dir)
        self.process.stdin.write("\n".join(settings).encode())
        self.process.stdin.close()
        self.file, end = None, time.monotonic() + 20
        # A socket that a killed server left refuses.
        while not self.file:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(f"{dir}/socket")
                self.file = client.makefile("rwb")
                while self.call("PING") != b"PONG":
                    time.sleep(0.005)
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    sys.exit("redis does not begin: " + open(f"{dir}/log").read())
                time.sleep(0.005)

    def call(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.file.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        self.file.flush()
        return self.answer()

    def answer(self):
        line = self.file.readline().rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind == b"+" or kind == b"-" and rest.startswith(b"LOADING"):
            return rest
        sys.exit(f"redis answers {line}")

    def put(self, n, how):
        self.call("MULTI")
        for key in range(KEYS):
            self.call("SET", f"key-{key}", b"%d " % n + b"x" * 700)
        self.call("EXEC")
        if how == "rdb":
            self.call("SAVE")

    def end(self):
        self.process.terminate()
        self.process.wait()


def setup(dir, how):
    server = Server(dir, how)
    server.put(0, how)
    server.end()


def run(dir, how):
    server = Server(dir, how)
    for n in rounds():
        server.put(n, how)
        acknowledge(n)
    server.end()


def check(dir, how):
    server = Server(dir, how)
    found = server.call("MGET", *[f"key-{key}" for key in range(KEYS)])
    server.end()
    oracle([int((value or b"-1").split()[0]) for value in found])


main(setup=setup, run=run, check=check)
