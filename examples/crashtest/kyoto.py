"""Kyoto Cabinet's hash database: twenty keys, in a hard transaction (`tran`) or with auto-sync alone (`sync`; with `each`,
the check asks for no more than that: each key for itself)."""
import ctypes, sys
from common import KEYS, acknowledge, oracle, main, rounds

kc = ctypes.CDLL("libkyotocabinet.so.16")
kc.kcdbnew.restype = ctypes.c_void_p
kc.kcdbget.restype = ctypes.c_void_p
for call, types in {
    "kcdbopen": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32],
    "kcdbclose": [ctypes.c_void_p],
    "kcdbset": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t],
    "kcdbget": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)],
    "kcdbbegintran": [ctypes.c_void_p, ctypes.c_int32],
    "kcdbendtran": [ctypes.c_void_p, ctypes.c_int32],
}.items():
    getattr(kc, call).argtypes = types
WRITER, CREATE, AUTOSYNC = 2, 4, 32


def open_(dir, how):
    db = kc.kcdbnew()
    if not kc.kcdbopen(db, (dir + "/db.kch").encode(), WRITER | CREATE | (0 if how == "tran" else AUTOSYNC)):
        sys.exit("the database cannot be opened")
    return db


def put(db, n, how):
    ok = how != "tran" or kc.kcdbbegintran(db, 1)
    for key in range(KEYS):
        name, value = b"key-%d" % key, b"%d " % n + b"x" * 700
        ok = ok and kc.kcdbset(db, name, len(name), value, len(value))
    if not ok or (how == "tran" and not kc.kcdbendtran(db, 1)):
        sys.exit("the database cannot be written")


def setup(dir, how):
    db = open_(dir, how)
    put(db, 0, how)
    kc.kcdbclose(db)


def run(dir, how):
    db = open_(dir, how)
    for n in rounds():
        put(db, n, how)
        acknowledge(n)


def check(dir, how):
    db = open_(dir, how)
    found = []
    for key in range(KEYS):
        name, size = b"key-%d" % key, ctypes.c_size_t()
        value = kc.kcdbget(db, name, len(name), ctypes.byref(size))
        found.append(int(ctypes.string_at(value, size.value).split()[0]) if value else -1)
    if how == "each":
        if found != sorted(found, reverse=True):
            sys.exit(f"not what twenty changes one by one leave: {found}")
        found = found[-1:]
    oracle(found)


main(setup=setup, run=run, check=check)
