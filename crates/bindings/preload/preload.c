/*
 * `libuntorn-preload.so`: the functions of `untorn_posix.h` under the names of the C library, for programs that are
 * not compiled anew. `link.sh` makes `names.h`, which has a line NAME(open, untorn_fd_open) for each of them.
 *
 * Each function jumps to its counterpart in libuntorn, with all registers as they are. The linker turns libuntorn's
 * own calls of `open` into calls of `__wrap_open` (its option `--wrap`), which jumps to the C library's function. Its
 * address comes from the C library's own table of symbols, so that neither this library nor any other that is preloaded
 * beside it can come between.
 *
 * The calls that start programs are in `children.c`.
 */

#define _GNU_SOURCE
#include "preload.h"
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

/* A function of the C library, as the assembler below lays it out. */
struct slot {
    void *function;
    const char *name;
};

extern struct slot __start_untorn_slots[], __stop_untorn_slots[];

/* Stands for a function that this C library does not have. */
static long missing(void) {
    errno = ENOSYS;
    return -1;
}

/* The parts of a library's dynamic section that a search needs. */
struct symbols {
    const ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *hash;
    const uint16_t *versions;
};

/* The C library as the dynamic linker has loaded it. Nothing is allocated: this may run within `malloc`. */
static struct symbols symbols_of_libc(uintptr_t *base) {
    struct symbols found = {0};
    for (const struct link_map *library = _r_debug.r_map; library; library = library->l_next) {
        const char *name = strrchr(library->l_name, '/');
        if (strcmp(name ? name + 1 : library->l_name, "libc.so.6"))
            continue;
        *base = library->l_addr;
        for (const ElfW(Dyn) *part = library->l_ld; part->d_tag != DT_NULL; part++) {
            const void *at = (const void *)part->d_un.d_ptr;
            switch (part->d_tag) {
            case DT_SYMTAB: found.symbols = at; break;
            case DT_STRTAB: found.names = at; break;
            case DT_GNU_HASH: found.hash = at; break;
            case DT_VERSYM: found.versions = at; break;
            }
        }
        break;
    }
    return found;
}

/* The default version of a function; NULL: the C library does not have it. */
static void *find(const char *name) {
    uintptr_t base = 0;
    struct symbols libc = symbols_of_libc(&base);
    if (!libc.symbols || !libc.names || !libc.hash || !libc.versions)
        return NULL;
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = hash * 33 + *c;
    uint32_t buckets = libc.hash[0], first = libc.hash[1], words = libc.hash[2];
    const uint32_t *bucket = libc.hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t at = bucket[hash % buckets]; at >= first; at++) {
        const ElfW(Sym) *symbol = libc.symbols + at;
        const int is_default = !(libc.versions[at] & 0x8000);
        if (((chain[at - first] ^ hash) | 1) == 1 && is_default && symbol->st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && !strcmp(libc.names + symbol->st_name, name))
            return (void *)(base + symbol->st_value);
        if (chain[at - first] & 1)
            break;
    }
    return NULL;
}

/* Finds a function of the C library. Any thread may do so, at any time. */
__attribute__((visibility("hidden"), used)) void untorn_preload_resolve(struct slot *slot) {
    void *function = find(slot->name);
    __atomic_store_n(&slot->function, function ? function : (void *)missing, __ATOMIC_RELEASE);
}

/* Not 0 once this library has begun. Constructors of other libraries may call its functions before, even from within
 * `malloc`: these calls go to the C library. */
__attribute__((visibility("hidden"), used)) unsigned char untorn_preload_begun;

/* Finds all functions before a signal handler or a child that shares the memory needs one. */
__attribute__((constructor(101))) static void begin(int argc, char **argv, char **environment) {
    (void)argc, (void)argv;
    for (struct slot *slot = __start_untorn_slots; slot < __stop_untorn_slots; slot++)
        untorn_preload_resolve(slot);
    if (untorn_preload_note_environment(environment)) __atomic_store_n(&untorn_preload_begun, 1, __ATOMIC_RELEASE);
}

#define SLOT(name)                                                                                                     \
    ".pushsection untorn_slots,\"aw\",%progbits\n"                                                                     \
    ".balign 8\n"                                                                                                      \
    "untorn_slot_" #name ": .quad 0, untorn_name_" #name "\n"                                                          \
    ".popsection\n"                                                                                                    \
    ".pushsection .rodata\n"                                                                                           \
    "untorn_name_" #name ": .asciz \"" #name "\"\n"                                                                    \
    ".popsection\n"
#define BEGIN(symbol) ".globl " symbol "\n.type " symbol ",%function\n.balign 16\n" symbol ":\n"
#define END(symbol) ".size " symbol ", . - " symbol "\n"

#if defined(__x86_64__)
#define JUMP(to, original)                                                                                             \
    "endbr64\n cmpb $0, untorn_preload_begun(%rip)\n je " original "\n jmp " to "\n"
#define CALL_ORIGINAL(name)                                                                                            \
    "endbr64\n"                                                                                                        \
    "movq untorn_slot_" #name "(%rip), %r11\n"                                                                         \
    "testq %r11, %r11\n"                                                                                               \
    "je 1f\n"                                                                                                          \
    "jmp *%r11\n"                                                                                                      \
    "1: leaq untorn_slot_" #name "(%rip), %r11\n"                                                                      \
    "jmp untorn_preload_find\n"
/* Keeps all registers of arguments, vectors included, while the function in slot r11 is searched. */
__asm__(".text\n.type untorn_preload_find,@function\n"
        "untorn_preload_find:\n"
        "pushq %rdi\n pushq %rsi\n pushq %rdx\n pushq %rcx\n pushq %r8\n pushq %r9\n pushq %rax\n pushq %r11\n"
        "subq $136, %rsp\n"
        "movups %xmm0, (%rsp)\n movups %xmm1, 16(%rsp)\n movups %xmm2, 32(%rsp)\n movups %xmm3, 48(%rsp)\n"
        "movups %xmm4, 64(%rsp)\n movups %xmm5, 80(%rsp)\n movups %xmm6, 96(%rsp)\n movups %xmm7, 112(%rsp)\n"
        "movq %r11, %rdi\n"
        "call untorn_preload_resolve\n"
        "movups (%rsp), %xmm0\n movups 16(%rsp), %xmm1\n movups 32(%rsp), %xmm2\n movups 48(%rsp), %xmm3\n"
        "movups 64(%rsp), %xmm4\n movups 80(%rsp), %xmm5\n movups 96(%rsp), %xmm6\n movups 112(%rsp), %xmm7\n"
        "addq $136, %rsp\n"
        "popq %r11\n popq %rax\n popq %r9\n popq %r8\n popq %rcx\n popq %rdx\n popq %rsi\n popq %rdi\n"
        "jmp *(%r11)\n"
        ".size untorn_preload_find, . - untorn_preload_find\n");
#elif defined(__aarch64__)
#define JUMP(to, original)                                                                                             \
    "hint #34\n adrp x16, untorn_preload_begun\n ldrb w16, [x16, :lo12:untorn_preload_begun]\n"                        \
    "cbnz w16, 1f\n b " original "\n1: b " to "\n"
#define CALL_ORIGINAL(name)                                                                                            \
    "hint #34\n"                                                                                                       \
    "adrp x16, untorn_slot_" #name "\n"                                                                                \
    "add x16, x16, :lo12:untorn_slot_" #name "\n"                                                                      \
    "ldar x17, [x16]\n"                                                                                                \
    "cbz x17, 1f\n"                                                                                                    \
    "br x17\n"                                                                                                         \
    "1: b untorn_preload_find\n"
/* Keeps all registers of arguments, vectors included, while the function in slot x16 is searched. */
__asm__(".text\n.type untorn_preload_find,%function\n"
        "untorn_preload_find:\n"
        "stp x29, x30, [sp, #-224]!\n mov x29, sp\n"
        "stp x0, x1, [sp, #16]\n stp x2, x3, [sp, #32]\n stp x4, x5, [sp, #48]\n stp x6, x7, [sp, #64]\n"
        "stp x8, x16, [sp, #80]\n"
        "stp q0, q1, [sp, #96]\n stp q2, q3, [sp, #128]\n stp q4, q5, [sp, #160]\n stp q6, q7, [sp, #192]\n"
        "mov x0, x16\n"
        "bl untorn_preload_resolve\n"
        "ldp q0, q1, [sp, #96]\n ldp q2, q3, [sp, #128]\n ldp q4, q5, [sp, #160]\n ldp q6, q7, [sp, #192]\n"
        "ldp x8, x16, [sp, #80]\n"
        "ldp x0, x1, [sp, #16]\n ldp x2, x3, [sp, #32]\n ldp x4, x5, [sp, #48]\n ldp x6, x7, [sp, #64]\n"
        "ldp x29, x30, [sp], #224\n"
        "ldr x17, [x16]\n"
        "br x17\n"
        ".size untorn_preload_find, . - untorn_preload_find\n");
#else
#error "libuntorn-preload.so: x86_64 and aarch64 only"
#endif

#define NAME(name, to)                                                                                                 \
    __asm__(".text\n" BEGIN(#name) JUMP(#to, "__wrap_" #name) END(#name) BEGIN("__wrap_" #name) \
                CALL_ORIGINAL(name) END("__wrap_" #name) SLOT(name) ".hidden __wrap_" #name "\n.hidden " #to "\n");
#include "names.h"
#undef NAME

/* Names under which programs call the same functions: those of compilations with _FORTIFY_SOURCE, whose arguments
 * begin with the same ones, and those of the C library before 2.33. */
#define ALIAS(name, of, to) __asm__(".text\n" BEGIN(#name) JUMP(#to, "__wrap_" #of) END(#name));
ALIAS(__open_2, open, untorn_fd_open)
ALIAS(__open64_2, open, untorn_fd_open)
ALIAS(__openat_2, openat, untorn_fd_openat)
ALIAS(__openat64_2, openat, untorn_fd_openat)
ALIAS(__read_chk, read, untorn_fd_read)
ALIAS(__pread_chk, pread, untorn_fd_pread)
ALIAS(__pread64_chk, pread, untorn_fd_pread)

int untorn_path_stat(const char *path, struct stat *stat);
int untorn_path_lstat(const char *path, struct stat *stat);
int untorn_path_fstatat(int dir, const char *path, struct stat *stat, int flags);
int untorn_fd_fstat(int fd, struct stat *stat);

#define OLD_STAT(name, arguments, call)                                                                                \
    int name arguments;                                                                                                \
    int name arguments { return call; }
OLD_STAT(__xstat, (int v, const char *path, struct stat *s), ((void)v, untorn_path_stat(path, s)))
OLD_STAT(__xstat64, (int v, const char *path, struct stat *s), ((void)v, untorn_path_stat(path, s)))
OLD_STAT(__lxstat, (int v, const char *path, struct stat *s), ((void)v, untorn_path_lstat(path, s)))
OLD_STAT(__lxstat64, (int v, const char *path, struct stat *s), ((void)v, untorn_path_lstat(path, s)))
OLD_STAT(__fxstat, (int v, int fd, struct stat *s), ((void)v, untorn_fd_fstat(fd, s)))
OLD_STAT(__fxstat64, (int v, int fd, struct stat *s), ((void)v, untorn_fd_fstat(fd, s)))
OLD_STAT(__fxstatat, (int v, int d, const char *p, struct stat *s, int f), ((void)v, untorn_path_fstatat(d, p, s, f)))
OLD_STAT(__fxstatat64, (int v, int d, const char *p, struct stat *s, int f), ((void)v, untorn_path_fstatat(d, p, s, f)))
