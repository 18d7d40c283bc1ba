/* direct_sync HOW FILE: writes to a file by a direct write that is to be durable, in different ways, and ends. */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LEN (4 << 20)

static void fail(const char *what) {
    perror(what);
    exit(errno == ENOSYS || errno == EPERM ? 77 : 1);
}

static long by_aio(int fd, char *bytes, int flags) {
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 8, &context))
        fail("io_setup");
    struct iocb write = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_buf = (uintptr_t)bytes,
                         .aio_nbytes = LEN, .aio_rw_flags = flags};
    struct iocb *list = &write;
    struct io_event event;
    if (syscall(SYS_io_submit, context, 1, &list) != 1)
        fail("io_submit");
    if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1)
        fail("io_getevents");
    return event.res;
}

static long by_uring(int fd, char *bytes, int flags) {
    struct io_uring_params of;
    memset(&of, 0, sizeof of);
    int ring = syscall(SYS_io_uring_setup, 8, &of);
    if (ring < 0)
        fail("io_uring_setup");
    int access = PROT_READ | PROT_WRITE;
    char *asked = mmap(NULL, of.sq_off.array + of.sq_entries * 4, access, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *done = mmap(NULL, of.cq_off.cqes + of.cq_entries * sizeof(struct io_uring_cqe), access, MAP_SHARED, ring,
                      IORING_OFF_CQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, of.sq_entries * sizeof *entry, access, MAP_SHARED, ring, IORING_OFF_SQES);
    if (asked == MAP_FAILED || done == MAP_FAILED || entry == MAP_FAILED)
        fail("mmap");
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_WRITE;
    entry->fd = fd;
    entry->addr = (uintptr_t)bytes;
    entry->len = LEN;
    entry->rw_flags = flags;
    *(unsigned *)(asked + of.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(asked + of.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        fail("io_uring_enter");
    return ((struct io_uring_cqe *)(done + of.cq_off.cqes))->res;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    const char *how = argv[1];
    int opened = strstr(how, "o_dsync") ? O_DSYNC : strstr(how, "o_sync") ? O_SYNC : 0;
    int flags = strstr(how, "rwf_dsync") ? RWF_DSYNC : strstr(how, "rwf_sync") ? RWF_SYNC : 0;
    int fd = open(argv[2], O_RDWR | O_DIRECT | opened);
    if (fd < 0)
        fail("open");
    char *bytes;
    if (posix_memalign((void **)&bytes, 4096, LEN))
        fail("memory");
    memset(bytes, 'N', LEN);
    struct iovec part = {bytes, LEN};
    long done = strstr(how, "aio")     ? by_aio(fd, bytes, flags)
                : strstr(how, "uring") ? by_uring(fd, bytes, flags)
                                       : pwritev2(fd, &part, 1, 0, flags);
    if (done != LEN) {
        fprintf(stderr, "%s: %ld\n", how, done);
        return 1;
    }
    /* Nothing but the write has asked for a commit by now. */
    printf("acknowledged\n");
    fflush(stdout);
    char line[8];
    return read(0, line, sizeof line) < 0;
}
