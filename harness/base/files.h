/* SPDX-License-Identifier: MIT */
/* Files that are either whole or absent: written under a temporary name, then renamed. */
#ifndef BENCH_FILES_H
#define BENCH_FILES_H

#include <stdbool.h>
#include <stdio.h>

/* Writes `path` by calling write(context, file), then fsync and rename. False after an error, said on stderr. */
typedef void (*bench_write_fn)(void *context, FILE *file);
bool bench_file_write(const char *path, bench_write_fn write, void *context);

/* Creates a folder and its parents. False after an error, said on stderr. */
bool bench_folder_create(const char *path);

/* True if bench_file_write() could create the file now; else false, said on stderr. Writes nothing. */
bool bench_file_writable(const char *path);

bool bench_file_exists(const char *path);

/* A JSON string with its quotes. */
void bench_json_string(FILE *file, const char *text);

#endif
