/* The pragmas of the VFS, `untorn_*`, and those of SQLite that it answers.
 *
 * A pragma that is answered must have a text: without one, some languages fail. A result of SQLITE_ERROR makes the text
 * the statement's error message. */
#include "untorn_sqlite.h"
#include <stdlib.h>
#include <string.h>
SQLITE_EXTENSION_INIT3

/* A text and its length, that grow; `text` is NULL after a failure. */
struct text {
    char *text;
    size_t len;
};

static void put(struct text *to, const char *more, size_t len) {
    char *text = to->text ? sqlite3_realloc64(to->text, to->len + len + 1) : NULL;
    if (!text)
        sqlite3_free(to->text);
    else
        memcpy(text + to->len, more, len), text[to->len + len] = '\0';
    to->text = text;
    to->len += len;
}

static void put_text(struct text *to, const char *more) {
    put(to, more, strlen(more));
}

/* A string of JSON. Bytes that are not UTF-8 stay as they are: names of files may have them. */
static void put_string(struct text *to, const char *value) {
    put_text(to, "\"");
    for (; *value; value++) {
        char escaped[8];
        if (*value == '"' || *value == '\\')
            sqlite3_snprintf(sizeof escaped, escaped, "\\%c", *value);
        else if ((unsigned char)*value < ' ')
            sqlite3_snprintf(sizeof escaped, escaped, "\\u%04x", *value);
        else
            escaped[0] = *value, escaped[1] = '\0';
        put_text(to, escaped);
    }
    put_text(to, "\"");
}

static void put_number(struct text *to, const char *name, sqlite3_int64 value) {
    char text[100];
    sqlite3_snprintf(sizeof text, text, ", \"%s\": %lld", name, value);
    put_text(to, text);
}

static void put_truth(struct text *to, const char *name, int is) {
    put_text(to, ", \"");
    put_text(to, name);
    put_text(to, is ? "\": true" : "\": false");
}

static char *as_text(sqlite3_int64 number) {
    return sqlite3_mprintf("%lld", number);
}

/* A failed pragma: its message is the sentence. */
static int fails(char **answer) {
    *answer = last_sentence();
    return SQLITE_ERROR;
}

/* The store's own status is untorn_store_status_json(). The caller holds `store.opening`. */
static void put_store(struct text *to, struct store *store) {
    char *status = store->open ? untorn_store_status_json(store->open) : NULL;
    put_text(to, ", \"status\": ");
    put_text(to, status ? status : "null");
    untorn_free(status);
}

static int status(struct handle *handle, char **answer) {
    struct database *database = handle->database;
    struct store *store = database->store;
    struct text to = {.text = sqlite3_mprintf("{\"database\": ")};
    to.len = to.text ? strlen(to.text) : 0;
    put_string(&to, database->path);
    put_text(&to, ", \"store\": ");
    put_string(&to, store->path);
    put_truth(&to, "own_store", store->standalone);
    pthread_mutex_lock(&store->opening);
    pthread_mutex_lock(&registry);
    int owned = database->file != NULL, marked = database->marked, failed = store->failed;
    sqlite3_int64 ticket = handle->ticket, started = store->started;
    pthread_mutex_unlock(&registry);
    put_truth(&to, "owned", owned);
    put_truth(&to, "marked", marked);
    put_truth(&to, "failed", failed);
    put_truth(&to, "uncommitted", owned && handle->lock >= SQLITE_LOCK_RESERVED && untorn_has_changes(database->file) == 1);
    put_text(&to, ", \"class\": ");
    put_string(&to, class_name(store));
    put_number(&to, "ticket", ticket);
    put_number(&to, "last_ticket", started);
    put_number(&to, "durable_ticket", tickets_durable(store));
    put_store(&to, store);
    pthread_mutex_unlock(&store->opening);
    put_text(&to, "}");
    *answer = to.text;
    return to.text ? SQLITE_OK : SQLITE_NOMEM;
}

static int release(struct handle *handle, char **answer) {
    int rc = store_release(handle->database->store);
    if (rc == SQLITE_IOERR_CLOSE)
        return fails(answer);
    *answer = sqlite3_mprintf("%s", rc == SQLITE_OK ? "released" : "busy");
    return SQLITE_OK;
}

/* Applies every commit to the data files. */
static int checkpoint(struct handle *handle, char **answer) {
    struct database *database = handle->database;
    int rc = handle->lock == SQLITE_LOCK_NONE ? plain_use(handle) : SQLITE_NOTFOUND;
    *answer = sqlite3_mprintf("done");
    if (rc == SQLITE_OK)
        plain_unuse(handle);
    if (rc == SQLITE_OK || handle->plain)
        return SQLITE_OK;
    sqlite3_free(*answer);
    if (rc == SQLITE_NOTFOUND)
        rc = database_use(database);
    if (rc == SQLITE_BUSY)
        sorry(rc, "%s: another process has it open", database->path);
    if (rc != SQLITE_OK)
        return fails(answer);
    untorn_store *store = database->store->open;
    int done = untorn_store_wait(store) == 0 && untorn_store_checkpoint(store) == 0;
    if (!done)
        sorry(SQLITE_IOERR, "%s: %s", database->path, untorn_error_message());
    database_unuse(database);
    *answer = sqlite3_mprintf("done");
    if (done)
        return SQLITE_OK;
    sqlite3_free(*answer);
    return fails(answer);
}

/* Asks for the failure class, or sets it: the store closes, and opens again in that class. */
static int class(struct handle *handle, const char *wanted, char **answer) {
    struct store *store = handle->database->store;
    if (wanted) {
        int is_process = sqlite3_stricmp(wanted, "process") == 0;
        if (!is_process && sqlite3_stricmp(wanted, "power") != 0) {
            sorry(SQLITE_MISUSE, "untorn_class is power or process, not %s", wanted);
            return fails(answer);
        }
        if (class_set(store, is_process ? UNTORN_CLASS_PROCESS : UNTORN_CLASS_POWER) != SQLITE_OK)
            return fails(answer);
    }
    *answer = sqlite3_mprintf("%s", class_name(store));
    return SQLITE_OK;
}

static int wait_for(struct handle *handle, const char *wanted, char **answer) {
    char *end = NULL;
    sqlite3_int64 lsn, ticket = wanted ? strtoll(wanted, &end, 10) : 0;
    if (wanted && (end == wanted || *end != '\0' || ticket < 0)) {
        sorry(SQLITE_MISUSE, "untorn_wait takes an answer of untorn_ticket, or nothing, and not %s", wanted);
        return fails(answer);
    }
    if (tickets_wait(handle->database->store, ticket, &lsn) != SQLITE_OK)
        return fails(answer);
    *answer = as_text(lsn);
    return SQLITE_OK;
}

/* The journal lives in memory in every mode. WAL needs shared memory, and OFF cannot roll back: asked for them, SQLite
 * answers the present mode, as if the program had only asked which one it is. */
static void only_ask_for_the_mode(char *mode) {
    size_t len = strlen(mode);
    if (len > 0 && (sqlite3_strnicmp(mode, "wal", (int)len) == 0 || sqlite3_strnicmp(mode, "off", (int)len) == 0))
        *mode = '?';
}

/* SQLite's file control: the answer, the pragma's name, and its argument or NULL. */
int pragma(struct handle *handle, char **argument) {
    const char *name = argument[1];
    if (sqlite3_stricmp(name, "journal_mode") == 0 && argument[2])
        only_ask_for_the_mode(argument[2]);
    if (sqlite3_strnicmp(name, "untorn_", 7) != 0)
        return SQLITE_NOTFOUND;
    name += 7;
    if (sqlite3_stricmp(name, "error") == 0) {
        argument[0] = last_sentence();
        return SQLITE_OK;
    }
    if (handle->generation != generation) {
        sorry(SQLITE_IOERR, "the connection was opened before a fork: open another one in the child");
        return fails(argument);
    }
    if (sqlite3_stricmp(name, "status") == 0)
        return status(handle, argument);
    if (sqlite3_stricmp(name, "release") == 0)
        return release(handle, argument);
    if (sqlite3_stricmp(name, "checkpoint") == 0)
        return checkpoint(handle, argument);
    if (sqlite3_stricmp(name, "class") == 0)
        return class(handle, argument[2], argument);
    if (sqlite3_stricmp(name, "ticket") == 0) {
        argument[0] = as_text(handle->ticket);
        return SQLITE_OK;
    }
    if (sqlite3_stricmp(name, "wait") == 0)
        return wait_for(handle, argument[2], argument);
    return SQLITE_NOTFOUND;
}
