/* Bad handles: every function fails with EBADF, and no handle is ever followed as an address. */
#include "check.h"

/* Kinds of handles. */
enum {
    STORE = 1,
    FILE_ = 2,
    TXN = 4,
    TICKET = 8,
    MAP = 16,
    HEAP = 32,
    GATE = 64,
    OUTPUT = 128,
    READER = 256,
    SNAPSHOT = 512,
    SNAPSHOT_FILE = 1024,
    FOLLOW = 2048,
    ALL = 4095
};

static int never_called(void *context) {
    CHECK(!context && 0);
    return 0;
}

/* Every function that takes a handle of one of these kinds, given one that is bad for it. */
static void try_everything(void *bad, int kinds) {
    char buf[64];
    untorn_status status = {.size = sizeof status};
    if (kinds & STORE) {
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
    if (kinds & FILE_) {
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
    if (kinds & TXN) {
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
    if (kinds & TICKET) {
        untorn_ticket *t = bad;
        BAD_HANDLE(untorn_ticket_wait(t));
        BAD_HANDLE(untorn_ticket_poll(t));
        BAD_HANDLE(untorn_ticket_free(t));
    }
    if (kinds & MAP) {
        untorn_map *m = bad;
        BAD_HANDLE(untorn_map_address(m));
        BAD_HANDLE(untorn_map_len(m));
        BAD_HANDLE(untorn_map_tracker(m));
        BAD_HANDLE(untorn_map_msync(m));
        BAD_HANDLE(untorn_map_msync_async(m));
        BAD_HANDLE(untorn_map_rollback(m));
        BAD_HANDLE(untorn_map_resize(m, 0));
        BAD_HANDLE(untorn_map_mark_dirty(m, buf, 1));
        BAD_HANDLE(untorn_map_reclaim(m));
        BAD_HANDLE(untorn_map_close(m));
    }
    if (kinds & HEAP) {
        untorn_heap *h = bad;
        untorn_heap_stats stats = {.size = sizeof stats};
        untorn_heap_root_info info = {.size = sizeof info};
        void *found;
        BAD_HANDLE(untorn_heap_base(h));
        BAD_HANDLE(untorn_heap_mark_dirty(h, buf, 1));
        BAD_HANDLE(untorn_heap_begin(h));
        BAD_HANDLE(untorn_heap_end(h));
        BAD_HANDLE(untorn_heap_commit(h));
        BAD_HANDLE(untorn_heap_commit_async(h));
        BAD_HANDLE(untorn_heap_rollback(h));
        BAD_HANDLE(untorn_heap_get_stats(h, &stats));
        BAD_HANDLE(untorn_heap_malloc(h, 1));
        BAD_HANDLE(untorn_heap_aligned_alloc(h, 64, 64));
        BAD_HANDLE(untorn_heap_calloc(h, 1, 1));
        BAD_HANDLE(untorn_heap_realloc(h, NULL, 1));
        BAD_HANDLE(untorn_heap_free(h, buf));
        BAD_HANDLE(untorn_heap_allocate_at(h, 1, 1));
        BAD_HANDLE(untorn_heap_root(h, "r", "t", 1, 1, 0, &found));
        BAD_HANDLE(untorn_heap_set_root(h, "r", NULL, "t", 1, 1, 0));
        BAD_HANDLE(untorn_heap_get_root_info(h, "r", &info));
        BAD_HANDLE(untorn_heap_nth_root_info(h, 0, &info));
        BAD_HANDLE(untorn_heap_with_roots(h, never_called, NULL));
        BAD_HANDLE(untorn_heap_check(h, NULL));
        BAD_HANDLE(untorn_heap_close(h));
    }
    if (kinds & GATE) {
        untorn_gate *g = bad;
        BAD_HANDLE(untorn_gate_output(g, STDOUT_FILENO));
        BAD_HANDLE(untorn_gate_drain(g));
        BAD_HANDLE(untorn_gate_free(g));
    }
    if (kinds & OUTPUT) {
        untorn_output *o = bad;
        BAD_HANDLE(untorn_output_write(o, buf, 1, NULL));
        BAD_HANDLE(untorn_output_close(o));
    }
    if (kinds & READER) {
        untorn_reader *r = bad;
        size_t len;
        BAD_HANDLE(untorn_reader_wait_for(r, 0, -1));
        BAD_HANDLE(untorn_reader_read(r, "f", &len));
        BAD_HANDLE(untorn_snapshot_take(r));
        BAD_HANDLE(untorn_follow_open(r));
        BAD_HANDLE(untorn_follow_open_from(r, 0));
        BAD_HANDLE(untorn_reader_close(r));
    }
    if (kinds & SNAPSHOT) {
        untorn_snapshot *s = bad;
        untorn_metadata metadata = {.size = sizeof metadata};
        BAD_HANDLE(untorn_snapshot_refresh(s));
        BAD_HANDLE(untorn_snapshot_lsn(s));
        BAD_HANDLE(untorn_snapshot_check(s));
        BAD_HANDLE(untorn_snapshot_list(s, ""));
        BAD_HANDLE(untorn_snapshot_metadata(s, "f", &metadata));
        BAD_HANDLE(untorn_snapshot_open(s, "f"));
        BAD_HANDLE(untorn_snapshot_close(s));
    }
    if (kinds & SNAPSHOT_FILE) {
        untorn_snapshot_file *f = bad;
        BAD_HANDLE(untorn_snapshot_pread(f, buf, 1, 0));
        BAD_HANDLE(untorn_snapshot_size(f));
        BAD_HANDLE(untorn_snapshot_copy(f, -1));
        BAD_HANDLE(untorn_snapshot_file_close(f));
    }
    if (kinds & FOLLOW) {
        untorn_follow *f = bad;
        untorn_followed *followed;
        BAD_HANDLE(untorn_follow_next(f, -1, &followed));
        BAD_HANDLE(untorn_follow_next(f, 0, NULL));
        BAD_HANDLE(untorn_follow_pread(f, 1, 0, buf, 1, 0));
        BAD_HANDLE(untorn_follow_lsn(f));
        BAD_HANDLE(untorn_follow_close(f));
    }
}

static void made_up(void) {
    static int something;
    try_everything(NULL, ALL);
    try_everything(&something, ALL);
    try_everything((void *)UINTPTR_MAX, ALL);
    for (uintptr_t n = 1; n < 64; n++) try_everything((void *)n, ALL);
    for (int shift = 6; shift < 64; shift++) try_everything((void *)((uintptr_t)1 << shift), ALL);
}

static void no_paths(void) {
    FAILS(untorn_store_open(NULL, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_store_open("", NULL), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_open(NULL, 0, 0, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_open("", UNTORN_CREATE, 0644, NULL), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_open("f", 1u << 16, 0644, NULL), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_reader_open(NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_reader_open(""), ENOENT, UNTORN_E_INVALID);
}

/* A change through these handles is refused with a message that names their kind. */
static void of_readers(untorn_store *store) {
    untorn_reader *reader = untorn_reader_open("store");
    CHECK(reader);
    untorn_snapshot *snapshot = untorn_snapshot_take(reader);
    CHECK(snapshot);
    untorn_snapshot_file *file = untorn_snapshot_open(snapshot, "f");
    untorn_follow *follow = untorn_follow_open(reader);
    CHECK(file && follow);
    try_everything(reader, ALL & ~READER);
    try_everything(snapshot, ALL & ~SNAPSHOT);
    try_everything(file, ALL & ~SNAPSHOT_FILE);
    try_everything(follow, ALL & ~FOLLOW);
    BAD_HANDLE(untorn_pwrite((untorn_file *)file, "x", 1, 0));
    CHECK(strstr(untorn_error_message(), "snapshot file handle, which only reads"));
    BAD_HANDLE(untorn_txn_begin((untorn_store *)reader));
    CHECK(strstr(untorn_error_message(), "reader handle, which only reads"));
    BAD_HANDLE(untorn_snapshot_check((untorn_snapshot *)reader));
    CHECK(!strstr(untorn_error_message(), "only reads"));
    BAD_HANDLE(untorn_follow_open((untorn_reader *)store));

    /* Bad arguments of good handles. */
    char buf[4];
    untorn_metadata metadata = {.size = sizeof metadata}, small = {.size = 4};
    FAILS(untorn_reader_read(reader, NULL, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_reader_read(reader, "", NULL), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_reader_read(reader, "../f", NULL), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_reader_read(reader, "missing", NULL), ENOENT, UNTORN_E_IO);
    FAILS(untorn_snapshot_list(snapshot, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_snapshot_list(snapshot, "missing"), ENOENT, UNTORN_E_IO);
    FAILS(untorn_snapshot_list(snapshot, "/"), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_snapshot_metadata(snapshot, NULL, &metadata), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_snapshot_metadata(snapshot, "f", NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_snapshot_metadata(snapshot, "f", &small), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_snapshot_metadata(snapshot, "missing", &metadata), ENOENT, UNTORN_E_IO);
    FAILS(untorn_snapshot_open(snapshot, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_snapshot_open(snapshot, ""), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_snapshot_open(snapshot, "missing"), ENOENT, UNTORN_E_IO);
    FAILS(untorn_snapshot_open(snapshot, ".untorn/lock"), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_snapshot_pread(file, NULL, 1, 0), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_snapshot_pread(file, NULL, 0, 0) == 0);
    FAILS(untorn_snapshot_pread(file, buf, 1, UINT64_MAX), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_follow_next(follow, 0, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_follow_pread(follow, 0, 0, buf, 1, 0), EINVAL, UNTORN_E_INVALID);
    CHECK(strstr(untorn_error_message(), "the last call returned no commit"));
    CHECK(untorn_snapshot_pread(file, buf, sizeof buf, INT64_MAX) == 0);

    CHECK(untorn_reader_close(reader) == 0 && untorn_snapshot_close(snapshot) == 0);
    CHECK(untorn_snapshot_file_close(file) == 0 && untorn_follow_close(follow) == 0);
    try_everything(reader, ALL);
    try_everything(snapshot, ALL);
    try_everything(file, ALL);
    try_everything(follow, ALL);
}

static void wrong_kind_and_closed(void) {
    untorn_store *store = open_store("store", NULL);
    untorn_file *file = untorn_open_at(store, "f", UNTORN_CREATE, 0644);
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(file && txn);
    write_text(file, "x", 0);
    untorn_ticket *ticket = untorn_commit_async(file);
    CHECK(ticket);
    try_everything(store, ALL & ~STORE);
    try_everything(file, ALL & ~FILE_);
    try_everything(txn, ALL & ~TXN);
    try_everything(ticket, ALL & ~TICKET);

    /* A number that differs from an open handle by one bit. */
    for (int bit = 0; bit < 64; bit++) try_everything((void *)((uintptr_t)file ^ (uintptr_t)1 << bit), FILE_);

    untorn_map *map = untorn_map_open(file, NULL);
    CHECK(map);
    try_everything(map, ALL & ~MAP);
    CHECK(untorn_map_close(map) == 0);
    try_everything(map, ALL);

    untorn_heap_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_heap *heap = untorn_heap_open_at(store, "h", &create);
    CHECK(heap);
    try_everything(heap, ALL & ~HEAP);
    CHECK(untorn_heap_close(heap) == 0);
    try_everything(heap, ALL);

    int ends[2];
    CHECK(pipe(ends) == 0);
    untorn_gate *gate = untorn_gate_open(0);
    CHECK(gate);
    untorn_output *output = untorn_gate_output(gate, ends[1]);
    CHECK(output);
    try_everything(gate, ALL & ~GATE);
    try_everything(output, ALL & ~OUTPUT);
    /* With a good output: an invalid ticket, no bytes, a closed descriptor. */
    BAD_HANDLE(untorn_output_write(output, "x", 1, (untorn_ticket *)gate));
    FAILS(untorn_output_write(output, NULL, 1, ticket), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_output_write(output, NULL, 0, ticket) == 0);
    CHECK(close(ends[1]) == 0 && untorn_gate_output(gate, ends[1]) == NULL && errno == EBADF);
    CHECK(untorn_output_write(output, "x", 1, ticket) == 0 && untorn_gate_drain(gate) == 0);
    char x;
    CHECK(read(ends[0], &x, 1) == 1 && x == 'x');
    CHECK(untorn_output_close(output) == 0);
    try_everything(output, ALL);
    CHECK(untorn_gate_free(gate) == 0);
    try_everything(gate, ALL);
    try_everything(output, ALL);
    /* The gate had the last copy of the descriptor. */
    CHECK(read(ends[0], &x, 1) == 0 && close(ends[0]) == 0);

    CHECK(untorn_ticket_wait(ticket) == 0);
    of_readers(store);
    CHECK(untorn_ticket_free(ticket) == 0 && untorn_txn_abort(txn) == 0);
    CHECK(untorn_close(file) == 0);
    for (int i = 0; i < 100; i++) {
        /* The slot is used again; the old handle stays closed. */
        untorn_file *next = untorn_open_at(store, "f", 0, 0);
        CHECK(next && next != file);
        try_everything(file, ALL);
        CHECK(untorn_close(next) == 0);
    }
    CHECK(untorn_store_close(store) == 0);
    try_everything(ticket, ALL);
    try_everything(txn, ALL);
    try_everything(store, ALL);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    made_up();
    no_paths();
    wrong_kind_and_closed();
    return 0;
}
