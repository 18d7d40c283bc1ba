/* Readers beside an owner in another process: while it lives, after a kill, and after the next owner. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

/* Long enough on any machine: only a broken program waits so long. */
enum { LIMIT_MS = 60 * 1000 };

static pid_t owner;
static int orders[2], answers[2];

/* The owner's action at an order; the owner answers with the number of its last commit. */
static uint64_t done(untorn_store *store) {
    untorn_status status = {.size = sizeof status};
    CHECK(untorn_store_status(store, &status) == 0);
    return status.lsn;
}

static void write_both(untorn_store *store, const char *text) {
    const char *names[2] = {"a", "b"};
    untorn_file *both[2];
    for (int i = 0; i < 2; i++) {
        both[i] = untorn_open_at(store, names[i], UNTORN_CREATE, 0640);
        CHECK(both[i]);
        write_text(both[i], text, 0);
    }
    CHECK(untorn_syncv(both, 2) == 0);
    for (int i = 0; i < 2; i++) {
        write_text(both[i], "never committed", 0);
        CHECK(untorn_close(both[i]) == 0);
    }
}

static void change_names(untorn_store *store) {
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(txn);
    CHECK(untorn_txn_mkdir(txn, "dir", 0750) == 0 && untorn_txn_rename(txn, "b", "dir/b") == 0);
    CHECK(untorn_txn_chmod(txn, "a", 0600) == 0 && untorn_txn_commit(txn) == 0);
    untorn_file *file = untorn_open_at(store, "a", 0, 0);
    CHECK(file);
    CHECK(untorn_ftruncate(file, 2) == 0 && untorn_zero(file, 1, 1) == 0 && untorn_commit(file) == 0);
    CHECK(untorn_close(file) == 0);
}

/* More than fits into a record: it goes to a spill file beside the log. */
enum { LARGE_BYTES = 3 << 20 };

static char large_byte(uint64_t at) { return (char)(at * 7 % 251); }

static void write_large(untorn_store *store) {
    static char bytes[LARGE_BYTES];
    for (uint64_t at = 0; at < LARGE_BYTES; at++) bytes[at] = large_byte(at);
    untorn_file *file = untorn_open_at(store, "large", UNTORN_CREATE, 0640);
    CHECK(file);
    CHECK(untorn_pwrite(file, bytes, LARGE_BYTES, 100) == LARGE_BYTES && untorn_commit(file) == 0);
    CHECK(untorn_close(file) == 0);
}

static void remove_large(untorn_store *store) {
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(txn && untorn_txn_unlink(txn, "large") == 0 && untorn_txn_commit(txn) == 0);
}

static void own(void) {
    /* So that the owner ends with its parent. */
    close(orders[1]);
    close(answers[0]);
    untorn_options options = {.size = sizeof options, .journal_bytes = 64 * 1024};
    untorn_store *store = open_store("store", &options);
    char order;
    while (read(orders[0], &order, 1) == 1) {
        char text[4] = {order, order, order, 0};
        switch (order) {
        case 'n': change_names(store); break;
        case 'l': write_large(store); break;
        case 'u': remove_large(store); break;
        case '#': CHECK(untorn_store_checkpoint(store) == 0); break;
        case '*': /* more than the journal holds */
            for (int i = 0; i < 100; i++) {
                write_both(store, "***");
                CHECK(untorn_store_checkpoint(store) == 0);
            }
            break;
        case '.': CHECK(untorn_store_close(store) == 0); _exit(0);
        default: write_both(store, text);
        }
        uint64_t lsn = done(store);
        CHECK(write(answers[1], &lsn, sizeof lsn) == sizeof lsn);
    }
    _exit(1);
}

static void start(void) {
    CHECK(pipe(orders) == 0 && pipe(answers) == 0);
    fflush(NULL);
    owner = fork();
    CHECK(owner >= 0);
    if (owner == 0) own();
    close(orders[0]);
    close(answers[1]);
}

static uint64_t order(char what) {
    uint64_t lsn;
    CHECK(write(orders[1], &what, 1) == 1);
    CHECK(read(answers[0], &lsn, sizeof lsn) == sizeof lsn);
    return lsn;
}

/* The owner's wait status. */
static int ended(void) {
    int status;
    CHECK(waitpid(owner, &status, 0) == owner);
    close(orders[1]);
    close(answers[0]);
    return status;
}

static void check_file(const untorn_snapshot *snapshot, const char *path, const char *expected) {
    untorn_snapshot_file *file = untorn_snapshot_open(snapshot, path);
    CHECK(file);
    char buf[64];
    ssize_t len = (ssize_t)strlen(expected);
    CHECK(untorn_snapshot_size(file) == len && untorn_snapshot_pread(file, buf, sizeof buf, 0) == len);
    CHECK(memcmp(buf, expected, (size_t)len) == 0);
    CHECK(untorn_snapshot_pread(file, buf, 1, 1) == 1 && buf[0] == expected[1]);
    CHECK(untorn_snapshot_pread(file, buf, 1, (uint64_t)len) == 0);
    CHECK(untorn_snapshot_file_close(file) == 0);
}

static void check_list(const untorn_snapshot *snapshot, const char *path, const char *expected) {
    char joined[64] = "";
    char **names = untorn_snapshot_list(snapshot, path);
    CHECK(names);
    for (char **name = names; *name; name++) strcat(strcat(joined, *name), " ");
    untorn_free(names);
    CHECK(strcmp(joined, expected) == 0);
}

static void check_metadata(const untorn_snapshot *snapshot, const char *path, uint32_t mode, int64_t len) {
    untorn_metadata metadata = {.size = sizeof metadata};
    CHECK(untorn_snapshot_metadata(snapshot, path, &metadata) == 0 && metadata.size == sizeof metadata);
    CHECK(metadata.mode == mode && metadata.is_directory == (len < 0));
    CHECK(metadata.len == (uint64_t)(len < 0 ? 0 : len));
}

static void check_read(const untorn_reader *reader, const char *path, const char *expected) {
    size_t len = 0;
    char *text = untorn_reader_read(reader, path, &len);
    CHECK(text && len == strlen(expected) && strcmp(text, expected) == 0);
    untorn_free(text);
    text = untorn_reader_read(reader, path, NULL);
    CHECK(text);
    untorn_free(text);
}

#define EXPIRED(call) FAILS(call, ESTALE, UNTORN_E_SNAPSHOT_EXPIRED)

static untorn_snapshot *take(const untorn_reader *reader) {
    untorn_snapshot *snapshot = untorn_snapshot_take(reader);
    CHECK(snapshot);
    return snapshot;
}

/* A file of a snapshot to a descriptor. */
static void copies(const untorn_snapshot_file *file) {
    int fd = open("copy", O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && untorn_snapshot_copy(file, fd) == 3);
    check_plain("copy", "111");
    FAILS(untorn_snapshot_copy(file, fd), EINVAL, UNTORN_E_INVALID); /* It is not empty. */
    CHECK(ftruncate(fd, 0) == 0 && untorn_snapshot_copy(file, fd) == 3 && close(fd) == 0);
    FAILS(untorn_snapshot_copy(file, fd), EBADF, UNTORN_E_BAD_HANDLE);
    fd = open("copy", O_WRONLY | O_TRUNC);
    FAILS(untorn_snapshot_copy(file, fd), EBADF, UNTORN_E_INVALID);
    CHECK(close(fd) == 0 && unlink("copy") == 0);
}

static void snapshots(const untorn_reader *reader) {
    uint64_t first = order('1');
    CHECK(untorn_reader_wait_for(reader, first, 0) == 1);
    CHECK(untorn_reader_wait_for(reader, first + 1, 5) == 0);
    check_read(reader, "a", "111");
    untorn_snapshot *old = take(reader), *now = take(reader);
    CHECK(untorn_snapshot_lsn(old) >= (int64_t)first);
    check_list(old, "", "a b ");
    check_metadata(old, "a", 0640, 3);
    check_metadata(old, "", 0755, -1);
    untorn_snapshot_file *file = untorn_snapshot_open(old, "b");
    CHECK(file);

    /* A newer commit is not in the old snapshot, and is in the refreshed one. */
    uint64_t second = order('2');
    CHECK(second > first && untorn_reader_wait_for(reader, second, -1) == 1);
    check_file(old, "a", "111");
    check_file(old, "b", "111");
    CHECK(untorn_snapshot_check(old) == 0);
    CHECK(untorn_snapshot_refresh(now) == 0 && untorn_snapshot_lsn(now) >= (int64_t)second);
    check_file(now, "a", "222");
    check_file(now, "b", "222");

    /* A checkpoint writes the newer commit into the files: the old snapshot shows the kept bytes. */
    order('#');
    CHECK(untorn_snapshot_check(old) == 0);
    check_file(old, "a", "111");
    check_list(old, "", "a b ");
    CHECK(untorn_snapshot_lsn(old) >= (int64_t)first);
    check_file(now, "a", "222");
    CHECK(untorn_snapshot_refresh(old) == 0);
    check_file(old, "b", "222");
    /* The file was opened in the snapshot before. */
    char buf[8];
    CHECK(untorn_snapshot_size(file) == 3);
    CHECK(untorn_snapshot_pread(file, buf, sizeof buf, 0) == 3 && memcmp(buf, "111", 3) == 0);
    copies(file);
    CHECK(untorn_snapshot_file_close(file) == 0);
    CHECK(untorn_snapshot_close(old) == 0 && untorn_snapshot_close(now) == 0);
}

/* The next commit; it must have this many changes. */
static untorn_followed *next(untorn_follow *follow, uint32_t changes) {
    untorn_followed *followed = NULL;
    CHECK(untorn_follow_next(follow, LIMIT_MS, &followed) == 1 && followed);
    CHECK(!followed->missed && followed->first_lsn == followed->last_lsn && followed->changes_len == changes);
    return followed;
}

/* The commit's one change of this kind to this name; changes of different files are in any order. */
static const untorn_change *change(const untorn_followed *followed, untorn_change_kind kind, const char *path) {
    const untorn_change *found = NULL;
    for (uint32_t n = 0; n < followed->changes_len; n++) {
        const untorn_change *at = followed->changes[n];
        if (at->kind != kind || strcmp(at->path, path) != 0) continue;
        CHECK(!found);
        found = at;
    }
    CHECK(found && (found->new_path != NULL) == (kind == UNTORN_CHANGE_RENAMED));
    return found;
}

/* The index of the commit's one change of this kind to this name. */
static size_t index_of(const untorn_followed *followed, untorn_change_kind kind, const char *path) {
    const untorn_change *of = change(followed, kind, path);
    for (size_t n = 0;; n++) {
        if (followed->changes[n] == of) return n;
    }
}

/* The bytes of a commit, once the one after it has overwritten them. */
static void bytes_of_commits(const untorn_reader *reader) {
    untorn_follow *follow = untorn_follow_open(reader);
    CHECK(follow);
    char buf[8];
    FAILS(untorn_follow_pread(follow, 1, 0, buf, 1, 0), EINVAL, UNTORN_E_INVALID);
    order('6');
    order('7');
    uint64_t before = 0;
    for (int n = 6; n <= 7; n++) {
        untorn_followed *commit = next(follow, 2);
        uint64_t lsn = commit->last_lsn;
        size_t of_b = index_of(commit, UNTORN_CHANGE_WRITTEN, "b");
        untorn_free(commit);
        const char text[3] = {(char)('0' + n), (char)('0' + n), (char)('0' + n)};
        CHECK(untorn_follow_pread(follow, lsn, of_b, buf, sizeof buf, 0) == 3 && memcmp(buf, text, 3) == 0);
        CHECK(untorn_follow_pread(follow, lsn, of_b, buf, 1, 2) == 1 && untorn_follow_pread(follow, lsn, of_b, buf, 1, 3) == 0);
        CHECK(untorn_follow_pread(follow, lsn, of_b, NULL, 0, 0) == 0);
        FAILS(untorn_follow_pread(follow, lsn, of_b, NULL, 1, 0), EFAULT, UNTORN_E_NULL);
        FAILS(untorn_follow_pread(follow, lsn, of_b, buf, SIZE_MAX, 0), EINVAL, UNTORN_E_INVALID);
        FAILS(untorn_follow_pread(follow, lsn, of_b, buf, 1, 4), EINVAL, UNTORN_E_INVALID);
        FAILS(untorn_follow_pread(follow, lsn, of_b, buf, 1, UINT64_MAX), EINVAL, UNTORN_E_INVALID);
        FAILS(untorn_follow_pread(follow, lsn, 2, buf, 1, 0), EINVAL, UNTORN_E_INVALID);
        FAILS(untorn_follow_pread(follow, lsn, SIZE_MAX, buf, 1, 0), EINVAL, UNTORN_E_INVALID);
        FAILS(untorn_follow_pread(follow, before, of_b, buf, 1, 0), EINVAL, UNTORN_E_INVALID);
        before = lsn;
    }
    CHECK(strstr(untorn_error_message(), "the last call returned"));

    /* The bytes of a large commit, also when it was applied and its spill file is gone. */
    order('l');
    untorn_followed *made = next(follow, 1);
    size_t created = index_of(made, UNTORN_CHANGE_CREATED, "large");
    FAILS(untorn_follow_pread(follow, made->last_lsn, created, buf, 1, 0), EINVAL, UNTORN_E_INVALID);
    CHECK(strstr(untorn_error_message(), "wrote no bytes"));
    untorn_free(made);
    untorn_followed *large = next(follow, 3); /* zeros in front of it, and the length */
    const untorn_change *written = change(large, UNTORN_CHANGE_WRITTEN, "large");
    CHECK(written->offset == 100 && written->len == LARGE_BYTES);
    order('#');
    size_t of_large = index_of(large, UNTORN_CHANGE_WRITTEN, "large");
    static char bytes[LARGE_BYTES + 1];
    CHECK(untorn_follow_pread(follow, large->last_lsn, of_large, bytes, sizeof bytes, 100) == LARGE_BYTES);
    for (uint64_t at = 0; at < LARGE_BYTES; at++) CHECK(bytes[at] == large_byte(at));
    FAILS(untorn_follow_pread(follow, large->last_lsn, of_large, bytes, 1, 99), EINVAL, UNTORN_E_INVALID);
    order('u');
    uint64_t lsn = large->last_lsn;
    untorn_free(large);
    CHECK(untorn_follow_close(follow) == 0);
    BAD_HANDLE(untorn_follow_pread(follow, lsn, of_large, bytes, 1, 100));
}

static void following(const untorn_reader *reader) {
    untorn_follow *follow = untorn_follow_open(reader);
    CHECK(follow);
    untorn_followed *commit = NULL;
    CHECK(untorn_follow_next(follow, 0, &commit) == 0 && commit == NULL);
    uint64_t third = order('3');
    commit = next(follow, 2);
    CHECK(commit->last_lsn <= third);
    change(commit, UNTORN_CHANGE_WRITTEN, "a");
    const untorn_change *of_b = change(commit, UNTORN_CHANGE_WRITTEN, "b");
    CHECK(of_b->offset == 0 && of_b->len == 3);
    untorn_free(commit);

    uint64_t names = order('n');
    commit = next(follow, 3);
    change(commit, UNTORN_CHANGE_DIRECTORY_MADE, "dir");
    CHECK(strcmp(change(commit, UNTORN_CHANGE_RENAMED, "b")->new_path, "dir/b") == 0);
    CHECK(change(commit, UNTORN_CHANGE_MODE, "a")->mode == 0600);
    untorn_free(commit);
    commit = next(follow, 2);
    CHECK(commit->last_lsn == names);
    CHECK(change(commit, UNTORN_CHANGE_RESIZED, "a")->len == 2);
    const untorn_change *zeroed = change(commit, UNTORN_CHANGE_ZEROED, "a");
    CHECK(zeroed->offset == 1 && zeroed->len == 1);
    char zero = 'x';
    size_t of_zeros = index_of(commit, UNTORN_CHANGE_ZEROED, "a");
    CHECK(untorn_follow_pread(follow, names, of_zeros, &zero, 1, 1) == 1 && zero == 0);
    untorn_free(commit);

    untorn_snapshot *snapshot = take(reader);
    check_list(snapshot, "", "a dir ");
    check_list(snapshot, "dir", "b ");
    check_metadata(snapshot, "dir", 0750, -1);
    check_metadata(snapshot, "a", 0600, 2);
    check_file(snapshot, "dir/b", "333");
    FAILS(untorn_snapshot_open(snapshot, "b"), ENOENT, UNTORN_E_IO);
    FAILS(untorn_snapshot_open(snapshot, "dir"), EISDIR, UNTORN_E_IO);
    CHECK(untorn_snapshot_close(snapshot) == 0);

    /* The owner keeps commits for those that follow. */
    uint64_t end = order('*');
    int commits = 0;
    for (uint64_t before = names; before < end; commits++) {
        CHECK(untorn_follow_next(follow, LIMIT_MS, &commit) == 1 && !commit->missed && commit->first_lsn > before);
        before = commit->last_lsn;
        untorn_free(commit);
    }
    CHECK(commits >= 100);
    CHECK(untorn_follow_lsn(follow) == (int64_t)end && untorn_follow_close(follow) == 0);

    /* Commits whose place in the journal was reused are reported as missed. */
    order('*');
    follow = untorn_follow_open_from(reader, names);
    CHECK(follow && untorn_follow_next(follow, LIMIT_MS, &commit) == 1);
    CHECK(commit->missed == 1 && commit->first_lsn == names + 1 && commit->last_lsn > names + 50);
    CHECK(commit->changes_len == 0);
    FAILS(untorn_follow_pread(follow, commit->last_lsn, 0, &zero, 1, 0), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_follow_lsn(follow) == (int64_t)names);
    untorn_free(commit);
    CHECK(untorn_follow_close(follow) == 0);
}

static void *wait_for_a_commit(void *follow) {
    untorn_followed *followed;
    BAD_HANDLE(untorn_follow_next(follow, -1, &followed));
    return NULL;
}

static void *wait_for_a_number(void *reader) {
    BAD_HANDLE(untorn_reader_wait_for(reader, UINT64_MAX, -1));
    return NULL;
}

/* Threads that wait without a limit return when their handles are closed. */
static void closed_by_another_thread(void) {
    untorn_reader *reader = untorn_reader_open("store");
    CHECK(reader);
    untorn_follow *follow = untorn_follow_open(reader);
    CHECK(follow);
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, wait_for_a_commit, follow) == 0);
    CHECK(pthread_create(&threads[1], NULL, wait_for_a_number, reader) == 0);
    usleep(20 * 1000); /* so that most of the time they wait by then */
    CHECK(untorn_follow_close(follow) == 0 && untorn_reader_close(reader) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void set_modes(mode_t directory, mode_t file) {
    const char *files[] = {"store/a", "store/.untorn/readers", "store/.untorn/lock", "store/.untorn/journal/header"};
    for (int i = 0; i < 4; i++) CHECK(chmod(files[i], file) == 0);
    CHECK(chmod("store", directory) == 0);
}

static void after_a_kill(untorn_reader *reader) {
    order('4');
    untorn_snapshot *before = take(reader);
    CHECK(kill(owner, SIGKILL) == 0 && WIFSIGNALED(ended()));
    /* As on a file system that is mounted read-only: no user except root may write anywhere. */
    set_modes(0500, 0400);
    check_file(before, "a", "444");
    check_read(reader, "a", "444");
    untorn_reader *another = untorn_reader_open("store");
    CHECK(another);
    check_read(another, "a", "444");
    untorn_snapshot *closed = take(another);
    check_list(closed, "", "a b dir ");
    set_modes(0755, 0600);

    start();
    order('5');
    /* The next owner keeps the data of the snapshots. */
    check_file(before, "a", "444");
    check_file(closed, "a", "444");
    CHECK(untorn_snapshot_check(before) == 0 && untorn_snapshot_check(closed) == 0);
    CHECK(untorn_snapshot_refresh(before) == 0 && untorn_snapshot_refresh(closed) == 0);
    check_file(before, "a", "555");
    check_file(closed, "a", "555");
    CHECK(untorn_snapshot_close(before) == 0 && untorn_snapshot_close(closed) == 0);
    CHECK(untorn_reader_close(another) == 0);
}

/* A snapshot ends if the owner keeps nothing, and with the store. */
static void ended_snapshots(void) {
    untorn_options options = {.size = sizeof options, .readers_space = UNTORN_READERS_SPACE_NONE};
    untorn_store *store = open_store("small", &options);
    write_both(store, "one");
    CHECK(untorn_store_checkpoint(store) == 0);
    untorn_reader *reader = untorn_reader_open("small");
    CHECK(reader);
    untorn_snapshot *snapshot = take(reader);
    untorn_snapshot_file *file = untorn_snapshot_open(snapshot, "a");
    CHECK(file);
    write_both(store, "two");
    char buf[8];
    CHECK(untorn_snapshot_pread(file, buf, sizeof buf, 0) == 3 && memcmp(buf, "one", 3) == 0);
    CHECK(untorn_store_checkpoint(store) == 0);
    EXPIRED(untorn_snapshot_check(snapshot));
    EXPIRED(untorn_snapshot_open(snapshot, "a"));
    EXPIRED(untorn_snapshot_pread(file, buf, sizeof buf, 0));
    EXPIRED(untorn_snapshot_size(file));
    EXPIRED(untorn_snapshot_list(snapshot, ""));
    CHECK(strstr(untorn_error_message(), "readers_space"));
    untorn_status status = {.size = sizeof status};
    CHECK(untorn_store_status(store, &status) == 0 && status.kept_bytes == 0);
    CHECK(untorn_snapshot_refresh(snapshot) == 0);
    check_file(snapshot, "a", "two");
    CHECK(untorn_snapshot_close(snapshot) == 0 && untorn_snapshot_file_close(file) == 0);
    CHECK(untorn_store_close(store) == 0);

    /* By default the data of held commits is kept, and status tells how many bytes. */
    store = open_store("small", NULL);
    snapshot = take(reader);
    write_both(store, "ten");
    CHECK(untorn_store_checkpoint(store) == 0);
    CHECK(untorn_store_status(store, &status) == 0 && status.held == 1 && status.kept_bytes > 0);
    check_file(snapshot, "a", "two");
    CHECK(untorn_store_close(store) == 0);

    /* Nobody opens a store of class `process` to readers. */
    options = (untorn_options){.size = sizeof options, .failure_class = UNTORN_CLASS_PROCESS};
    store = open_store("small", &options);
    FAILS(untorn_snapshot_check(snapshot), ESTALE, UNTORN_E_SNAPSHOT_ENDED);
    CHECK(untorn_snapshot_close(snapshot) == 0 && untorn_reader_close(reader) == 0 && untorn_store_close(store) == 0);
}

/* Commits from a number on. */
static void following_from(const untorn_reader *reader) {
    uint64_t last = order('8');
    order('9');
    untorn_follow *follow = untorn_follow_open_from(reader, last);
    CHECK(follow && untorn_follow_lsn(follow) == (int64_t)last);
    untorn_followed *commit = next(follow, 2);
    CHECK(commit->last_lsn > last && untorn_follow_lsn(follow) == (int64_t)commit->last_lsn);
    char buf[4];
    size_t of_b = index_of(commit, UNTORN_CHANGE_WRITTEN, "b");
    CHECK(untorn_follow_pread(follow, commit->last_lsn, of_b, buf, 3, 0) == 3 && memcmp(buf, "999", 3) == 0);
    uint64_t end = commit->last_lsn;
    untorn_free(commit);
    CHECK(untorn_follow_close(follow) == 0);
    follow = untorn_follow_open_from(reader, end);
    CHECK(follow && untorn_follow_next(follow, 0, &commit) == 0 && untorn_follow_close(follow) == 0);
    FAILS(untorn_follow_open_from(reader, end + 100), EEXIST, UNTORN_E_CONFLICT);
}

static void as_another_user(void) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(setuid(12345) == 0);
        FAILS(untorn_reader_open("store"), EACCES, UNTORN_E_IO);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void refused(void) {
    /* Opening a store as its owner writes to it. */
    untorn_options read_only = {.size = sizeof read_only, .flags = UNTORN_READ_ONLY};
    FAILS(untorn_store_open("missing", &read_only), EINVAL, UNTORN_E_INVALID);
    CHECK(strstr(untorn_error_message(), "untorn_reader_open()"));
    FAILS(untorn_open("missing", UNTORN_RDONLY, 0, &read_only), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_reader_open("missing"), ENOENT, UNTORN_E_IO);
    CHECK(mkdir("empty", 0755) == 0);
    FAILS(untorn_reader_open("empty"), ENOENT, UNTORN_E_IO);
    CHECK(rmdir("empty") == 0); /* Nothing was made in it. */
    untorn_options options = {.size = sizeof options, .failure_class = UNTORN_CLASS_PROCESS};
    untorn_store *store = open_store("process", &options);
    FAILS(untorn_reader_open("process"), EBUSY, UNTORN_E_BUSY); /* It may be opening the store. */
    write_both(store, "one");
    FAILS(untorn_reader_open("process"), EOPNOTSUPP, UNTORN_E_UNSUPPORTED);
    CHECK(strstr(untorn_error_message(), "class `process`"));
    CHECK(untorn_store_close(store) == 0);
    untorn_reader *reader = untorn_reader_open("process");
    CHECK(reader && untorn_reader_close(reader) == 0);
}

static void standalone(void) {
    untorn_file *file = untorn_open("settings", UNTORN_CREATE, 0644, NULL);
    CHECK(file);
    write_text(file, "dark", 0);
    CHECK(untorn_commit(file) == 0);
    untorn_reader *reader = untorn_reader_open("settings");
    CHECK(reader);
    check_read(reader, "settings", "dark");
    untorn_snapshot *snapshot = take(reader);
    check_list(snapshot, "", "settings ");
    check_metadata(snapshot, "settings", 0644, 4);
    CHECK(untorn_snapshot_close(snapshot) == 0 && untorn_reader_close(reader) == 0 && untorn_close(file) == 0);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    umask(022);
    CHECK(chmod(".", 0755) == 0 || getuid() != 0);
    refused();
    standalone();
    ended_snapshots();
    start();
    order('0');
    untorn_reader *reader = untorn_reader_open("store");
    CHECK(reader);
    snapshots(reader);
    following_from(reader);
    bytes_of_commits(reader);
    following(reader);
    closed_by_another_thread();
    if (getuid() == 0) as_another_user();
    after_a_kill(reader);
    char close_it = '.';
    CHECK(write(orders[1], &close_it, 1) == 1 && ended() == 0);
    check_read(reader, "a", "555");
    CHECK(untorn_reader_close(reader) == 0);
    check_plain("store/a", "555");
    return 0;
}
