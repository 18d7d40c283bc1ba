/* Stores: options, opening, status, checkpoint, closing, and replacing a file. */
#include "check.h"
#include <stddef.h>

static void options(void) {
    untorn_options o;
    memset(&o, 0xff, sizeof o);
    CHECK(untorn_options_init(&o, sizeof o) == 0);
    untorn_options zero = {.size = sizeof zero};
    CHECK(memcmp(&o, &zero, sizeof o) == 0);

    FAILS(untorn_options_init(NULL, sizeof o), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_options_init(&o, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_options_init(&o, SIZE_MAX), EINVAL, UNTORN_E_INVALID);

    /* A newer program's options: members that this library does not know must be zero. */
    struct {
        untorn_options known;
        uint64_t later;
    } newer;
    CHECK(untorn_options_init(&newer.known, sizeof newer) == 0);
    CHECK(newer.known.size == sizeof newer && newer.later == 0);
    untorn_store *store = open_store("newer", &newer.known);
    CHECK(untorn_store_close(store) == 0);
    newer.later = 1;
    FAILS(untorn_store_open("newer", &newer.known), EINVAL, UNTORN_E_INVALID);

    untorn_options bad = zero;
    bad.size = 8;
    FAILS(untorn_store_open("bad", &bad), EINVAL, UNTORN_E_INVALID);
    bad = zero;
    bad.flags = 1u << 31;
    FAILS(untorn_store_open("bad", &bad), EINVAL, UNTORN_E_INVALID);
    bad = zero;
    bad.failure_class = 2;
    FAILS(untorn_store_open("bad", &bad), EINVAL, UNTORN_E_INVALID);
    CHECK(mkdir("plain", 0755) == 0);
    FAILS(untorn_store_open("plain", &zero), ENOENT, UNTORN_E_IO);
    FAILS(untorn_store_open("missing", NULL), ENOENT, UNTORN_E_IO);
    CHECK(strstr(untorn_error_message(), "UNTORN_CREATE"));
    untorn_options create = zero;
    create.flags = UNTORN_CREATE;
    FAILS(untorn_store_open("missing/below", &create), ENOENT, UNTORN_E_IO);
    umask(027);
    store = untorn_store_open("missing", &create);
    struct stat st;
    CHECK(store && stat("missing", &st) == 0 && (st.st_mode & 07777) == 0750);
    CHECK(untorn_store_close(store) == 0);
}

static void opening(void) {
    untorn_store *store = open_store("one", NULL);
    FAILS(untorn_store_open("one", NULL), EBUSY, UNTORN_E_BUSY);

    char *path = untorn_store_path(store);
    CHECK(path && strlen(path) >= 3 && strcmp(path + strlen(path) - 3, "one") == 0);
    untorn_free(path);
    untorn_free(NULL);

    CHECK(untorn_store_close(store) == 0);
    BAD_HANDLE(untorn_store_close(store));
    store = open_store("one", NULL);
    CHECK(untorn_store_close(store) == 0);

    int fd = open("a file", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    close(fd);
    FAILS(untorn_store_open("a file", NULL), ENOTDIR, UNTORN_E_IO);
}

static void status(void) {
    untorn_options o;
    untorn_options_init(&o, sizeof o);
    o.failure_class = UNTORN_CLASS_PROCESS;
    o.journal_bytes = 1 << 20;
    o.flags = UNTORN_FULL_PAGE | UNTORN_WAIT | UNTORN_ACCEPT_UNKNOWN | UNTORN_IN_ORDER;
    untorn_store *store = open_store("two", &o);
    untorn_file *file = untorn_open_at(store, "f", UNTORN_CREATE, 0644);
    CHECK(file);
    write_text(file, "hello", 0);
    CHECK(untorn_commit(file) == 0);

    untorn_status s = {.size = sizeof s};
    CHECK(untorn_store_status(store, &s) == 0);
    CHECK(s.size == sizeof s && s.failure_class == UNTORN_CLASS_PROCESS && s.full_page == 1 && s.failed == 0);
    CHECK(s.journal_bytes_max == 1 << 20 && s.commits >= 1 && s.lsn >= 1 && s.open_files == 1);
    CHECK(s.quarantined == 0 && s.recovered_commits == 0 && s.journal_bytes_written > 0);
    CHECK(strlen(s.store_id) >= 16);
    uint64_t checkpoints = s.checkpoints;

    /* An older program's smaller struct is filled as far as it goes, and no further. */
    union {
        untorn_status whole;
        unsigned char bytes[sizeof(untorn_status)];
    } small;
    memset(&small, 0x5a, sizeof small);
    small.whole.size = offsetof(untorn_status, commits);
    CHECK(untorn_store_status(store, &small.whole) == 0);
    CHECK(small.whole.journal_bytes_max == 1 << 20 && small.bytes[offsetof(untorn_status, commits)] == 0x5a);
    FAILS(untorn_store_status(store, NULL), EFAULT, UNTORN_E_NULL);
    s.size = 0;
    FAILS(untorn_store_status(store, &s), EINVAL, UNTORN_E_INVALID);

    char *json = untorn_store_status_json(store);
    CHECK(json && strlen(json) > 100 && json[0] == '{' && json[strlen(json) - 1] == '}');
    CHECK(strstr(json, "\"class\":\"process\"") && strstr(json, "\"quarantined\":[]"));
    untorn_free(json);

    /* One file alone. */
    CHECK(untorn_file_checkpoint(file) == 0);
    check_plain("two/f", "hello");
    s.size = sizeof s;
    CHECK(untorn_store_status(store, &s) == 0 && s.checkpoints == checkpoints && s.journal_bytes_pending > 0);
    untorn_file *other = untorn_open_at(store, "g", UNTORN_CREATE, 0600);
    write_text(other, "plain", 0);
    CHECK(untorn_commit(other) == 0 && untorn_close_plain(other) == 0);
    BAD_HANDLE(untorn_close_plain(other));
    check_plain("two/g", "plain");
    CHECK(unlink("two/g") == 0 && (other = untorn_open_at(store, "g", UNTORN_CREATE, 0600)));
    CHECK(untorn_size(other) == 0);
    FAILS(untorn_close_plain(untorn_dup(other)), EBUSY, UNTORN_E_BUSY);
    CHECK(untorn_close(other) == 0);
    write_text(file, "H", 0);
    CHECK(untorn_commit(file) == 0);

    CHECK(untorn_store_checkpoint(store) == 0);
    check_plain("two/f", "Hello");
    s.size = sizeof s;
    CHECK(untorn_store_status(store, &s) == 0 && s.checkpoints > checkpoints && s.journal_bytes_pending == 0);

    /* The store closes under its open file, whose handle then only can be closed. */
    CHECK(untorn_store_close(store) == 0);
    char byte;
    BAD_HANDLE(untorn_pread(file, &byte, 1, 0));
    BAD_HANDLE(untorn_commit(file));
    untorn_close(file);
    BAD_HANDLE(untorn_close(file));
}

static void smallest_journal(void) {
    untorn_options o = {.size = sizeof o, .journal_bytes = 1};
    untorn_store *store = open_store("small", &o);
    untorn_status s = {.size = sizeof s};
    CHECK(untorn_store_status(store, &s) == 0 && s.journal_bytes_max == 64 << 10);
    CHECK(untorn_store_close(store) == 0);
}

static void stores_of_files(void) {
    untorn_store *store = open_store("three", NULL);
    untorn_file *file = untorn_open_at(store, "f", UNTORN_CREATE, 0644);
    CHECK(file);
    untorn_store *again = untorn_store_of(file);
    CHECK(again && again != store);
    CHECK(untorn_store_release(store) == 0);
    BAD_HANDLE(untorn_store_release(store));
    write_text(file, "kept", 0);
    CHECK(untorn_commit(file) == 0);
    CHECK(untorn_store_checkpoint(again) == 0);
    CHECK(untorn_store_release(again) == 0);
    CHECK(untorn_close(file) == 0);
    /* The last handle gone, the store has closed by itself. */
    store = open_store("three", NULL);
    CHECK(untorn_store_close(store) == 0);
    check_plain("three/f", "kept");
}

static void put(void) {
    CHECK(untorn_put("put", "first", 5) == 0);
    CHECK(chmod("put", 0640) == 0);
    CHECK(untorn_put("put", "second", 6) == 0);
    check_plain("put", "second");
    struct stat st;
    CHECK(stat("put", &st) == 0 && (st.st_mode & 07777) == 0640);
    CHECK(untorn_put("put", NULL, 0) == 0);
    check_plain("put", "");
    FAILS(untorn_put("no such directory/put", "x", 1), ENOENT, UNTORN_E_IO);
    FAILS(untorn_put("put", NULL, 1), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_put(NULL, "x", 1), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_put("put", "x", SIZE_MAX), EINVAL, UNTORN_E_INVALID);
}

/* For programs with event loops, and for databases. */
static void loops(void) {
    untorn_store *store = open_store("loops", NULL);
    untorn_file *file = untorn_open_at(store, "f", UNTORN_CREATE, 0644);
    int events = untorn_store_notification_fd(store);
    CHECK(file && events >= 0 && untorn_store_notification_fd(store) == events);
    BAD_HANDLE(untorn_store_notification_fd(NULL));
    char page[4096] = {7};
    CHECK(untorn_has_changes(file) == 0 && untorn_pwrite_changed(file, page, sizeof page, 0) == 1);
    CHECK(untorn_has_changes(file) == 1);
    untorn_ticket *ticket = untorn_commit_async(file);
    CHECK(ticket && untorn_store_wait(store) == 0 && untorn_ticket_poll(ticket) == 1);
    CHECK(untorn_ticket_lsn(ticket) > 0 && untorn_ticket_free(ticket) == 0);
    uint64_t woken = 0, device = 0, inode = 0;
    CHECK(read(events, &woken, sizeof woken) == sizeof woken && woken >= 1);
    CHECK(untorn_pwrite_changed(file, page, sizeof page, 0) == 0 && untorn_has_changes(file) == 0);
    FAILS(untorn_pwrite_changed(file, NULL, 1, 0), EFAULT, UNTORN_E_NULL);
    struct stat st;
    CHECK(stat("loops/f", &st) == 0 && untorn_identity(file, &device, &inode) == 1);
    CHECK(device == st.st_dev && inode == st.st_ino);
    FAILS(untorn_identity(file, NULL, &inode), EFAULT, UNTORN_E_NULL);
    untorn_store *same = untorn_store_find("loops/.");
    CHECK(same && untorn_store_release(same) == 0);
    FAILS(untorn_store_find("nowhere"), ENOENT, UNTORN_E_INVALID);
    untorn_options soon = {.size = sizeof soon, .wait_ms = 20};
    FAILS(untorn_store_open("loops", &soon), EBUSY, UNTORN_E_BUSY);
    int plain = open("loops/f", O_RDONLY | O_CLOEXEC);
    CHECK(plain >= 0 && untorn_is_plain(plain) == 0);
    CHECK(untorn_close(file) == 0 && untorn_store_close(store) == 0);
    CHECK(untorn_is_plain(plain) == 1 && close(plain) == 0);
    FAILS(untorn_is_plain(-1), EBADF, UNTORN_E_INVALID);
    FAILS(untorn_store_find("loops"), ENOENT, UNTORN_E_INVALID);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", UNTORN_VERSION_MAJOR, UNTORN_VERSION_MINOR, UNTORN_VERSION_PATCH);
    CHECK(strcmp(untorn_version(), version) == 0);
    CHECK(untorn_last_error() == UNTORN_E_NONE && strcmp(untorn_error_message(), "") == 0);
    options();
    opening();
    status();
    smallest_journal();
    stores_of_files();
    put();
    loops();
    return 0;
}
