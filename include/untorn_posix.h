/*
 * Untorn for programs that use open, mmap and msync. Include this header FIRST in a source file, in C or C++:
 * calls of the functions below become calls of Untorn's functions. Nothing else in the file changes. To
 * change no source file at all, pass `-include untorn_posix.h` to the compiler.
 *
 * The program names the files that are to be managed, by their names or paths:
 *
 *     untorn_manage("*.db");         before they are opened; or the environment: UNTORN_MANAGE="*.db:/data/x/index"
 *     open(path, O_RDWR | O_ATOMIC)                            this file, for this opening
 *     mmap(..., MAP_SHARED | MAP_ATOMIC, fd, 0)                  this file, from its map on
 *
 * A named regular file is managed from its opening for writing until the last of its descriptors and maps is
 * gone. While a file is managed:
 *
 *   - stores and writes reach the file at msync(MS_SYNC), fsync or fdatasync on any descriptor or map of the
 *     file: all changes of the file at once, all or nothing, also after a crash;
 *   - changes that were not synced are lost when the process ends, or when the last descriptor and map are
 *     gone;
 *   - rename commits the file, which then has the new name, whole; unlink removes it;
 *   - another process that opens the file by these functions gets EBUSY;
 *   - calls that would bypass this fail, with a message on standard error (not with UNTORN_LOG=off).
 *
 * A file on a mount of `untorn mount` is left to the mount, which commits it at each sync: maps and most other
 * calls are the kernel's there, and other programs see changes that are not committed yet.
 *
 * Calls on other files, sockets, pipes, private and anonymous maps go to the C library unchanged, and are as
 * safe in signal handlers as before. docs/PORTING.md lists the differences from POSIX. Failures set errno;
 * untorn_error_message() of untorn.h has a message.
 */

#ifndef UNTORN_POSIX_H
#define UNTORN_POSIX_H

#if !defined(__LP64__)
#error "untorn_posix.h: 64-bit systems only"
#endif
#if !defined(UNTORN_POSIX_NO_RENAMING) && !defined(__PRAGMA_REDEFINE_EXTNAME)
#error "untorn_posix.h: this compiler cannot rename functions; define UNTORN_POSIX_NO_RENAMING and call them by name"
#endif

#ifndef UNTORN_POSIX_NO_RENAMING
/* Each of these two macros makes system headers rename these functions themselves, which would override the
 * pragmas below. _FILE_OFFSET_BITS has no meaning on 64-bit systems. A later definition of one of the macros
 * gets a compiler warning. */
#if defined(__USE_FILE_OFFSET64) || (defined(__USE_FORTIFY_LEVEL) && __USE_FORTIFY_LEVEL > 0)
#error "untorn_posix.h must be included before any system header"
#endif
#undef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 0
#undef _FORTIFY_SOURCE
#define _FORTIFY_SOURCE 0

#pragma redefine_extname open untorn_fd_open
#pragma redefine_extname open64 untorn_fd_open
#pragma redefine_extname openat untorn_fd_openat
#pragma redefine_extname openat64 untorn_fd_openat
#pragma redefine_extname creat untorn_fd_creat
#pragma redefine_extname creat64 untorn_fd_creat
#pragma redefine_extname mkstemp untorn_fd_mkstemp
#pragma redefine_extname mkstemp64 untorn_fd_mkstemp
#pragma redefine_extname mkostemp untorn_fd_mkostemp
#pragma redefine_extname mkostemp64 untorn_fd_mkostemp
#pragma redefine_extname mkstemps untorn_fd_mkstemps
#pragma redefine_extname mkstemps64 untorn_fd_mkstemps
#pragma redefine_extname mkostemps untorn_fd_mkostemps
#pragma redefine_extname mkostemps64 untorn_fd_mkostemps
#pragma redefine_extname close untorn_fd_close
#pragma redefine_extname dup untorn_fd_dup
#pragma redefine_extname dup2 untorn_fd_dup2
#pragma redefine_extname dup3 untorn_fd_dup3
#pragma redefine_extname fcntl untorn_fd_fcntl
#pragma redefine_extname fcntl64 untorn_fd_fcntl
#pragma redefine_extname lockf untorn_fd_lockf
#pragma redefine_extname lockf64 untorn_fd_lockf
#pragma redefine_extname close_range untorn_fd_close_range
#pragma redefine_extname closefrom untorn_fd_closefrom
#pragma redefine_extname read untorn_fd_read
#pragma redefine_extname write untorn_fd_write
#pragma redefine_extname pread untorn_fd_pread
#pragma redefine_extname pread64 untorn_fd_pread
#pragma redefine_extname pwrite untorn_fd_pwrite
#pragma redefine_extname pwrite64 untorn_fd_pwrite
#pragma redefine_extname readv untorn_fd_readv
#pragma redefine_extname writev untorn_fd_writev
#pragma redefine_extname preadv untorn_fd_preadv
#pragma redefine_extname preadv64 untorn_fd_preadv
#pragma redefine_extname pwritev untorn_fd_pwritev
#pragma redefine_extname pwritev64 untorn_fd_pwritev
#pragma redefine_extname preadv2 untorn_fd_preadv2
#pragma redefine_extname preadv64v2 untorn_fd_preadv2
#pragma redefine_extname pwritev2 untorn_fd_pwritev2
#pragma redefine_extname pwritev64v2 untorn_fd_pwritev2
#pragma redefine_extname lseek untorn_fd_lseek
#pragma redefine_extname lseek64 untorn_fd_lseek
#pragma redefine_extname fstat untorn_fd_fstat
#pragma redefine_extname fstat64 untorn_fd_fstat
#pragma redefine_extname ftruncate untorn_fd_ftruncate
#pragma redefine_extname ftruncate64 untorn_fd_ftruncate
#pragma redefine_extname fallocate untorn_fd_fallocate
#pragma redefine_extname fallocate64 untorn_fd_fallocate
#pragma redefine_extname posix_fallocate untorn_fd_posix_fallocate
#pragma redefine_extname posix_fallocate64 untorn_fd_posix_fallocate
#pragma redefine_extname fsync untorn_fd_fsync
#pragma redefine_extname fdatasync untorn_fd_fdatasync
#pragma redefine_extname sync_file_range untorn_fd_sync_file_range
#pragma redefine_extname flock untorn_fd_flock
#pragma redefine_extname sendfile untorn_fd_sendfile
#pragma redefine_extname sendfile64 untorn_fd_sendfile
#pragma redefine_extname copy_file_range untorn_fd_copy_file_range
#pragma redefine_extname splice untorn_fd_splice
#pragma redefine_extname futimens untorn_fd_futimens
#pragma redefine_extname futimes untorn_fd_futimes
#pragma redefine_extname ioctl untorn_fd_ioctl
#pragma redefine_extname posix_spawn_file_actions_adddup2 untorn_fd_adddup2
#pragma redefine_extname rename untorn_path_rename
#pragma redefine_extname renameat untorn_path_renameat
#pragma redefine_extname renameat2 untorn_path_renameat2
#pragma redefine_extname unlink untorn_path_unlink
#pragma redefine_extname unlinkat untorn_path_unlinkat
#pragma redefine_extname remove untorn_path_remove
#pragma redefine_extname rmdir untorn_path_rmdir
#pragma redefine_extname link untorn_path_link
#pragma redefine_extname linkat untorn_path_linkat
#pragma redefine_extname truncate untorn_path_truncate
#pragma redefine_extname truncate64 untorn_path_truncate
#pragma redefine_extname stat untorn_path_stat
#pragma redefine_extname stat64 untorn_path_stat
#pragma redefine_extname lstat untorn_path_lstat
#pragma redefine_extname lstat64 untorn_path_lstat
#pragma redefine_extname fstatat untorn_path_fstatat
#pragma redefine_extname fstatat64 untorn_path_fstatat
#pragma redefine_extname statx untorn_path_statx
#pragma redefine_extname utimensat untorn_path_utimensat
#pragma redefine_extname utimes untorn_path_utimes
#pragma redefine_extname utime untorn_path_utime
#pragma redefine_extname fopen untorn_stream_fopen
#pragma redefine_extname fopen64 untorn_stream_fopen
#pragma redefine_extname fdopen untorn_stream_fdopen
#pragma redefine_extname freopen untorn_stream_freopen
#pragma redefine_extname freopen64 untorn_stream_freopen
#pragma redefine_extname fileno untorn_stream_fileno
#pragma redefine_extname fileno_unlocked untorn_stream_fileno
#pragma redefine_extname system untorn_shell_system
#pragma redefine_extname popen untorn_shell_popen
#pragma redefine_extname aio_read untorn_aio_read
#pragma redefine_extname aio_read64 untorn_aio_read
#pragma redefine_extname aio_write untorn_aio_write
#pragma redefine_extname aio_write64 untorn_aio_write
#pragma redefine_extname aio_fsync untorn_aio_fsync
#pragma redefine_extname aio_fsync64 untorn_aio_fsync
#pragma redefine_extname mmap untorn_mmap
#pragma redefine_extname mmap64 untorn_mmap
#pragma redefine_extname msync untorn_msync
#pragma redefine_extname munmap untorn_munmap
#pragma redefine_extname mremap untorn_mremap
#pragma redefine_extname madvise untorn_madvise

/* Calls that cannot be checked at run time. A program that makes them does not link, unless it says that they
 * are not for managed files. */
#ifndef UNTORN_POSIX_ALLOW_UNCHECKED
#pragma redefine_extname open_by_handle_at untorn_posix_cannot_check_open_by_handle_at
#pragma redefine_extname remap_file_pages untorn_posix_cannot_check_remap_file_pages
#pragma redefine_extname lio_listio untorn_posix_cannot_check_lio_listio
#pragma redefine_extname lio_listio64 untorn_posix_cannot_check_lio_listio64
#pragma redefine_extname io_setup untorn_posix_cannot_check_io_setup
#pragma redefine_extname io_uring_queue_init untorn_posix_cannot_check_io_uring_queue_init
#pragma redefine_extname io_uring_queue_init_params untorn_posix_cannot_check_io_uring_queue_init_params
#endif
#endif

/* Flags by which a program names a file where it opens or maps it. No kernel has flags of these values, and Untorn
 * passes them on to none. Where Untorn is not there they mean nothing; but a kernel refuses MAP_ATOMIC together with
 * MAP_SHARED_VALIDATE (EOPNOTSUPP). */
#if defined(O_ATOMIC) || defined(MAP_ATOMIC)
#error "untorn_posix.h: O_ATOMIC and MAP_ATOMIC are defined here: remove the program's own definitions"
#endif
#define O_ATOMIC 01000000000
#define MAP_ATOMIC 0x2000000

#ifdef __cplusplus
extern "C" {
#endif

struct aiocb;
struct iovec;
struct stat;
struct statx;
struct timespec;
struct timeval;
struct utimbuf;

/* Replacements of the POSIX calls of the same name. Calls on files that are not managed go to the C library.
 * Types are spelled out (`long` is off_t and ssize_t), because a header that comes first must include no
 * other header. */
int untorn_fd_open(const char *path, int flags, unsigned mode);
int untorn_fd_openat(int dir, const char *path, int flags, unsigned mode);
int untorn_fd_creat(const char *path, unsigned mode);
int untorn_fd_mkstemp(char *pattern);
int untorn_fd_mkostemp(char *pattern, int flags);
int untorn_fd_mkstemps(char *pattern, int suffix);
int untorn_fd_mkostemps(char *pattern, int suffix, int flags);
int untorn_fd_close(int fd);
int untorn_fd_dup(int fd);
int untorn_fd_dup2(int fd, int to);
int untorn_fd_dup3(int fd, int to, int flags);
int untorn_fd_fcntl(int fd, int command, void *argument);
int untorn_fd_lockf(int fd, int operation, long len);
int untorn_fd_close_range(unsigned first, unsigned last, int flags);
void untorn_fd_closefrom(int first);
long untorn_fd_read(int fd, void *buf, unsigned long len);
long untorn_fd_write(int fd, const void *buf, unsigned long len);
long untorn_fd_pread(int fd, void *buf, unsigned long len, long offset);
long untorn_fd_pwrite(int fd, const void *buf, unsigned long len, long offset);
long untorn_fd_readv(int fd, const struct iovec *vector, int count);
long untorn_fd_writev(int fd, const struct iovec *vector, int count);
long untorn_fd_preadv(int fd, const struct iovec *vector, int count, long offset);
long untorn_fd_pwritev(int fd, const struct iovec *vector, int count, long offset);
long untorn_fd_preadv2(int fd, const struct iovec *vector, int count, long offset, int flags);
long untorn_fd_pwritev2(int fd, const struct iovec *vector, int count, long offset, int flags);
long untorn_fd_lseek(int fd, long offset, int whence);
int untorn_fd_fstat(int fd, struct stat *stat);
int untorn_fd_ftruncate(int fd, long size);
int untorn_fd_fallocate(int fd, int mode, long offset, long len);
int untorn_fd_posix_fallocate(int fd, long offset, long len);
int untorn_fd_fsync(int fd);
int untorn_fd_fdatasync(int fd);
int untorn_fd_sync_file_range(int fd, long offset, long len, unsigned flags);
int untorn_fd_flock(int fd, int operation);
long untorn_fd_sendfile(int to, int from, long *offset, unsigned long len);
long untorn_fd_copy_file_range(int from, long *from_offset, int to, long *to_offset, unsigned long len, unsigned flags);
long untorn_fd_splice(int from, long *from_offset, int to, long *to_offset, unsigned long len, unsigned flags);
int untorn_fd_futimens(int fd, const struct timespec *times);
int untorn_fd_futimes(int fd, const struct timeval *times);
int untorn_fd_ioctl(int fd, unsigned long request, void *argument);
/* `void` is posix_spawn_file_actions_t. */
int untorn_fd_adddup2(void *actions, int fd, int to);
int untorn_path_rename(const char *from, const char *to);
int untorn_path_renameat(int from_dir, const char *from, int to_dir, const char *to);
int untorn_path_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int untorn_path_unlink(const char *path);
int untorn_path_unlinkat(int dir, const char *path, int flags);
int untorn_path_remove(const char *path);
int untorn_path_rmdir(const char *path);
int untorn_path_link(const char *from, const char *to);
int untorn_path_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int untorn_path_truncate(const char *path, long size);
int untorn_path_stat(const char *path, struct stat *stat);
int untorn_path_lstat(const char *path, struct stat *stat);
int untorn_path_fstatat(int dir, const char *path, struct stat *stat, int flags);
int untorn_path_statx(int dir, const char *path, int flags, unsigned mask, struct statx *statx);
int untorn_path_utimensat(int dir, const char *path, const struct timespec *times, int flags);
int untorn_path_utimes(const char *path, const struct timeval *times);
int untorn_path_utime(const char *path, const struct utimbuf *times);
/* `void` is FILE. */
void *untorn_stream_fopen(const char *path, const char *mode);
void *untorn_stream_fdopen(int fd, const char *mode);
void *untorn_stream_freopen(const char *path, const char *mode, void *stream);
int untorn_stream_fileno(void *stream);
int untorn_shell_system(const char *command);
void *untorn_shell_popen(const char *command, const char *mode);
int untorn_aio_read(struct aiocb *control);
int untorn_aio_write(struct aiocb *control);
int untorn_aio_fsync(int operation, struct aiocb *control);
void *untorn_mmap(void *address, unsigned long len, int prot, int flags, int fd, long offset);
int untorn_msync(void *address, unsigned long len, int flags);
int untorn_munmap(void *address, unsigned long len);
void *untorn_mremap(void *address, unsigned long old_len, unsigned long new_len, int flags, void *to);
int untorn_madvise(void *address, unsigned long len, int advice);

/* Functions without a counterpart in POSIX. On descriptors of files that are not managed: -1 with EINVAL. */

/* Names files that are to be managed, from their opening for writing on. A pattern without a slash is matched against
 * the file's name ("*.db"), any other against the whole path; patterns are as for fnmatch(). UNTORN_MANAGE in the
 * environment has more, separated by colons. Returns 0, or -1. */
int untorn_manage(const char *pattern);
/* Manages a regular file, open for reading and writing, from now on: for programs that map the file later or
 * never. Returns 0, or -1 with an errno as mmap. */
int untorn_fd_manage(int fd);
/* Discards all uncommitted changes of the file, also in memory: the file is as of its last sync. Returns 0, or
 * -1. */
int untorn_fd_rollback(int fd);
/* Sets whether uncommitted changes are committed (`on` not 0) when the last descriptor for writing and the last map are
 * gone, or discarded (0, the default) with the last descriptor and map. Call it after the file has become managed, each
 * time. With UNTORN_COMMIT=close (or UNTORN_COMMIT_ON_CLOSE=1) in the environment, 1 is the default. Returns 0, or -1.
 * With UNTORN_COMMIT=write, each call that changes a managed file is a commit. */
int untorn_fd_commit_on_close(int fd, int on);
/* Sets, for all files, whether msync(MS_INVALIDATE) without MS_SYNC and MS_ASYNC discards all uncommitted changes of the
 * whole file, as untorn_fd_rollback() (`on` not 0), or does nothing (0, the default). With UNTORN_INVALIDATE=rollback
 * in the environment, 1 is the default. Returns 0. */
int untorn_invalidate_rolls_back(int on);
/* Reclaims memory: drops pages that were stored to and synced. NO THREAD may store to the file's maps during the
 * call. Returns 0, or -1. */
int untorn_fd_reclaim(int fd);
/* Names a directory whose managed files belong to one store, so that they can be committed together: before they are
 * opened. UNTORN_STORE in the environment has more, separated by colons. Returns 0, or -1. */
int untorn_manage_store(const char *dir);
/* Commits all changes of several files of one store, or of one mount, as one: after any crash all of them are there, or
 * none. Returns 0, or -1: EINVAL (`n` is 0, a file is not managed, or they belong to several stores or mounts; on a mount
 * there are more than 511), EBUSY (one is in a transaction), and the errors of fsync(). */
int untorn_fd_syncv(const int *fds, unsigned long n);
/* Begins a transaction over the files of `n` descriptors, managed files of one store or one mount; `n` may be 0. All their
 * uncommitted changes, earlier and later ones, by descriptors and maps, belong to it, and so do names in that store that
 * this thread creates, renames or unlinks until the transaction ends: they change on the disk when it commits. (On a mount
 * such a call fails with EOPNOTSUPP.) Only the transaction commits them: fsync() of one of the files is EBUSY. The end of
 * the process aborts it. Returns its number, greater than 0, or -1: EINVAL, EBUSY (a file is in a transaction), ECHILD. */
int untorn_fd_txn_begin(const int *fds, unsigned long n);
/* Adds the file of a descriptor. Returns 0, or -1: EBADF (no such transaction), and as untorn_fd_txn_begin(). */
int untorn_fd_txn_add(int txn, int fd);
/* Commits and ends a transaction: after any crash all of it is there, or nothing. Returns 0, or -1: EBADF (no such
 * transaction), EEXIST, ENOENT (names have changed), and the errors of fsync(). A failure aborts the transaction, unless
 * the outcome is unknown (UNTORN_E_SYNC_UNKNOWN). On a mount, after ENOSPC and EDQUOT it goes on: make room and commit
 * again, without writing in between, or abort. */
int untorn_fd_txn_commit(int txn);
/* Aborts a transaction: its files are as of their last commits, also in memory, and no name has changed. Returns 0, or
 * -1 with EBADF. */
int untorn_fd_txn_abort(int txn);
/* Returns whether a descriptor is of a managed file. 1: it is; 0: it is not; -1: EBADF. */
int untorn_fd_is_managed(int fd);

#ifdef __cplusplus
}
#endif

#endif
