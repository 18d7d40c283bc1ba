/* Between the sources of libuntorn-preload.so. */
#ifndef UNTORN_PRELOAD_H
#define UNTORN_PRELOAD_H

#include <stdint.h>

/* A function of libuntorn.a that libuntorn.so does not show: see preload_calls.rs. */
int untorn_preload_look_at(const char *program, const char *directories, const uint64_t *told, int strict);

/* Notes the environment that this process was started with. False: it asks to leave this process alone. */
__attribute__((visibility("hidden"))) int untorn_preload_note_environment(char *const *environment);

#endif
