/* Forked and killed processes: the calls that a child may make, and the data that survives. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>

/* Runs a function in a forked child and returns the child's wait status. */
static int in_child(void (*f)(void *), void *argument) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        f(argument);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

struct parents {
    untorn_store *store;
    untorn_file *file;
    untorn_txn *txn;
    untorn_ticket *ticket;
    untorn_map *map;
    untorn_reader *reader;
    untorn_snapshot *snapshot;
    untorn_snapshot_file *snapshot_file;
    untorn_follow *follow;
};

#define FORKED(call) FAILS(call, ECHILD, UNTORN_E_FORKED)

static void use_parents_handles(void *argument) {
    struct parents *p = argument;
    char byte = 'x';
    FORKED(untorn_store_checkpoint(p->store));
    FORKED(untorn_open_at(p->store, "f", 0, 0));
    FORKED(untorn_pread(p->file, &byte, 1, 0));
    FORKED(untorn_pwrite(p->file, &byte, 1, 0));
    FORKED(untorn_commit(p->file));
    FORKED(untorn_syncv(&p->file, 1));
    FORKED(untorn_txn_add(p->txn, p->file));
    FORKED(untorn_txn_commit(p->txn));
    FORKED(untorn_ticket_wait(p->ticket));
    FORKED(untorn_ticket_free(p->ticket));
    FORKED(untorn_map_msync(p->map));
    FORKED(untorn_map_len(p->map));
    FORKED(untorn_map_close(p->map));
    FORKED(untorn_close(p->file));
    FORKED(untorn_store_close(p->store));
    FORKED(untorn_reader_read(p->reader, "f", NULL));
    FORKED(untorn_reader_close(p->reader));
    FORKED(untorn_snapshot_refresh(p->snapshot));
    FORKED(untorn_snapshot_pread(p->snapshot_file, &byte, 1, 0));
    untorn_followed *followed;
    FORKED(untorn_follow_next(p->follow, -1, &followed));
    FORKED(untorn_follow_pread(p->follow, 1, 0, &byte, 1, 0));
    BAD_HANDLE(untorn_size(NULL));
    /* The child may read the parent's store by handles of its own. */
    untorn_reader *reader = untorn_reader_open("store");
    CHECK(reader);
    char *text = untorn_reader_read(reader, "f", NULL);
    CHECK(text && strcmp(text, "the parent's") == 0 && untorn_reader_close(reader) == 0);
    untorn_free(text);
    /* The parent still owns its store; the child may open another store. */
    FAILS(untorn_store_open("store", NULL), EBUSY, UNTORN_E_BUSY);
    untorn_store *own = open_store("childs", NULL);
    untorn_file *file = untorn_open_at(own, "f", UNTORN_CREATE, 0644);
    CHECK(file);
    write_text(file, "the child's", 0);
    CHECK(untorn_commit(file) == 0 && untorn_close(file) == 0 && untorn_store_close(own) == 0);
}

static void forked_children(void) {
    struct parents p;
    p.store = open_store("store", NULL);
    p.file = untorn_open_at(p.store, "f", UNTORN_CREATE, 0644);
    CHECK(p.file);
    write_text(p.file, "the parent's", 0);
    p.ticket = untorn_commit_async(p.file);
    p.txn = untorn_txn_begin(p.store);
    p.map = untorn_map_open(p.file, NULL);
    CHECK(p.ticket && p.txn && p.map && untorn_ticket_wait(p.ticket) == 0);
    p.reader = untorn_reader_open("store");
    CHECK(p.reader);
    p.snapshot = untorn_snapshot_take(p.reader);
    CHECK(p.snapshot);
    p.snapshot_file = untorn_snapshot_open(p.snapshot, "f");
    p.follow = untorn_follow_open(p.reader);
    CHECK(p.snapshot_file && p.follow);
    CHECK(in_child(use_parents_handles, &p) == 0);
    check_plain("childs/f", "the child's");

    /* The child has not disturbed the parent. */
    CHECK(untorn_ticket_wait(p.ticket) == 0 && untorn_ticket_free(p.ticket) == 0);
    CHECK(untorn_txn_abort(p.txn) == 0);
    CHECK(untorn_snapshot_size(p.snapshot_file) == 12 && untorn_snapshot_file_close(p.snapshot_file) == 0);
    CHECK(untorn_snapshot_close(p.snapshot) == 0 && untorn_follow_close(p.follow) == 0);
    CHECK(untorn_reader_close(p.reader) == 0);
    check_reads(p.file, "the parent's");
    memcpy((char *)untorn_map_address(p.map) + 4, "PARENT", 6);
    CHECK(untorn_map_msync(p.map) == 0 && untorn_map_close(p.map) == 0);
    write_text(p.file, "THE", 0);
    CHECK(untorn_commit(p.file) == 0 && untorn_close(p.file) == 0 && untorn_store_close(p.store) == 0);
    check_plain("store/f", "THE PARENT's");
}

static void commit_and_die(void *argument) {
    const untorn_options *options = argument;
    untorn_store *store = open_store("killed", options);
    untorn_file *a = untorn_open_at(store, "a", UNTORN_CREATE, 0644);
    untorn_file *b = untorn_open_at(store, "b", UNTORN_CREATE, 0644);
    CHECK(a && b);
    write_text(a, "one", 0);
    write_text(b, "two", 0);
    untorn_file *both[2] = {a, b};
    CHECK(untorn_syncv(both, 2) == 0);
    write_text(a, "lost", 0);
    raise(SIGKILL);
}

static void progress(uint64_t bytes_done, uint64_t bytes_all, void *context) {
    CHECK(bytes_done <= bytes_all);
    *(uint64_t *)context += 1;
}

static void killed_owners(void) {
    for (uint32_t class = UNTORN_CLASS_POWER; class <= UNTORN_CLASS_PROCESS; class++) {
        uint64_t calls = 0;
        untorn_options options = {
            .size = sizeof options, .failure_class = class, .progress = progress, .progress_context = &calls};
        int status = in_child(commit_and_die, &options);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        untorn_store *store = open_store("killed", &options);
        untorn_file *a = untorn_open_at(store, "a", UNTORN_RDONLY, 0);
        untorn_file *b = untorn_open_at(store, "b", UNTORN_RDONLY, 0);
        CHECK(a && b);
        check_reads(a, "one");
        check_reads(b, "two");
        untorn_status s = {.size = sizeof s};
        CHECK(untorn_store_status(store, &s) == 0 && s.recovered_commits >= 1 && s.failed == 0);
        CHECK(untorn_close(a) == 0 && untorn_close(b) == 0 && untorn_store_close(store) == 0);
        check_plain("killed/a", "one");
        check_plain("killed/b", "two");
    }
}

static int ready[2], enough[2];

static void hold_store(void) {
    char byte;
    close(enough[1]); /* so that the child notices a failed parent */
    untorn_store *store = open_store("held", NULL);
    CHECK(write(ready[1], "r", 1) == 1);
    CHECK(read(enough[0], &byte, 1) == 1);
    usleep(100 * 1000); /* so that most of the time the parent has to wait */
    CHECK(untorn_store_close(store) == 0);
}

static void waiting_for_an_owner(void) {
    CHECK(pipe(ready) == 0 && pipe(enough) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        hold_store();
        _exit(0);
    }
    char byte, pid_text[16];
    CHECK(read(ready[0], &byte, 1) == 1);
    snprintf(pid_text, sizeof pid_text, "%d", (int)pid);
    FAILS(untorn_store_open("held", NULL), EBUSY, UNTORN_E_BUSY);
    CHECK(strstr(untorn_error_message(), pid_text));
    CHECK(write(enough[1], "e", 1) == 1);
    untorn_options options = {.size = sizeof options, .flags = UNTORN_WAIT};
    untorn_store *store = open_store("held", &options);
    CHECK(untorn_store_close(store) == 0);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    forked_children();
    killed_owners();
    waiting_for_an_owner();
    return 0;
}
