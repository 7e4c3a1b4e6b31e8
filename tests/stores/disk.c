/* A layer between a process and its disk, by LD_PRELOAD: every change to the files of one directory is written
   to a log, in order, and can be made to fail. SQLite and Python both reach the disk through these functions.

   DISK_WATCH   the directory; what is done elsewhere passes through.
   DISK_LOG     where the log goes; see `disk.py` for its format. None without it.

   disk_fail(nth, times, errno, syncs): the nth change from now fails with errno, and so do those after it, `times`
   in all (negative: until the next disk_fail); with `syncs` only syncs count. disk_failed(): how many have.
   Called through ctypes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))
#define FDS 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *names[FDS]; /* of the watched files, by descriptor */
static const char *watch;
static int log_fd = -1, until, left, wrong, only_syncs, failed;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    watch = getenv("DISK_WATCH");
    const char *log = getenv("DISK_LOG");
    if (log != NULL) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void disk_fail(int nth, int times, int with, int syncs) {
    pthread_mutex_lock(&lock);
    until = nth, left = times, wrong = with, only_syncs = syncs, failed = 0;
    pthread_mutex_unlock(&lock);
}

int disk_failed(void) { return failed; }

/* The name within the watched directory, "" for the directory itself, NULL for what is elsewhere. */
static const char *within(const char *path) {
    size_t length = watch == NULL ? 0 : strlen(watch);
    if (length == 0 || path == NULL || strncmp(path, watch, length) != 0) return NULL;
    if (path[length] == '\0') return "";
    return path[length] == '/' ? path + length + 1 : NULL;
}

static const char *name_of(int fd) { return fd >= 0 && fd < FDS ? names[fd] : NULL; }

/* What `mmap` changes as well, and no power loss leaves: the index of the log. And the locks. */
static int lasts(const char *name) { return strstr(name, "-shm") == NULL && strstr(name, "-lock") == NULL; }

static void record(char kind, const char *name, const char *to, uint64_t offset, const void *data, uint64_t size) {
    uint32_t lengths[2] = {strlen(name), strlen(to)};
    if (log_fd < 0 || !lasts(name)) return;
    syscall(SYS_write, log_fd, &kind, 1);
    syscall(SYS_write, log_fd, lengths, sizeof lengths);
    syscall(SYS_write, log_fd, &offset, 8);
    syscall(SYS_write, log_fd, &size, 8);
    syscall(SYS_write, log_fd, name, lengths[0]);
    syscall(SYS_write, log_fd, to, lengths[1]);
    for (uint64_t done = 0; done < size;) {
        long wrote = syscall(SYS_write, log_fd, (const char *)data + done, size - done);
        if (wrote <= 0) abort();
        done += wrote;
    }
}

/* Whether this change is to fail. */
static int fails(int is_sync) {
    if (only_syncs && !is_sync) return 0;
    if (until <= 0 || --until > 0) return 0;
    if (left == 0) return until = 0;
    until = 1; /* the next one, too */
    left -= left > 0;
    failed++;
    errno = wrong;
    return 1;
}

/* --- opening ----------------------------------------------------------------------------------------- */

static int opened(int fd, const char *name, int flags, int was_there) {
    if (fd >= 0 && fd < FDS) {
        free(names[fd]);
        names[fd] = strdup(name);
        if (!was_there) record('C', name, "", 0, NULL, 0);
        if (flags & O_TRUNC) record('T', name, "", 0, NULL, 0);
    }
    return fd;
}

#define OPEN(function)                                                                                     \
    int function(const char *path, int flags, ...) {                                                       \
        va_list arguments;                                                                                 \
        va_start(arguments, flags);                                                                        \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                     \
        va_end(arguments);                                                                                 \
        const char *name = within(path);                                                                   \
        if (name == NULL) return REAL(function)(path, flags, mode);                                        \
        pthread_mutex_lock(&lock);                                                                         \
        int was_there = !(flags & O_CREAT) || access(path, F_OK) == 0;                                     \
        int fd = !was_there && fails(0) ? -1 : REAL(function)(path, flags, mode);                           \
        opened(fd, name, flags, was_there);                                                                \
        pthread_mutex_unlock(&lock);                                                                       \
        return fd;                                                                                         \
    }

OPEN(open)
OPEN(open64)

int close(int fd) {
    pthread_mutex_lock(&lock);
    if (name_of(fd) != NULL) {
        free(names[fd]);
        names[fd] = NULL;
    }
    pthread_mutex_unlock(&lock);
    return REAL(close)(fd);
}

/* --- changing ---------------------------------------------------------------------------------------- */

static ssize_t put(int fd, const char *name, const void *data, size_t size, off64_t offset) {
    if (strcmp(name, "acknowledged") == 0) { /* a mark of the process in the log */
        record('A', name, "", 0, data, size);
        return size;
    }
    int now = failed;
    if (fails(0)) {
        if (wrong != ENOSPC || now > 0 || size < 2) return -1;
        size /= 2; /* the last bytes that there was room for */
    }
    ssize_t wrote = REAL(pwrite64)(fd, data, size, offset);
    if (wrote > 0) record('W', name, "", offset, data, wrote);
    return wrote;
}

#define PWRITE(function)                                                                                   \
    ssize_t function(int fd, const void *data, size_t size, off64_t offset) {                              \
        pthread_mutex_lock(&lock);                                                                         \
        const char *name = name_of(fd);                                                                    \
        ssize_t wrote = name != NULL ? put(fd, name, data, size, offset) : REAL(function)(fd, data, size, offset); \
        pthread_mutex_unlock(&lock);                                                                       \
        return wrote;                                                                                      \
    }

PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int fd, const void *data, size_t size) {
    const char *name = name_of(fd);
    if (name == NULL) return REAL(write)(fd, data, size);
    pthread_mutex_lock(&lock);
    off64_t offset = lseek64(fd, 0, SEEK_CUR);
    ssize_t wrote = put(fd, name, data, size, offset);
    if (wrote > 0) lseek64(fd, offset + wrote, SEEK_SET);
    pthread_mutex_unlock(&lock);
    return wrote;
}

#define CHANGE(kind, name, to, offset, call)                                                               \
    pthread_mutex_lock(&lock);                                                                             \
    int result = (name) != NULL && fails(0) ? -1 : (call);                                                  \
    if ((name) != NULL && result == 0) record(kind, name, to, offset, NULL, 0);                            \
    pthread_mutex_unlock(&lock);                                                                           \
    return result;

/* What a sync is worth is for the reader of the log to say: none is carried out. */
#define SYNC(function)                                                                                     \
    int function(int fd) {                                                                                 \
        pthread_mutex_lock(&lock);                                                                         \
        const char *name = name_of(fd);                                                                    \
        int result = name == NULL ? REAL(function)(fd) : fails(1) ? -1 : 0;                                \
        if (name != NULL) record(result == 0 ? 'S' : 'F', name, "", 0, NULL, 0);                           \
        pthread_mutex_unlock(&lock);                                                                       \
        return result;                                                                                     \
    }

SYNC(fsync)
SYNC(fdatasync)

int ftruncate(int fd, off_t size) { CHANGE('T', name_of(fd), "", size, REAL(ftruncate)(fd, size)) }
int ftruncate64(int fd, off64_t size) { CHANGE('T', name_of(fd), "", size, REAL(ftruncate64)(fd, size)) }
int unlink(const char *path) { CHANGE('U', within(path), "", 0, REAL(unlink)(path)) }
int rename(const char *from, const char *to) {
    CHANGE('R', within(from), within(to), 0, REAL(rename)(from, to))
}
