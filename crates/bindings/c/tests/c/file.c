/* Files: standalone ones and those of a store; reading, changing, committing, rolling back, closing. */
#include "check.h"

static void lone_file(void) {
    FAILS(untorn_open("standalone", 0, 0, NULL), ENOENT, UNTORN_E_IO);
    umask(022);
    untorn_file *file = untorn_open("standalone", UNTORN_CREATE | UNTORN_EXCL, 0666, NULL);
    CHECK(file);
    struct stat st;
    CHECK(stat("standalone", &st) == 0 && st.st_size == 0 && (st.st_mode & 07777) == 0644);
    FAILS(untorn_open("standalone", 0, 0, NULL), EBUSY, UNTORN_E_BUSY);
    write_text(file, "hello, world", 0);
    check_reads(file, "hello, world");
    CHECK(untorn_commit(file) == 0);
    CHECK(untorn_close(file) == 0);
    check_plain("standalone", "hello, world");

    FAILS(untorn_open("standalone", UNTORN_CREATE | UNTORN_EXCL, 0666, NULL), EEXIST, UNTORN_E_IO);
    file = untorn_open("standalone", UNTORN_TRUNC, 0, NULL);
    CHECK(file);
    check_reads(file, "");
    CHECK(untorn_close(file) == 0);
    check_plain("standalone", "hello, world"); /* never committed */

    file = untorn_open("standalone", UNTORN_RDONLY, 0, NULL);
    CHECK(file);
    check_reads(file, "hello, world");
    FAILS(untorn_pwrite(file, "x", 1, 0), EBADF, UNTORN_E_INVALID);
    FAILS(untorn_append(file, "x", 1), EBADF, UNTORN_E_INVALID);
    FAILS(untorn_ftruncate(file, 0), EBADF, UNTORN_E_INVALID);
    FAILS(untorn_zero(file, 0, 1), EBADF, UNTORN_E_INVALID);
    CHECK(untorn_close(file) == 0);

    /* A plain file, made by another program, is used as it is. */
    int fd = open("plain", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, "plain", 5) == 5);
    close(fd);
    file = untorn_open("plain", 0, 0, NULL);
    CHECK(file);
    check_reads(file, "plain");
    CHECK(untorn_append(file, " no more", 8) == 5);
    CHECK(untorn_commit(file) == 0 && untorn_close(file) == 0);
    check_plain("plain", "plain no more");

    CHECK(mkdir("directory", 0755) == 0);
    FAILS(untorn_open("directory", 0, 0, NULL), EINVAL, UNTORN_E_INVALID);
}

static void changes(untorn_store *store) {
    untorn_file *file = untorn_open_at(store, "changes", UNTORN_CREATE, 0644);
    CHECK(file);
    write_text(file, "0123456789", 0);
    CHECK(untorn_append(file, "abc", 3) == 10);
    check_reads(file, "0123456789abc");
    CHECK(untorn_ftruncate(file, 11) == 0);
    check_reads(file, "0123456789a");
    CHECK(untorn_commit(file) == 0);

    CHECK(untorn_zero(file, 2, 3) == 0);
    CHECK(untorn_zero(file, 10, 3) == 0);
    char buf[16];
    CHECK(untorn_pread(file, buf, sizeof buf, 0) == 13);
    CHECK(memcmp(buf, "01\0\0\0" "56789\0\0\0", 13) == 0);
    CHECK(untorn_pread(file, buf, 4, 11) == 2 && untorn_pread(file, buf, 4, 13) == 0);
    CHECK(untorn_pread(file, buf, 4, 1 << 30) == 0);
    CHECK(untorn_rollback(file) == 0);
    check_reads(file, "0123456789a");

    CHECK(untorn_ftruncate(file, 20) == 0 && untorn_size(file) == 20);
    CHECK(untorn_pread(file, buf, sizeof buf, 11) == 9 && memcmp(buf, "\0\0\0\0\0\0\0\0\0", 9) == 0);
    write_text(file, "z", 29);
    CHECK(untorn_size(file) == 30);
    CHECK(untorn_pread(file, buf, 10, 20) == 10 && memcmp(buf, "\0\0\0\0\0\0\0\0\0z", 10) == 0);
    CHECK(untorn_rollback(file) == 0);

    char *path = untorn_path(file);
    CHECK(path && strcmp(path, "changes") == 0);
    untorn_free(path);
    CHECK(untorn_close(file) == 0);
}

static void handles(untorn_store *store) {
    untorn_file *one = untorn_open_at(store, "handles", UNTORN_CREATE, 0644);
    untorn_file *two = untorn_open_at(store, "handles", 0, 0);
    CHECK(one && two && one != two);
    write_text(one, "seen by both", 0);
    check_reads(two, "seen by both");
    CHECK(untorn_close(one) == 0);
    check_reads(two, "seen by both"); /* not the last handle */
    untorn_file *three = untorn_dup(two);
    CHECK(three && untorn_close(two) == 0);
    BAD_HANDLE(untorn_size(two));
    check_reads(three, "seen by both");
    CHECK(untorn_close(three) == 0);

    one = untorn_open_at(store, "handles", 0, 0);
    CHECK(one);
    check_reads(one, ""); /* closing discarded it */
    write_text(one, "committed on close", 0);
    CHECK(untorn_set_commit_on_close(one, 1) == 0);
    CHECK(untorn_close(one) == 0);
    one = untorn_open_at(store, "handles", UNTORN_RDONLY, 0);
    CHECK(one);
    check_reads(one, "committed on close");
    two = untorn_dup(one);
    CHECK(two);
    FAILS(untorn_pwrite(two, "x", 1, 0), EBADF, UNTORN_E_INVALID);
    CHECK(untorn_close(two) == 0 && untorn_close(one) == 0);

    one = untorn_open_at(store, "handles", UNTORN_TRUNC, 0);
    CHECK(one);
    write_text(one, "undone", 0);
    CHECK(untorn_set_commit_on_close(one, 1) == 0 && untorn_set_commit_on_close(one, 0) == 0);
    CHECK(untorn_close(one) == 0);
    one = untorn_open_at(store, "handles", 0, 0);
    CHECK(one);
    check_reads(one, "committed on close");
    CHECK(untorn_close(one) == 0);
}

static void names(untorn_store *store) {
    FAILS(untorn_open_at(store, "missing", 0, 0), ENOENT, UNTORN_E_IO);
    untorn_file *file = untorn_open_at(store, "new", UNTORN_CREATE | UNTORN_EXCL, 0640);
    CHECK(file && untorn_close(file) == 0);
    struct stat st;
    CHECK(stat("store/new", &st) == 0 && (st.st_mode & 07777) == 0640);
    FAILS(untorn_open_at(store, "new", UNTORN_CREATE | UNTORN_EXCL, 0640), EEXIST, UNTORN_E_IO);
    CHECK(!untorn_open_at(store, "../outside", UNTORN_CREATE, 0644));
    CHECK(access("outside", F_OK) != 0);
    CHECK(!untorn_open_at(store, "/etc/passwd", 0, 0));
    CHECK(!untorn_open_at(store, ".untorn/lock", 0, 0));
    CHECK(symlink("/etc/passwd", "store/link") == 0);
    CHECK(!untorn_open_at(store, "link", 0, 0));
    CHECK(mkdir("store/sub", 0755) == 0);
    FAILS(untorn_open_at(store, "sub", 0, 0), EINVAL, UNTORN_E_INVALID);
    file = untorn_open_at(store, "sub/file", UNTORN_CREATE, 0644);
    CHECK(file && untorn_close(file) == 0);
}

static void limits(untorn_store *store) {
    untorn_file *file = untorn_open_at(store, "limits", UNTORN_CREATE, 0644);
    CHECK(file);
    char byte = 'x';
    const uint64_t max = INT64_MAX;
    FAILS(untorn_pwrite(file, &byte, 1, max), EFBIG, UNTORN_E_INVALID);
    FAILS(untorn_pwrite(file, &byte, 1, max + 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_pwrite(file, &byte, 1, UINT64_MAX), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_pwrite(file, &byte, SIZE_MAX, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_pwrite(file, NULL, 1, 0), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_pwrite(file, NULL, 0, 0) == 0);
    FAILS(untorn_append(file, &byte, SIZE_MAX), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_append(file, NULL, 1), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_append(file, NULL, 0) == 0);
    FAILS(untorn_pread(file, &byte, (size_t)SSIZE_MAX + 1, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_pread(file, &byte, 1, max + 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_pread(file, NULL, 1, 0), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_pread(file, &byte, 1, max) == 0 && untorn_pread(file, NULL, 0, 0) == 0);
    FAILS(untorn_ftruncate(file, max + 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_zero(file, 1, max), EFBIG, UNTORN_E_INVALID);
    FAILS(untorn_zero(file, 0, UINT64_MAX), EFBIG, UNTORN_E_INVALID);
    FAILS(untorn_zero(file, UINT64_MAX, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_open_at(store, "limits", 1u << 30, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_open_at(store, "limits", UNTORN_EXCL, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_open_at(store, "limits", UNTORN_RDONLY | UNTORN_TRUNC, 0), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_open_at(store, "limits", UNTORN_CREATE, 010000), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_open_at(store, NULL, 0, 0), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_open_at(store, "", 0, 0), ENOENT, UNTORN_E_INVALID);
    CHECK(untorn_size(file) == 0);
    CHECK(untorn_close(file) == 0);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    lone_file();
    untorn_store *store = open_store("store", NULL);
    changes(store);
    handles(store);
    names(store);
    limits(store);
    CHECK(untorn_store_close(store) == 0);
    check_plain("store/changes", "0123456789a");
    check_plain("store/handles", "committed on close");
    return 0;
}
