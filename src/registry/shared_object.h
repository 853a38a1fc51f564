/* SPDX-License-Identifier: MIT */
/* The loader of this system, behind one interface for all systems: no other file knows dlopen. */
#ifndef ATTN_SHARED_OBJECT_H
#define ATTN_SHARED_OBJECT_H

#include <stdbool.h>
#include <stddef.h>

#ifdef _WIN32
#define ATTN_PLUGIN_FILE       "libattn_%s.dll"
#define ATTN_FOLDER_SEPARATORS "/\\"
#define ATTN_LIST_SEPARATOR    ";" /* separates paths, which have a colon */
#else
#define ATTN_PLUGIN_FILE       "libattn_%s.so"
#define ATTN_FOLDER_SEPARATORS "/"
#define ATTN_LIST_SEPARATOR    ":"
#endif

/* Loads a path, or a file name that the loader looks for. NULL on failure, with the loader's sentence in `error`. All
 * symbols that the object needs must exist; its own symbols stay invisible to others. */
void *attn_object_open(const char *path, char *error, size_t error_bytes);

/* NULL if the object has no such symbol. */
const void *attn_object_symbol(void *object, const char *name);

bool attn_object_exists(const char *path);

/* The folder of the shared object or program that holds this code; "" if it cannot be known. */
void attn_object_own_folder(char *folder, size_t bytes);

/* The path of the object that holds the address, or `fallback`. */
void attn_object_path(const void *address, const char *fallback, char *path, size_t bytes);

/* getenv, but NULL in a program that has more rights than its caller (set-user-ID). */
const char *attn_object_secure_getenv(const char *name);

#endif
