/*
 * Untorn for programs that use open, mmap and msync. Include this header FIRST in a source file, in C or C++:
 * calls of the functions below become calls of Untorn's functions. Nothing else in the file changes. To
 * change no source file at all, pass `-include untorn_posix.h` to the compiler.
 *
 * A file is managed from its first mmap with MAP_SHARED and PROT_WRITE (or from its opening, if the file
 * already has a store beside it, `<path>.untorn`) until the last of its descriptors and maps is gone. While a
 * file is managed:
 *
 *   - stores and writes reach the file at msync(MS_SYNC), fsync or fdatasync on any descriptor or map of the
 *     file: all changes of the file at once, all or nothing, also after a crash;
 *   - changes that were not synced are lost when the process ends, or when the last descriptor and map are
 *     gone;
 *   - another process that opens the file by these functions gets EBUSY.
 *
 * Calls on other files, sockets, pipes, private and anonymous maps go to the C library unchanged.
 * docs/PORTING.md lists the differences from POSIX. Failures set errno; untorn_error_message() of untorn.h
 * has a message.
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
#pragma redefine_extname close untorn_fd_close
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
#pragma redefine_extname flock untorn_fd_flock
#pragma redefine_extname mmap untorn_mmap
#pragma redefine_extname mmap64 untorn_mmap
#pragma redefine_extname msync untorn_msync
#pragma redefine_extname munmap untorn_munmap
#pragma redefine_extname mremap untorn_mremap
#pragma redefine_extname madvise untorn_madvise
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct iovec;
struct stat;

/* Replacements of the POSIX calls of the same name. Calls on files that are not managed go to the C library.
 * Types are spelled out (`long` is off_t and ssize_t), because a header that comes first must include no
 * other header. */
int untorn_fd_open(const char *path, int flags, unsigned mode);
int untorn_fd_close(int fd);
long untorn_fd_read(int fd, void *buf, unsigned long len);
long untorn_fd_write(int fd, const void *buf, unsigned long len);
long untorn_fd_pread(int fd, void *buf, unsigned long len, long offset);
long untorn_fd_pwrite(int fd, const void *buf, unsigned long len, long offset);
long untorn_fd_readv(int fd, const struct iovec *vector, int count);
long untorn_fd_writev(int fd, const struct iovec *vector, int count);
long untorn_fd_preadv(int fd, const struct iovec *vector, int count, long offset);
long untorn_fd_pwritev(int fd, const struct iovec *vector, int count, long offset);
long untorn_fd_lseek(int fd, long offset, int whence);
int untorn_fd_fstat(int fd, struct stat *stat);
int untorn_fd_ftruncate(int fd, long size);
int untorn_fd_fallocate(int fd, int mode, long offset, long len);
int untorn_fd_posix_fallocate(int fd, long offset, long len);
int untorn_fd_fsync(int fd);
int untorn_fd_fdatasync(int fd);
int untorn_fd_flock(int fd, int operation);
void *untorn_mmap(void *address, unsigned long len, int prot, int flags, int fd, long offset);
int untorn_msync(void *address, unsigned long len, int flags);
int untorn_munmap(void *address, unsigned long len);
void *untorn_mremap(void *address, unsigned long old_len, unsigned long new_len, int flags, void *to);
int untorn_madvise(void *address, unsigned long len, int advice);

/* What POSIX has no call for. On descriptors of files that are not managed: -1 with EINVAL. */

/* Manages a regular file, open for reading and writing, from now on: for programs that map the file later or
 * never. Returns 0, or -1 with an errno as mmap. */
int untorn_fd_manage(int fd);
/* Discards all uncommitted changes of the file, also in memory: the file is as of its last sync. Returns 0, or
 * -1. */
int untorn_fd_rollback(int fd);
/* Sets what happens to uncommitted changes when the last descriptor and map are gone: they are committed (`on`
 * not 0), or discarded (0, the default). Call it after the file has become managed, each time. Returns 0, or
 * -1. */
int untorn_fd_commit_on_close(int fd, int on);
/* Reclaims memory: drops pages that were stored to and synced. NO THREAD may store to the file's maps during the
 * call. Returns 0, or -1. */
int untorn_fd_reclaim(int fd);
/* Tells whether a descriptor is of a managed file. Returns 1: it is; 0: it is not; -1: EBADF. */
int untorn_fd_is_managed(int fd);

#ifdef __cplusplus
}
#endif

#endif
