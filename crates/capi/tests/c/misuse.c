/* Bad handles: every function fails with EBADF, and no handle is ever followed as an address. */
#include "check.h"

/* Every function that takes a handle, given one that is bad for it. */
static void try_everything(void *bad, int as_store, int as_file, int as_txn, int as_ticket, int as_map) {
    char buf[64];
    untorn_status status = {.size = sizeof status};
    if (as_store) {
        untorn_store *s = bad;
        BAD_HANDLE(untorn_store_checkpoint(s));
        BAD_HANDLE(untorn_store_status(s, &status));
        BAD_HANDLE(untorn_store_status_json(s));
        BAD_HANDLE(untorn_store_path(s));
        BAD_HANDLE(untorn_open_at(s, "f", UNTORN_CREATE, 0644));
        BAD_HANDLE(untorn_txn_begin(s));
        BAD_HANDLE(untorn_store_release(s));
        BAD_HANDLE(untorn_store_close(s));
    }
    if (as_file) {
        untorn_file *f = bad;
        BAD_HANDLE(untorn_store_of(f));
        BAD_HANDLE(untorn_dup(f));
        BAD_HANDLE(untorn_pread(f, buf, 1, 0));
        BAD_HANDLE(untorn_pwrite(f, buf, 1, 0));
        BAD_HANDLE(untorn_append(f, buf, 1));
        BAD_HANDLE(untorn_ftruncate(f, 0));
        BAD_HANDLE(untorn_zero(f, 0, 1));
        BAD_HANDLE(untorn_size(f));
        BAD_HANDLE(untorn_path(f));
        BAD_HANDLE(untorn_commit(f));
        BAD_HANDLE(untorn_commit_async(f));
        BAD_HANDLE(untorn_rollback(f));
        BAD_HANDLE(untorn_set_commit_on_close(f, 1));
        BAD_HANDLE(untorn_syncv(&f, 1));
        BAD_HANDLE(untorn_syncv_async(&f, 1));
        BAD_HANDLE(untorn_map_open(f, NULL));
        BAD_HANDLE(untorn_close(f));
    }
    if (as_txn) {
        untorn_txn *t = bad;
        BAD_HANDLE(untorn_txn_add(t, NULL));
        BAD_HANDLE(untorn_txn_create(t, "f", 0644));
        BAD_HANDLE(untorn_txn_rename(t, "f", "g"));
        BAD_HANDLE(untorn_txn_unlink(t, "f"));
        BAD_HANDLE(untorn_txn_mkdir(t, "f", 0755));
        BAD_HANDLE(untorn_txn_rmdir(t, "f"));
        BAD_HANDLE(untorn_txn_chmod(t, "f", 0644));
        BAD_HANDLE(untorn_txn_commit(t));
        BAD_HANDLE(untorn_txn_commit_async(t));
        BAD_HANDLE(untorn_txn_abort(t));
    }
    if (as_ticket) {
        untorn_ticket *t = bad;
        BAD_HANDLE(untorn_ticket_wait(t));
        BAD_HANDLE(untorn_ticket_poll(t));
        BAD_HANDLE(untorn_ticket_free(t));
    }
    if (as_map) {
        untorn_map *m = bad;
        BAD_HANDLE(untorn_map_address(m));
        BAD_HANDLE(untorn_map_len(m));
        BAD_HANDLE(untorn_map_tracker(m));
        BAD_HANDLE(untorn_map_sync(m));
        BAD_HANDLE(untorn_map_sync_async(m));
        BAD_HANDLE(untorn_map_rollback(m));
        BAD_HANDLE(untorn_map_resize(m, 0));
        BAD_HANDLE(untorn_map_mark_dirty(m, 0, 1));
        BAD_HANDLE(untorn_map_reclaim(m));
        BAD_HANDLE(untorn_map_close(m));
    }
}

static void made_up(void) {
    static int something;
    try_everything(NULL, 1, 1, 1, 1, 1);
    try_everything(&something, 1, 1, 1, 1, 1);
    try_everything((void *)UINTPTR_MAX, 1, 1, 1, 1, 1);
    for (uintptr_t n = 1; n < 64; n++) try_everything((void *)n, 1, 1, 1, 1, 1);
    for (int shift = 6; shift < 64; shift++) try_everything((void *)((uintptr_t)1 << shift), 1, 1, 1, 1, 1);
}

static void no_paths(void) {
    FAILS(untorn_store_open(NULL, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_store_open("", NULL), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_open(NULL, 0, 0, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_open("", UNTORN_CREATE, 0644, NULL), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_open("f", 1u << 16, 0644, NULL), EINVAL, UNTORN_E_INVALID);
}

static void wrong_kind_and_closed(void) {
    untorn_store *store = open_store("store", NULL);
    untorn_file *file = untorn_open_at(store, "f", UNTORN_CREATE, 0644);
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(file && txn);
    write_text(file, "x", 0);
    untorn_ticket *ticket = untorn_commit_async(file);
    CHECK(ticket);
    try_everything(store, 0, 1, 1, 1, 1);
    try_everything(file, 1, 0, 1, 1, 1);
    try_everything(txn, 1, 1, 0, 1, 1);
    try_everything(ticket, 1, 1, 1, 0, 1);

    /* A lookalike: one bit beside an open handle. */
    for (int bit = 0; bit < 64; bit++) try_everything((void *)((uintptr_t)file ^ (uintptr_t)1 << bit), 0, 1, 0, 0, 0);

    untorn_map *map = untorn_map_open(file, NULL);
    CHECK(map);
    try_everything(map, 1, 1, 1, 1, 0);
    CHECK(untorn_map_close(map) == 0);
    try_everything(map, 1, 1, 1, 1, 1);

    CHECK(untorn_ticket_wait(ticket) == 0);
    CHECK(untorn_ticket_free(ticket) == 0 && untorn_txn_abort(txn) == 0);
    CHECK(untorn_close(file) == 0);
    for (int i = 0; i < 100; i++) {
        /* The slot is used again; the old handle stays closed. */
        untorn_file *next = untorn_open_at(store, "f", 0, 0);
        CHECK(next && next != file);
        try_everything(file, 1, 1, 1, 1, 1);
        CHECK(untorn_close(next) == 0);
    }
    CHECK(untorn_store_close(store) == 0);
    try_everything(ticket, 1, 1, 1, 1, 1);
    try_everything(txn, 1, 1, 1, 1, 1);
    try_everything(store, 1, 1, 1, 1, 1);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    made_up();
    no_paths();
    wrong_kind_and_closed();
    return 0;
}
