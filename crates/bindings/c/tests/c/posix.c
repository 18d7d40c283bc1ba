/* An ordinary program, written for open, mmap and msync, that becomes failure-atomic by one include. The
 * program is killed at random moments; afterwards the file is compared with an oracle. */
#include <untorn_posix.h>

#include "check.h"
#include <signal.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

static size_t page;

static int open_file(const char *path, int flags) {
    int fd = open(path, flags, 0644);
    CHECK(fd >= 0);
    return fd;
}

static char *map_file(int fd, size_t len) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static off_t size_of(int fd) {
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    return st.st_size;
}

/* Reads a file as a program without Untorn does. */
static void check_on_disk(const char *path, const char *expected, off_t size) {
    char command[128];
    snprintf(command, sizeof command, "test \"$(head -c %zu %s)\" = '%s' && test $(stat -c %%s %s) = %ld",
             strlen(expected), path, expected, path, (long)size);
    CHECK(system(command) == 0);
}

static void one_view(void) {
    int fd = open_file("view", O_RDWR | O_CREAT);
    CHECK(write(fd, "plain", 5) == 5 && untorn_fd_is_managed(fd) == 0);
    check_on_disk("view", "plain", 5);
    CHECK(untorn_manage("view") == 0); /* named after it was opened: managed from its first map on */
    char *at = map_file(fd, 8 * page); /* longer than the file */
    CHECK(untorn_fd_is_managed(fd) == 1 && memcmp(at, "plain", 5) == 0);
    CHECK(ftruncate(fd, (off_t)(2 * page)) == 0 && size_of(fd) == (off_t)(2 * page));
    strcpy(at + page, "stored");
    char buf[16];
    CHECK(pread(fd, buf, 6, (off_t)page) == 6 && memcmp(buf, "stored", 6) == 0);
    CHECK(pwrite(fd, "WR", 2, (off_t)page) == 2 && memcmp(at + page, "WRored", 6) == 0);
    check_on_disk("view", "plain", 5);
    CHECK(msync(at, page, MS_SYNC) == 0);
    strcpy(at, "undone");
    CHECK(msync(at, page, MS_INVALIDATE) == 0 && strcmp(at, "undone") == 0); /* rolls nothing back */
    CHECK(untorn_fd_rollback(fd) == 0 && memcmp(at, "plain", 6) == 0);

    /* Offsets, appending, other descriptors: as with the kernel's calls. */
    int dupped = dup(fd), reader = open_file("view", O_RDONLY), appender = open_file("view", O_WRONLY | O_APPEND);
    CHECK(untorn_fd_is_managed(dupped) == 1 && untorn_fd_is_managed(reader) == 1);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(dupped, buf, 3) == 3 && memcmp(buf, "pla", 3) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 3 && lseek(fd, -4, SEEK_END) == (off_t)(2 * page - 4));
    CHECK(write(fd, "123456", 6) == 6 && size_of(reader) == (off_t)(2 * page + 2));
    CHECK(write(appender, "end", 3) == 3 && pwrite(appender, "!", 1, 0) == 1 && size_of(fd) == (off_t)(2 * page + 6));
    CHECK(pread(reader, buf, 16, (off_t)(2 * page)) == 6 && memcmp(buf, "56end!", 6) == 0);
    FAILS_WITH(write(reader, "x", 1), EBADF);
    FAILS_WITH(pwrite(reader, "x", 1, 0), EBADF);
    FAILS_WITH(ftruncate(reader, 0), EBADF);
    FAILS_WITH(read(appender, buf, 1), EBADF);
    FAILS_WITH(pread(fd, buf, 1, -1), EINVAL);
    FAILS_WITH(pwrite(fd, buf, 1, -1), EINVAL);
    FAILS_WITH(pwrite(fd, buf, 1, INT64_MAX), EFBIG);
    FAILS_WITH(ftruncate(fd, -1), EINVAL);
    FAILS_WITH(lseek(fd, -1, SEEK_SET), EINVAL);
    struct iovec parts[] = {{buf, 2}, {buf + 8, 2}}, words[] = {{"ab", 2}, {"cd", 2}};
    CHECK(pwritev(fd, words, 2, 0) == 4 && preadv(fd, parts, 2, 0) == 4);
    CHECK(memcmp(buf, "ab", 2) == 0 && memcmp(buf + 8, "cd", 2) == 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && writev(fd, words, 2) == 4 && readv(dupped, parts, 2) == 4);
    CHECK(lseek(fd, 0, SEEK_CUR) == 8 && memcmp(buf, at + 4, 2) == 0);
    CHECK(lseek(fd, 5, SEEK_DATA) == 5 && lseek(fd, 0, SEEK_HOLE) == size_of(fd));
    FAILS_WITH(lseek(fd, size_of(fd), SEEK_DATA), ENXIO);

    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)page) == 0 && at[0] == 0);
    CHECK(posix_fallocate(fd, 0, (off_t)(4 * page)) == 0 && size_of(fd) == (off_t)(4 * page));
    CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)(5 * page)) == 0 && size_of(fd) == (off_t)(4 * page));
    CHECK(posix_fallocate(fd, -1, 1) == EINVAL && posix_fallocate(reader, 0, 1) == EBADF);
    FAILS_WITH(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, (off_t)page), EOPNOTSUPP);
    CHECK(flock(fd, LOCK_EX) == 0); /* the process already owns the file */

    /* Committed through one descriptor, closed through the others; the maps are unmapped last. */
    strcpy(at, "final");
    CHECK(fdatasync(reader) == 0 && close(dupped) == 0 && close(reader) == 0 && close(appender) == 0);
    strcpy(at, "never");
    CHECK(close(fd) == 0 && strcmp(at, "never") == 0);
    CHECK(munmap(at, 8 * page) == 0);
    check_on_disk("view", "final", (off_t)(4 * page));
}

/* Several maps of a file: split, grown, and unmapped one after the other. */
static void maps(void) {
    CHECK(untorn_manage("[lm]aps") == 0);
    int fd = open_file("maps", O_RDWR | O_CREAT | O_TRUNC);
    CHECK(ftruncate(fd, (off_t)(8 * page)) == 0);
    char *one = map_file(fd, 4 * page), *two = map_file(fd, 8 * page);
    char *tail = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, (off_t)(6 * page));
    CHECK(one == two && tail == two + 6 * page);
    strcpy(tail, "seen");
    CHECK(munmap(one, 4 * page) == 0 && munmap(two + page, page) == 0);
    CHECK(mremap(two + 2 * page, 6 * page, 2 * page, 0) == two + 2 * page);
    FAILS_WITH(mremap(two + 2 * page, 5 * page, 6 * page, 0), EFAULT);
    CHECK(mremap(two + 2 * page, 2 * page, 3 * page, MREMAP_MAYMOVE) == two + 2 * page);
    FAILS_WITH(mremap(two + 2 * page, 3 * page, (size_t)1 << 60, MREMAP_MAYMOVE), ENOMEM);
    FAILS_WITH(mremap(two + 2 * page, 3 * page, page, MREMAP_MAYMOVE | MREMAP_FIXED, one), EINVAL);
    CHECK(msync(two + 4 * page, page, MS_ASYNC) == 0);
    FAILS_WITH(msync(two, page, MS_SYNC | MS_ASYNC), EINVAL);
    strcpy(two, "rest");
    CHECK(madvise(two, page, MADV_DONTNEED) == 0 && strcmp(two, "rest") == 0);
    CHECK(fsync(fd) == 0 && untorn_fd_reclaim(fd) == 0 && strcmp(two, "rest") == 0);
    CHECK(munmap(two, 8 * page) == 0);
    CHECK(munmap(tail, page) == 0);
    CHECK(munmap(tail, page) == 0); /* already unmapped, which is no error */
    CHECK(close(fd) == 0);
    check_on_disk("maps", "rest", (off_t)(8 * page));
}

/* Managed before it is mapped, and never mapped. */
static void files_alone(void) {
    int fd = open_file("alone", O_RDWR | O_CREAT);
    CHECK(untorn_fd_manage(fd) == 0 && untorn_fd_manage(fd) == 0 && untorn_fd_is_managed(fd) == 1);
    CHECK(write(fd, "kept", 4) == 4 && fsync(fd) == 0 && write(fd, "lost", 4) == 4);
    CHECK(untorn_fd_rollback(fd) == 0 && size_of(fd) == 4);
    CHECK(write(fd, "lost", 4) == 4 && size_of(fd) == 12 && close(fd) == 0);
    check_on_disk("alone", "kept", 4);
    int ends[2];
    CHECK(pipe(ends) == 0);
    FAILS_WITH(untorn_fd_manage(ends[0]), EINVAL);
    FAILS_WITH(untorn_fd_manage(-1), EBADF);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    fd = open_file("view", O_RDONLY);
    FAILS_WITH(untorn_fd_manage(fd), EBADF);
    CHECK(close(fd) == 0);
}

static void refused(void) {
    int fd = open_file("refused", O_RDWR | O_CREAT), reader = open_file("refused", O_RDONLY);
    const int rw = PROT_READ | PROT_WRITE;
    CHECK(untorn_manage("refused") == 0);
    FAILS_WITH(untorn_manage(""), EINVAL);
    FAILS_WITH(untorn_manage(NULL), EFAULT);
    FAILS_WITH(mmap(NULL, page, rw, MAP_SHARED, reader, 0), EACCES);
    FAILS_WITH(mmap(NULL, 0, rw, MAP_SHARED, fd, 0), EINVAL);
    FAILS_WITH(mmap(NULL, page, rw, MAP_SHARED, fd, 1), EINVAL);
    FAILS_WITH(mmap(NULL, SIZE_MAX, rw, MAP_SHARED, fd, 0), EINVAL);
    FAILS_WITH(mmap((void *)page, page, rw, MAP_SHARED | MAP_FIXED, fd, 0), ENOTSUP);
    FAILS_WITH(mmap(NULL, page, rw, MAP_SHARED, -1, 0), EBADF);
    FAILS_WITH(untorn_fd_rollback(fd), EINVAL);
    FAILS_WITH(untorn_fd_reclaim(fd), EINVAL);
    FAILS_WITH(untorn_fd_is_managed(-1), EBADF);
    CHECK(untorn_fd_is_managed(fd) == 0); /* a refused map manages nothing */
    CHECK(flock(fd, LOCK_EX) == 0); /* replaced by Untorn's lock when the file is managed */
    char *at = map_file(fd, page);
    FAILS_WITH(mmap(at, page, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), ENOTSUP);
    FAILS_WITH(mmap(NULL, page, rw, MAP_SHARED, reader, 0), EACCES);
    /* Another process cannot open the file in the meantime. */
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char byte;
        FAILS_WITH(pread(fd, &byte, 1, 0), ECHILD);
        FAILS_WITH(open("refused", O_RDWR), EBUSY);
        CHECK(close(fd) == 0 && munmap(at, page) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(munmap(at, page) == 0 && close(fd) == 0 && close(reader) == 0);
}

/* The last writer commits, also while readers go on; a child that is no writer commits nothing. */
static void readers_go_on(void) {
    int fd = open_file("closed", O_RDWR | O_CREAT | O_ATOMIC), reader = open_file("closed", O_RDONLY);
    CHECK(untorn_fd_commit_on_close(fd, 1) == 0 && ftruncate(fd, (off_t)page) == 0);
    char *at = map_file(fd, page);
    strcpy(at, "one");
    CHECK(close(fd) == 0 && untorn_fd_rollback(reader) == 0 && size_of(reader) == 0); /* there is a map */
    fd = open_file("closed", O_RDWR);
    CHECK(ftruncate(fd, (off_t)page) == 0);
    strcpy(at, "two");
    CHECK(close(fd) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(munmap(at, page) == 0 && close(reader) == 0 ? 0 : 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(munmap(at, page) == 0 && untorn_fd_rollback(reader) == 0 && size_of(reader) == (off_t)page);
    CHECK(close(reader) == 0);
    check_on_disk("closed", "two", (off_t)page);
}

/* Files that no pattern names. */
static void named_by_flags(void) {
    int fd = open_file("flagged", O_RDWR | O_CREAT | O_ATOMIC);
    CHECK(untorn_fd_is_managed(fd) == 1 && (fcntl(fd, F_GETFL) & O_ATOMIC) == 0);
    CHECK(write(fd, "one", 3) == 3 && fsync(fd) == 0 && write(fd, "lost", 4) == 4 && close(fd) == 0);
    check_on_disk("flagged", "one", 3);
    fd = open_file("flagged", O_WRONLY | O_TRUNC | O_ATOMIC);
    CHECK(untorn_fd_is_managed(fd) == 1 && close(fd) == 0);
    check_on_disk("flagged", "one", 3);
    int reader = open_file("flagged", O_RDONLY | O_ATOMIC);
    CHECK(untorn_fd_is_managed(reader) == 0 && close(reader) == 0);
    CHECK(access("plain-flags.untorn", F_OK) != 0 && close(open_file("plain-flags", O_RDWR | O_CREAT)) == 0);
    CHECK(access("plain-flags.untorn", F_OK) != 0);
    char pattern[] = "flagged-XXXXXX";
    fd = mkostemp(pattern, O_ATOMIC | O_CLOEXEC);
    CHECK(fd >= 0 && untorn_fd_is_managed(fd) == 1 && fcntl(fd, F_GETFD) == FD_CLOEXEC && close(fd) == 0);
    FAILS_WITH(open(".", O_RDONLY | O_ATOMIC), EINVAL);
    FAILS_WITH(open("/dev/null", O_RDWR | O_ATOMIC), EINVAL);
    FAILS_WITH(open(".", O_RDWR | O_TMPFILE | O_ATOMIC, 0600), EINVAL);
    FAILS_WITH(open("missing-flags", O_RDWR | O_ATOMIC), ENOENT);

    fd = open_file("mapped-flags", O_RDWR | O_CREAT);
    CHECK(ftruncate(fd, (off_t)page) == 0 && untorn_fd_is_managed(fd) == 0);
    const int rw = PROT_READ | PROT_WRITE;
    char *plain = mmap(NULL, page, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_ATOMIC, -1, 0);
    char *copy = mmap(NULL, page, rw, MAP_PRIVATE | MAP_ATOMIC, fd, 0);
    CHECK(plain != MAP_FAILED && copy != MAP_FAILED && untorn_fd_is_managed(fd) == 0);
    CHECK(munmap(plain, page) == 0 && munmap(copy, page) == 0);
    char *at = mmap(NULL, page, rw, MAP_SHARED_VALIDATE | MAP_ATOMIC, fd, 0);
    CHECK(at != MAP_FAILED && untorn_fd_is_managed(fd) == 1);
    strcpy(at, "one");
    CHECK(msync(at, page, MS_SYNC) == 0);
    strcpy(at, "two");
    CHECK(munmap(at, page) == 0 && close(fd) == 0);
    check_on_disk("mapped-flags", "one", (off_t)page);
    /* For reading at first. */
    fd = open_file("later-flags", O_RDWR | O_CREAT);
    CHECK(write(fd, "one", 3) == 3);
    at = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_ATOMIC, fd, 0);
    CHECK(at != MAP_FAILED && untorn_fd_is_managed(fd) == 1 && memcmp(at, "one", 3) == 0);
    CHECK(munmap(at, page) == 0 && close(fd) == 0);
    int zero = open_file("/dev/zero", O_RDWR);
    FAILS_WITH(mmap(NULL, page, rw, MAP_SHARED | MAP_ATOMIC, zero, 0), EINVAL);
    CHECK(close(zero) == 0);
}

/* msync(MS_INVALIDATE) as the paper on failure-atomic msync has it. */
static void invalidates(void) {
    int fd = open_file("invalidated", O_RDWR | O_CREAT | O_ATOMIC);
    CHECK(ftruncate(fd, (off_t)(2 * page)) == 0);
    char *at = map_file(fd, 2 * page);
    strcpy(at, "one");
    CHECK(msync(at, page, MS_SYNC | MS_INVALIDATE) == 0);
    CHECK(untorn_invalidate_rolls_back(1) == 0);
    strcpy(at, "two");
    strcpy(at + page, "two");
    CHECK(pwrite(fd, "x", 1, 100) == 1 && ftruncate(fd, (off_t)(4 * page)) == 0);
    CHECK(msync(at, page, MS_INVALIDATE) == 0); /* of the whole file */
    CHECK(strcmp(at, "one") == 0 && at[page] == 0 && at[100] == 0 && size_of(fd) == (off_t)(2 * page));
    strcpy(at, "six");
    CHECK(msync(at, page, MS_SYNC | MS_INVALIDATE) == 0 && strcmp(at, "six") == 0); /* a sync leaves nothing to discard */
    CHECK(untorn_fd_rollback(fd) == 0 && strcmp(at, "six") == 0);
    FAILS_WITH(msync(at, page, MS_SYNC | MS_ASYNC | MS_INVALIDATE), EINVAL);
    strcpy(at, "ten");
    CHECK(untorn_invalidate_rolls_back(0) == 0 && msync(at, page, MS_INVALIDATE) == 0 && strcmp(at, "ten") == 0);
    CHECK(munmap(at, 2 * page) == 0 && close(fd) == 0);
    check_on_disk("invalidated", "six", (off_t)(2 * page));
}

static char first_byte(int fd) {
    char byte;
    CHECK(pread(fd, &byte, 1, 0) == 1);
    return byte;
}

/* Opened for reading only while another process has the file open: one commit, also when the owner goes on. */
static void beside_an_owner(void) {
    CHECK(untorn_manage("owned") == 0);
    int owned = open_file("owned", O_RDWR | O_CREAT), go[2], done[2];
    CHECK(write(owned, "1111", 4) == 4 && fsync(owned) == 0 && close(owned) == 0 && pipe(go) == 0 && pipe(done) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int fd = open_file("owned", O_RDWR);
        const char *texts[] = {"2222", "33333333", "4"};
        for (int i = 0; i < 3; i++) {
            char byte = 0;
            CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, texts[i], strlen(texts[i]), 0) > 0 && fsync(fd) == 0);
            CHECK(pwrite(fd, "never synced", 12, 0) == 12 && untorn_fd_rollback(fd) == 0);
            CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        }
        CHECK(close(fd) == 0);
        _exit(0);
    }
    char byte, buf[16];
    CHECK(read(done[0], &byte, 1) == 1);
    int fd = open_file("owned", O_RDONLY | O_CLOEXEC);
    FILE *stream = fopen("owned", "r");
    CHECK(stream && fcntl(fd, F_GETFD) == FD_CLOEXEC && size_of(fd) == 4);
    char *map = mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED && memcmp(map, "2222", 4) == 0);
    FAILS_WITH(open("owned", O_RDWR), EBUSY);
    CHECK(write(go[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1);

    /* The owner has committed something longer. */
    CHECK(size_of(fd) == 4 && first_byte(fd) == '2' && lseek(fd, 0, SEEK_END) == 4 && lseek(fd, 1, SEEK_SET) == 1);
    CHECK(read(fd, buf, sizeof buf) == 3 && memcmp(buf, "222", 3) == 0 && memcmp(map, "2222", 4) == 0);
    CHECK(fread(buf, 1, sizeof buf, stream) == 4 && memcmp(buf, "2222", 4) == 0 && fclose(stream) == 0);
    FAILS_WITH(write(fd, "x", 1), EBADF);
    FAILS_WITH(ftruncate(fd, 0), EINVAL); /* as Linux: not open for writing */
    FAILS_WITH(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EACCES);
    int copy = dup(fd), again = open_file("owned", O_RDONLY);
    CHECK(copy >= 0 && size_of(again) == 8 && first_byte(again) == '3' && close(fd) == 0 && first_byte(copy) == '2');
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(first_byte(copy) == '2' && first_byte(again) == '3' && map[0] == '2');
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 2; i++) CHECK(write(go[1], &byte, 1) == 1);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);

    /* The owner has applied everything, and closed the file. */
    CHECK(first_byte(copy) == '2' && first_byte(again) == '3' && map[0] == '2');
    CHECK(close(copy) == 0 && close(again) == 0 && munmap(map, page) == 0);
    fd = open_file("owned", O_RDONLY);
    CHECK(size_of(fd) == 1 && first_byte(fd) == '4' && close(fd) == 0);
    for (int i = 0; i < 2; i++) CHECK(close(go[i]) == 0 && close(done[i]) == 0);
}

/* A named file in the store of a directory that another process has open. */
static void in_a_store(void) {
    int go[2], done[2];
    char byte = 0;
    CHECK(untorn_manage("in-a-store") == 0 && pipe(go) == 0 && pipe(done) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        untorn_store *store = open_store("store", NULL);
        untorn_file *file = untorn_open_at(store, "in-a-store", UNTORN_CREATE, 0644);
        CHECK(file && untorn_pwrite(file, "5555", 4, 0) == 4 && untorn_commit(file) == 0);
        CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        CHECK(untorn_close(file) == 0 && untorn_store_close(store) == 0);
        _exit(0);
    }
    CHECK(read(done[0], &byte, 1) == 1);
    int fd = open_file("store/in-a-store", O_RDONLY);
    CHECK(size_of(fd) == 4 && first_byte(fd) == '5'); /* no checkpoint has written it yet */
    CHECK(close(fd) == 0 && write(go[1], &byte, 1) == 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    fd = open_file("store/in-a-store", O_RDONLY);
    CHECK(first_byte(fd) == '5' && close(fd) == 0);
    for (int i = 0; i < 2; i++) CHECK(close(go[i]) == 0 && close(done[i]) == 0);
}

/* Calls on files that are not managed go to the C library. */
static void everything_else(void) {
    int fd = open_file("view", O_RDWR); /* has a store, and is managed at once */
    CHECK(untorn_fd_is_managed(fd) == 1);
    int ends[2];
    char buf[8];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(write(ends[0], "hello", 5) == 5 && read(ends[1], buf, 8) == 5 && memcmp(buf, "hello", 5) == 0);
    FAILS_WITH(lseek(ends[0], 0, SEEK_SET), ESPIPE);
    FAILS_WITH(fsync(ends[0]), EINVAL);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    FAILS_WITH(close(ends[0]), EBADF);
    FAILS_WITH(read(-1, buf, 1), EBADF);
    FAILS_WITH(open("missing/file", O_RDWR), ENOENT);
    char *plain = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(plain != MAP_FAILED && madvise(plain, page, MADV_DONTNEED) == 0 && munmap(plain, page) == 0);
    char *copy = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(copy != MAP_FAILED);
    copy[0] = 'X';
    CHECK(pread(fd, buf, 1, 0) == 1 && buf[0] == 'f' && munmap(copy, page) == 0);

    /* With commit on close, the last close commits; truncation by open is a change like any other. */
    CHECK(pwrite(fd, "F", 1, 0) == 1 && untorn_fd_commit_on_close(fd, 1) == 0 && close(fd) == 0);
    check_on_disk("view", "Final", (off_t)(4 * page));
    fd = open_file("view", O_RDWR | O_TRUNC);
    CHECK(size_of(fd) == 0 && close(fd) == 0);
    check_on_disk("view", "Final", (off_t)(4 * page));
}

/* Counts: each step fills the file with its number, syncs, and reports the number to the parent. */
struct told {
    uint64_t begun, done;
};

#define WORDS 4096
static volatile struct told *told;

static void count(unsigned char way) {
    int fd = open_file("counter", O_RDWR | O_CREAT);
    size_t len = WORDS * sizeof(uint64_t);
    if (size_of(fd) == 0) CHECK(ftruncate(fd, (off_t)len) == 0);
    uint64_t *words = (uint64_t *)map_file(fd, 2 * len);
    for (uint64_t n = told->done + 1;; n++) {
        told->begun = n;
        for (size_t i = 0; i < WORDS; i += 3) words[i] = n;
        if (n % 4 == 0) CHECK(msync(words, len, MS_ASYNC) == 0);
        for (size_t i = 0; i < WORDS; i++) words[i] = n;
        if (way == 1) CHECK(pwrite(fd, &n, sizeof n, (off_t)(len - sizeof n)) == (ssize_t)sizeof n);
        if (way == 2) CHECK(ftruncate(fd, (off_t)(len + n % 5 * page)) == 0);
        CHECK((way ? fsync(fd) : msync(words, len, MS_SYNC)) == 0);
        told->done = n;
    }
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void killed_at_random(int rounds) {
    const char *given = getenv("UNTORN_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : 0x5eed, state = seed | 1, torn = 0;
    printf("UNTORN_TEST_SEED=%#llx, %d kills\n", (unsigned long long)seed, rounds);
    CHECK(untorn_manage("./counter") == 0);
    told = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
    /* More rounds, and longer ones, only until something was done: on a busy machine. */
    for (int round = 0; round < rounds || told->done == 0; round++) {
        CHECK(round < rounds + 1000);
        unsigned char way = (unsigned char)(next(&state) % 3);
        uint64_t delay_us = next(&state) % 12000 * (uint64_t)(1 + round / rounds);
        fflush(NULL);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            count(way);
            _exit(1);
        }
        usleep((useconds_t)delay_us);
        CHECK(kill(pid, SIGKILL) == 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        int fd = open_file("counter", O_RDWR | O_CREAT);
        uint64_t words[WORDS] = {0};
        ssize_t got = pread(fd, words, sizeof words, 0);
        CHECK(got == (ssize_t)sizeof words || (got == 0 && told->done == 0));
        /* The last step that was reported, or the next one; MS_ASYNC may have committed
         * the beginning of a step, every third word. */
        uint64_t last = words[WORDS - 1], mixed = 0;
        for (size_t i = 0; i < WORDS; i++) {
            CHECK(words[i] >= told->done && words[i] <= told->begun);
            mixed += words[i] != last;
        }
        if (mixed) {
            torn++;
            CHECK(told->begun % 4 == 0 && told->begun == told->done + 1);
            for (size_t i = 0; i < WORDS; i++) CHECK(words[i] == (i % 3 ? told->done : told->begun));
        }
        if (way == 2 && !mixed && got) CHECK((size_of(fd) - (off_t)sizeof words) % (off_t)page == 0);
        CHECK(close(fd) == 0);
    }
    printf("%llu steps, %llu kills between an asynchronous commit and the next\n", (unsigned long long)told->done,
           (unsigned long long)torn);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(page <= 16384);
    one_view();
    maps();
    files_alone();
    refused();
    named_by_flags();
    invalidates();
    readers_go_on();
    beside_an_owner();
    in_a_store();
    everything_else();
    killed_at_random(getenv("UNDER_VALGRIND") ? 3 : getenv("BRIEF") ? 20 : 120);
    return 0;
}
