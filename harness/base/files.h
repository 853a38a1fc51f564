/* SPDX-License-Identifier: MIT */
/* Files that are either whole or absent: written under a temporary name, then renamed. Small system files; JSON strings. */
#ifndef BENCH_FILES_H
#define BENCH_FILES_H

#include <stdbool.h>
#include <stdio.h>

/* Writes `path` by calling write(context, file), then fsync and rename. Pipes, devices and "-" (stdout) are written
 * directly. False after an error, said on stderr. */
typedef void (*bench_write_fn)(void *context, FILE *file);
bool bench_file_write(const char *path, bench_write_fn write, void *context);

/* Creates a folder and its parents. False after an error, said on stderr. */
bool bench_folder_create(const char *path);

/* Locks a folder for this process until the descriptor is closed, and removes what killed ones left half written. -1 if
 * another process holds it, said on stderr. */
int bench_folder_lock(const char *path);

/* A hash of the file's content in hexadecimal (FNV-1a, 64 bits); "unknown" if it cannot be read. */
void bench_file_hash(const char *path, char text[17]);

/* Opens /dev/null for those of descriptors 0, 1 and 2 that are closed, so that no file of ours becomes one of them. */
void bench_open_standard_files(void);

/* Appends the whole file at the path to `to`. False if it cannot be read or written. */
bool bench_file_copy(const char *path, FILE *to);

/* True if bench_file_write() could create the file now; else false, said on stderr. Writes nothing. */
bool bench_file_writable(const char *path);

bool bench_file_exists(const char *path);

/* First line of a small file, without surrounding blanks; "" if there is none. */
void bench_read_line(const char *path, char *line, size_t bytes);

/* The value of the first "name: value" or "name=value" line of a file, without blanks and quotes; "" if there is none. */
void bench_read_field(const char *path, const char *name, char *value, size_t bytes);

/* A JSON string with its quotes. A byte that is not UTF-8 becomes the escape of its value, so that the file is valid. */
void bench_json_string(FILE *file, const char *text);

/* `before`, then "key": "text". */
void bench_json_pair(FILE *file, const char *before, const char *key, const char *text);

#endif
