/* Several files, and names, as one commit; commits that no thread waits for. */
#include "check.h"

static untorn_file *create(untorn_store *store, const char *path) {
    untorn_file *file = untorn_open_at(store, path, UNTORN_CREATE, 0644);
    CHECK(file);
    return file;
}

static void tickets(untorn_store *store) {
    untorn_file *file = create(store, "tickets");
    write_text(file, "first", 0);
    untorn_ticket *first = untorn_commit_async(file);
    CHECK(first);
    write_text(file, "again", 0);
    untorn_ticket *second = untorn_commit_async(file);
    CHECK(second && second != first);
    CHECK(untorn_ticket_wait(second) == 0);
    CHECK(untorn_ticket_poll(first) == 1 && untorn_ticket_poll(second) == 1); /* in order */
    CHECK(untorn_ticket_wait(first) == 0 && untorn_ticket_wait(first) == 0);
    CHECK(untorn_ticket_free(first) == 0 && untorn_ticket_free(second) == 0);
    BAD_HANDLE(untorn_ticket_wait(first));
    BAD_HANDLE(untorn_ticket_poll(first));
    BAD_HANDLE(untorn_ticket_free(first));

    /* Ticket freed, file closed: the commit still happens. */
    write_text(file, "third", 0);
    untorn_ticket *third = untorn_commit_async(file);
    CHECK(third && untorn_ticket_free(third) == 0);
    CHECK(untorn_close(file) == 0);
    file = create(store, "tickets");
    check_reads(file, "third");
    CHECK(untorn_close(file) == 0);
}

/* Output leaves when the commit that it reports is durable, in order, and not after a commit that failed. */
static void gate(untorn_store *store) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    untorn_gate *gate = untorn_gate_open(0);
    CHECK(gate);
    untorn_output *output = untorn_gate_output(gate, ends[1]);
    CHECK(output && close(ends[1]) == 0);
    untorn_file *file = create(store, "gate");
    for (int i = 0; i < 5; i++) {
        write_text(file, "some", 0);
        untorn_ticket *ticket = untorn_commit_async(file);
        CHECK(ticket && untorn_output_write(output, "told", 4, ticket) == 0);
        CHECK(untorn_ticket_free(ticket) == 0);
        CHECK(untorn_output_write(output, "\n", 1, NULL) == 0);
    }
    CHECK(untorn_gate_drain(gate) == 0);
    FAILS(untorn_output_write(output, NULL, 1, NULL), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_output_write(output, NULL, 0, NULL) == 0);
    CHECK(!untorn_gate_output(gate, -1) && errno == EINVAL);
    CHECK(!untorn_gate_output(gate, 12345) && errno == EBADF);
    CHECK(untorn_output_close(output) == 0 && untorn_gate_free(gate) == 0);
    BAD_HANDLE(untorn_output_write(output, "x", 1, NULL));
    BAD_HANDLE(untorn_output_close(output));
    BAD_HANDLE(untorn_gate_drain(gate));
    BAD_HANDLE(untorn_gate_free(gate));
    char said[100] = {0};
    ssize_t got = 0;
    for (ssize_t n; (n = read(ends[0], said + got, sizeof said - 1 - (size_t)got)) > 0;) got += n;
    CHECK(strcmp(said, "told\ntold\ntold\ntold\ntold\n") == 0);
    CHECK(close(ends[0]) == 0 && untorn_close(file) == 0);
}

static void syncv(untorn_store *store) {
    untorn_file *files[3] = {create(store, "s0"), create(store, "s1"), create(store, "s2")};
    for (int i = 0; i < 3; i++) write_text(files[i], "one", 0);
    CHECK(untorn_syncv(files, 2) == 0);
    for (int i = 0; i < 3; i++) CHECK(untorn_rollback(files[i]) == 0);
    check_reads(files[0], "one");
    check_reads(files[1], "one");
    check_reads(files[2], "");

    untorn_file *twice[3] = {files[2], files[2], files[0]};
    write_text(files[2], "two", 0);
    CHECK(untorn_syncv(twice, 3) == 0);
    write_text(files[1], "two", 0);
    untorn_ticket *ticket = untorn_syncv_async(files, 3);
    CHECK(ticket && untorn_ticket_wait(ticket) == 0 && untorn_ticket_free(ticket) == 0);
    CHECK(untorn_rollback(files[1]) == 0);
    check_reads(files[1], "two");

    FAILS(untorn_syncv(NULL, 1), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_syncv(files, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_syncv(files, SIZE_MAX), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_syncv_async(files, 0), EINVAL, UNTORN_E_INVALID);
    untorn_file *with_null[2] = {files[0], NULL};
    BAD_HANDLE(untorn_syncv(with_null, 2));
    untorn_file *standalone = untorn_open("standalone", UNTORN_CREATE, 0644, NULL);
    CHECK(standalone);
    untorn_file *of_two_stores[2] = {files[0], standalone};
    FAILS(untorn_syncv(of_two_stores, 2), EINVAL, UNTORN_E_INVALID);
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(txn);
    FAILS(untorn_txn_add(txn, standalone), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_txn_abort(txn) == 0);
    CHECK(untorn_close(standalone) == 0);
    for (int i = 0; i < 3; i++) CHECK(untorn_close(files[i]) == 0);
}

static void files_in_a_transaction(untorn_store *store) {
    untorn_file *a = create(store, "a"), *b = create(store, "b");
    write_text(a, "before", 0);
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(txn && untorn_txn_add(txn, a) == 0 && untorn_txn_add(txn, b) == 0);
    write_text(b, "during", 0);
    FAILS(untorn_commit(a), EBUSY, UNTORN_E_IN_TRANSACTION);
    FAILS(untorn_rollback(a), EBUSY, UNTORN_E_IN_TRANSACTION);
    FAILS(untorn_syncv(&b, 1), EBUSY, UNTORN_E_IN_TRANSACTION);
    untorn_txn *other = untorn_txn_begin(store);
    CHECK(other);
    FAILS(untorn_txn_add(other, a), EBUSY, UNTORN_E_IN_TRANSACTION);
    CHECK(untorn_txn_abort(other) == 0);
    CHECK(untorn_txn_commit(txn) == 0);
    BAD_HANDLE(untorn_txn_add(txn, a));
    BAD_HANDLE(untorn_txn_commit(txn));
    BAD_HANDLE(untorn_txn_abort(txn));
    CHECK(untorn_rollback(a) == 0 && untorn_rollback(b) == 0);
    check_reads(a, "before");
    check_reads(b, "during");

    txn = untorn_txn_begin(store);
    CHECK(txn && untorn_txn_add(txn, a) == 0);
    write_text(a, "never!", 0);
    CHECK(untorn_txn_abort(txn) == 0);
    check_reads(a, "before");
    CHECK(untorn_close(a) == 0 && untorn_close(b) == 0);
}

static void names(untorn_store *store) {
    untorn_file *old = create(store, "old");
    write_text(old, "old", 0);
    CHECK(untorn_commit(old) == 0 && untorn_close(old) == 0);
    CHECK(untorn_close(create(store, "gone")) == 0);

    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(txn && untorn_txn_mkdir(txn, "dir", 0755) == 0);
    untorn_file *file = untorn_txn_create(txn, "dir/made", 0600);
    CHECK(file);
    write_text(file, "made", 0);
    CHECK(untorn_txn_rename(txn, "old", "new") == 0);
    CHECK(untorn_txn_unlink(txn, "gone") == 0);
    CHECK(untorn_txn_chmod(txn, "new", 0604) == 0);
    CHECK(access("store/dir", F_OK) != 0 && access("store/old", F_OK) == 0 && access("store/gone", F_OK) == 0);
    CHECK(untorn_txn_commit(txn) == 0);

    struct stat st;
    CHECK(stat("store/dir/made", &st) == 0 && (st.st_mode & 07777) == 0600);
    CHECK(stat("store/new", &st) == 0 && (st.st_mode & 07777) == 0604);
    CHECK(access("store/old", F_OK) != 0 && access("store/gone", F_OK) != 0);
    check_reads(file, "made");
    write_text(file, "more", 4);
    CHECK(untorn_commit(file) == 0 && untorn_close(file) == 0);

    txn = untorn_txn_begin(store);
    CHECK(txn && untorn_txn_unlink(txn, "dir/made") == 0 && untorn_txn_rmdir(txn, "dir") == 0);
    untorn_ticket *ticket = untorn_txn_commit_async(txn);
    CHECK(ticket && untorn_ticket_wait(ticket) == 0 && untorn_ticket_free(ticket) == 0);
    CHECK(access("store/dir", F_OK) != 0);

    txn = untorn_txn_begin(store);
    CHECK(txn);
    untorn_file *never = untorn_txn_create(txn, "never", 0644);
    CHECK(never && untorn_txn_mkdir(txn, "never either", 0755) == 0);
    CHECK(untorn_txn_abort(txn) == 0);
    untorn_close(never);
    CHECK(access("store/never", F_OK) != 0 && access("store/never either", F_OK) != 0);
}

static void bad_arguments(untorn_store *store) {
    untorn_txn *txn = untorn_txn_begin(store);
    CHECK(txn);
    FAILS(untorn_txn_create(txn, NULL, 0644), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_create(txn, "x", 0200000), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_txn_rename(txn, "x", NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_rename(txn, NULL, "x"), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_unlink(txn, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_unlink(txn, ""), ENOENT, UNTORN_E_INVALID);
    FAILS(untorn_txn_mkdir(txn, NULL, 0755), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_mkdir(txn, "x", UINT32_MAX), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_txn_rmdir(txn, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_chmod(txn, NULL, 0644), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_txn_chmod(txn, "x", 010000), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_txn_abort(txn) == 0);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    untorn_store *store = open_store("store", NULL);
    tickets(store);
    gate(store);
    syncv(store);
    files_in_a_transaction(store);
    names(store);
    bad_arguments(store);
    CHECK(untorn_store_close(store) == 0);
    check_plain("store/a", "before");
    check_plain("store/new", "old");
    check_plain("store/tickets", "third");
    return 0;
}
